"""The job `evaluate`: a client tests the model that was sent on its own held-out samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from holdfast.client.client import Client, recall_memory
from holdfast.context import Context
from holdfast.core.errors import brief
from holdfast.core.failures import Refusal
from holdfast.core.randomness import rng
from holdfast.core.types import Reply, Tensors
from holdfast.data.bootstrap import interval_of
from holdfast.data.metrics import weighted_sums
from holdfast.data.task import Metric, Samples
from holdfast.jobs import Job, is_number, register
from holdfast.learning.loop import outputs_of
from holdfast.models.networks import fill
from holdfast.trust.measures import held_out

MOST = 2**48  # samples


@dataclass(frozen=True)
class EvaluateRequest:
    """The model, and which version of what stays at home it is to be completed with, if anything does."""

    model: Tensors
    buffers: Tensors
    accepted: int | None = None  # a round, counted from 0; -1: none


@dataclass(frozen=True)
class EvaluateReply:
    """The sums of each metric, which add up over clients."""

    metrics: dict[str, Any]
    samples: int
    interval: list[float] | None = None  # in which the leading metric lies, with 95 % confidence


class Evaluate(Job[Client, EvaluateRequest, EvaluateReply]):
    name, request, reply = "evaluate", EvaluateRequest, EvaluateReply
    watches = True  # an experiment watches all its clients

    def due(self, round: int, client: Client, context: Context) -> bool:
        return context.secure is None and is_tested(round, context)

    def check(self, asked: EvaluateRequest, round: int, client: Client, context: Context) -> None:
        if asked.accepted is not None and not (context.keeps_home and -1 <= asked.accepted <= round):
            raise Refusal("question", "an 'evaluate' says `accepted`, which the site decides.")

    def records(self, client: Client, round: int) -> int:
        return len(held_out(client.validation, client.train))

    def perform(self, client: Client, asked: EvaluateRequest, round: int) -> EvaluateReply:
        if client.secure is not None:
            raise Refusal("job", "single metrics were asked for, and with secure sums only the members' total leaves.")
        home: Tensors = {}
        if client.home:
            if asked.accepted is None:
                raise Refusal("question", "an 'evaluate' does not say which version of the memory counts.")
            home = recall_memory(client, asked.accepted, {})[2]
        samples = held_out(client.validation, client.train)
        sums, output = sums_at(client, {**asked.model, **home}, {**asked.buffers, **home}, samples)
        interval = None
        if round >= client.interval_from:
            chance = rng(client.seed, round, client.id, "bootstrap")
            interval = interval_of(client.metrics[0], output, samples.labels, chance, samples.weights)
        return EvaluateReply(sums, len(samples), interval)

    def well_formed(self, reply: Reply) -> str | None:
        if odd := super().well_formed(reply):
            return odd
        told = self.read(reply)
        if not 1 <= told.samples <= MOST:
            return f"its samples are {brief(told.samples)}, not a positive whole number"
        if told.interval is not None and not is_interval(told.interval):
            return f"its interval is {brief(told.interval)}, not two finite numbers, the lower one first"
        return None

    def fault(self, reply: Reply, context: Context) -> str | None:
        return find_odd_sums(self.read(reply).metrics, context.metrics)


EVALUATE = register(Evaluate())


def is_tested(round: int, context: Context) -> bool:
    """Whether the model of a round (counted from 0) is tested."""
    return (round + 1) % context.evaluate_every == 0 or round + 1 == context.rounds


def sums_at(
    client: Client, model: Tensors, buffers: Tensors, samples: Samples
) -> tuple[dict[str, list[float]], Tensor]:
    """The sums of each metric of a model on some of the client's samples, and its outputs there."""
    fill(client.model, model, buffers)
    output = outputs_of(client.model, samples)
    return {one.name: weighted_sums(one, output, samples.labels, samples.weights) for one in client.metrics}, output


def is_interval(value: list[float]) -> bool:
    if len(value) != 2 or not all(is_number(one) and math.isfinite(one) for one in value):
        return False
    return value[0] <= value[1]


def find_odd_sums(told: dict[str, Any], metrics: Sequence[Metric]) -> str | None:
    """What is wrong with a client's sums of the task's metrics."""
    if not told or not set(told) <= {metric.name for metric in metrics}:  # a policy may keep some at home
        return f"its metrics are {brief(sorted(map(str, told)))}, not those of the task"
    for metric in metrics:
        if metric.name not in told:
            continue
        sums = told[metric.name]
        if not isinstance(sums, list) or len(sums) != metric.width:
            return f"its {metric.name} is {brief(sums)}, not {metric.width} sums"
        if not all(is_number(one) and math.isfinite(one) for one in sums) or not metric.possible(sums):
            return f"its {metric.name} has impossible sums, {brief(sums)}"
    return None
