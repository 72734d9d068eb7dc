"""A Flower strategy around another one: it changes what it must, and refuses what is no update (core/validate.py)."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MessageType, MetricRecord, RecordDict
from flwr.app import Message as Packet
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from holdfast.core.errors import HoldfastError, brief
from holdfast.core.types import Tensors
from holdfast.core.validate import MOST, misfit, too_long
from holdfast.flower.parts.mods import unseal

log = logging.getLogger("flwr")  # where Flower logs
Settings = ConfigRecord
UNKNOWN = 0  # Flower's code of an error without one of its own
FAR = 1e6  # the norm of a change that no training makes


class Around(Strategy):
    """A strategy around another one. A reply that is no well-formed update reaches neither of them."""

    def __init__(self, strategy: Strategy, weighted_by: str, max_norm: float | None) -> None:
        if max_norm is not None and not 0 < max_norm < math.inf:
            raise HoldfastError(f"max_norm must be positive, got {max_norm}; None is no bound.")
        self.inner = strategy
        self._weighted_by, self._max_norm = weighted_by, max_norm
        self._sent = ArrayRecord()

    def summary(self) -> None:
        self.inner.summary()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Settings, grid: Grid) -> Iterable[Packet]:
        self._sent = arrays
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Packet]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As the inner strategy does, each tensor in the type that was sent: Flower's mean makes counters floats."""
        arrays, metrics = self.inner.aggregate_train(server_round, replies)
        return None if arrays is None else as_sent(arrays, self._sent), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: Settings, grid: Grid
    ) -> Iterable[Packet]:
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Packet]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def _accept(self, replies: Sequence[Packet]) -> list[Packet]:
        """The replies, with each that is no update turned into a failure: named, counted, and never averaged."""
        sent = unseal(self._sent)
        faults = {}
        forms: Counter[str] = Counter()
        for packet in replies:
            if packet.has_content():
                fault = self._find_fault(packet.content, sent)
                faults[packet.metadata.src_node_id] = fault
                forms[form_of(packet.content)] += fault is None
        usual = max(forms, key=lambda form: forms[form], default="")
        answers = []
        for packet in replies:
            node = packet.metadata.src_node_id
            fault = faults.get(node)
            if packet.has_content() and not fault and form_of(packet.content) != usual:
                fault = f"it holds {form_of(packet.content)[:200]}, the others {usual[:200]}"
            if fault:
                log.warning("%s: the update of node %d is refused: %s", type(self).__name__, node, fault)
                packet = answer_as(node, Error(UNKNOWN, f"its update is refused: {fault}"))
            answers.append(packet)
        return answers

    def _find_fault(self, content: RecordDict, sent: Tensors) -> str | None:
        """The first thing wrong with a reply to train, or None."""
        if len(content.array_records) != 1 or len(content.metric_records) != 1:
            return f"it holds {len(content.array_records)} models and {len(content.metric_records)} sets of metrics"
        [metrics] = content.metric_records.values()
        weight = metrics.get(self._weighted_by)
        if not isinstance(weight, int | float) or not 0 < weight <= MOST:
            return f"{self._weighted_by} is {brief(weight)}, not a positive number up to {MOST}"
        try:
            model = unseal(first_arrays(content))
        except Exception as error:  # a stranger's bytes: numpy and torch have many words for what is wrong with them
            return f"its model cannot be read: {type(error).__name__}: {brief(str(error))}"
        if fault := misfit(model, sent):
            return fault
        moved = {name: tensor.double() - sent[name].double() for name, tensor in model.items()}
        return too_long(moved, self._max_norm)


def first_arrays(content: RecordDict) -> ArrayRecord:
    """The model in a train reply."""
    return next(iter(content.array_records.values()))


def form_of(content: RecordDict) -> str:
    """The names of a reply's records and metrics: Flower ends the run where they are not the same in all replies."""
    metrics = {
        name: sorted(f"{key}[{len(value)}]" if isinstance(value, list) else key for key, value in record.items())
        for name, record in content.metric_records.items()
    }
    return f"{sorted(content.array_records)} {metrics}"


def answer_as(node: int, content: Any) -> Packet:
    """A reply to train, as if the node had sent it."""
    asked = Packet(RecordDict(), dst_node_id=node, message_type=MessageType.TRAIN)
    return Packet(content, reply_to=asked)


def as_sent(arrays: ArrayRecord, sent: ArrayRecord) -> ArrayRecord:
    """The arrays, each of the type it was sent with."""
    kinds = {name: tensor.dtype for name, tensor in unseal(sent).items()}
    return ArrayRecord({name: Array(cast(t, kinds.get(name, t.dtype)).numpy()) for name, t in unseal(arrays).items()})


def cast(tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return tensor.to(kind) if kind.is_floating_point else tensor.round().to(kind)
