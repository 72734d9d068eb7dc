"""The job `test`: a client measures other clients' updates on its own held-out samples (FedTest, the jury)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import nn

from holdfast.context import Context
from holdfast.core.failures import Refusal
from holdfast.core.types import Tensors
from holdfast.data.task import Samples
from holdfast.jobs import Job, register
from holdfast.trust.backdoor_probe import innocence_of
from holdfast.trust.base import Trust
from holdfast.trust.measures import MEASURES, TestRequest, held_out, lengths_of, to_compare_classes
from holdfast.trust.relayed import opened
from holdfast.trust.reputation import ENOUGH


class Tester(Protocol):
    """What this job sees of a client."""

    @property
    def id(self) -> int: ...
    @property
    def train(self) -> Samples: ...
    @property
    def validation(self) -> Samples: ...
    @property
    def model(self) -> nn.Module: ...
    @property
    def trust(self) -> Trust: ...
    @property
    def scored(self) -> dict[bytes, dict[str, float]]: ...


@dataclass(frozen=True)
class TestReply:
    """What a tester found of each client, whose number is the key: from 0 to 1."""

    __test__: ClassVar[bool] = False  # its name is no call for pytest

    accuracies: dict[str, float]
    samples: int
    patches: dict[str, float] | None = None  # the same, in matters of backdoors


class Test(Job[Tester, TestRequest, TestReply]):
    __test__ = False
    name, request, reply = "test", TestRequest, TestReply

    def due(self, round: int, client: Tester, context: Context) -> bool:
        return client.trust.testing(round) is not None

    def check(self, asked: TestRequest, round: int, client: Tester, context: Context) -> None:
        """Refuse more models than there are members, and directions that are no unit vectors: a cosine must be one."""
        try:
            order = asked.clients
        except (ValueError, IndexError):
            raise Refusal("question", "a 'test' names clients that are no numbers.") from None
        if len(set(order)) != len(order) or not all(0 <= member < context.clients for member in order):
            raise Refusal("question", f"a 'test' names clients that are not {context.clients} members, each once.")
        for stacks in filter(None, (asked.units, asked.alone)):
            if longest_row(stacks, len(order)) > 1.001:
                raise Refusal("question", "a 'test' has directions that are longer than 1.")
        terms = client.trust.testing(round)
        taught = [(asked.alone, asked.units), (asked.taught, asked.model)]
        if any(found and found.keys() != like.keys() for found, like in taught):
            raise Refusal("question", "a 'test' asks what members taught in other tensors than the model's.")
        if any(found for found, _ in taught) and (terms is None or not terms.patches):
            raise Refusal("question", "a 'test' asks what members taught where nobody looks for backdoors.")

    def records(self, client: Tester, round: int) -> int:
        return len(self._samples(client, round))

    def perform(self, client: Tester, asked: TestRequest, round: int) -> TestReply:
        terms = client.trust.testing(round)
        if terms is None:
            raise Refusal("job", f"client {client.id} is asked to test, but the run's trust rule asks nobody.")
        asked = opened(asked, terms.measure, client.trust.bounds_buffers)
        samples = self._samples(client, round)
        others = [other for other in asked.clients if other != client.id]
        found = MEASURES[terms.measure](client.model, samples, asked, others)
        if not terms.patches or len(asked.clients) < ENOUGH:
            return TestReply(found, len(samples))
        innocent = innocence_of(client.model, client.validation, client.train, asked, others)
        return TestReply(found, len(samples), innocent)

    def _samples(self, client: Tester, round: int) -> Samples:
        terms = client.trust.testing(round)
        if terms is None or terms.measure != "help":
            return held_out(client.validation, client.train, None if terms is None else terms.most)
        return to_compare_classes(client.validation, client.train, terms.most)


TEST = register(Test())


def longest_row(stacks: Tensors, rows: int) -> float:
    """The length of the longest of the vectors that are stacked name by name."""
    if any(tensor.dim() == 0 or len(tensor) != rows for tensor in stacks.values()):
        raise Refusal("question", "a 'test' has more or fewer directions than clients.")
    return float(lengths_of(stacks).max()) if rows else 0.0
