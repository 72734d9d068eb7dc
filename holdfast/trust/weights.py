"""The plain weights: by samples, or the same for all."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from holdfast.core import Federation, State, Tensors, Update
from holdfast.tasks import Samples

if TYPE_CHECKING:
    from holdfast.round import Method

Root = Callable[[int], Samples]  # so many samples that the moderator holds itself


@dataclass(frozen=True)
class Judgement:
    """What a trust rule found: the updates that count (perhaps clipped or merged), their weights, and why."""

    updates: Sequence[Update]
    weights: Sequence[float]  # one for each of `updates`, summing to one
    say: Mapping[int, float]  # share of the weight each client kept
    memory: Tensors = field(default_factory=dict)
    scores: Mapping[int, float] = field(default_factory=dict)
    credibility: Mapping[int, float] = field(default_factory=dict)  # of those who test, from 0 to 1
    suspects: Mapping[int, str] = field(default_factory=dict)
    unheard: Sequence[int] = ()  # clients whose updates hardly count
    notes: Sequence[str] = ()
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True)
class Trust:
    """A rule that weighs updates. `updates` is never empty and sorted by client."""

    doubts_digests: ClassVar[bool] = False  # whether digests that the others contradict are set aside (FedDig)

    run: Any = field(default=None, init=False, repr=False, compare=False)  # the run's Method, once ready

    def ready(self, method: Method, root: Root) -> Self:
        """This rule with what it needs of the run, or a sentence why it cannot work there."""
        ready = copy.copy(self)
        object.__setattr__(ready, "run", method)
        return ready

    def begin(self, clients: int) -> Tensors:
        """The rule's memory before round 1."""
        return {}

    def judge(self, updates: Sequence[Update], federation: Federation, state: State) -> Judgement:
        raise NotImplementedError


def judgement(updates: Sequence[Update], masses: Sequence[float], memory: Tensors) -> Judgement:
    """A judgement that only weighs: weights in proportion to the masses."""
    total = sum(masses)
    weights = [mass / total for mass in masses]
    return Judgement(updates, weights, {u.client: w for u, w in zip(updates, weights, strict=True)}, memory)


@dataclass(frozen=True)
class BySamples(Trust):
    """a_i = n_i / sum n: as FedAvg, FedProx and FedNova print it."""

    def judge(self, updates: Sequence[Update], federation: Federation, state: State) -> Judgement:
        return judgement(updates, [update.samples for update in updates], state.trust)


@dataclass(frozen=True)
class Uniform(Trust):
    """a_i = 1/n: as FedDyn, AdaBest, SCAFFOLD and FedDig print it."""

    def judge(self, updates: Sequence[Update], federation: Federation, state: State) -> Judgement:
        return judgement(updates, [1.0] * len(updates), state.trust)
