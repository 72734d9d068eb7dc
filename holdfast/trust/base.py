"""The plain weights: by samples, or the same for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from holdfast.algorithms.fedavg import shared
from holdfast.context import Context
from holdfast.core.errors import HoldfastError
from holdfast.core.types import Federation, State, Tensors, Update
from holdfast.data.task import Samples
from holdfast.models.networks import weights_of


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
    doubted: Mapping[int, str] = field(default_factory=dict)  # on some kind of evidence; for one kind nobody is named
    notes: Sequence[str] = ()
    bytes_up: int = 0
    bytes_down: int = 0


def no_digests() -> Mapping[int, Samples]:
    return {}


@dataclass(frozen=True)
class Hearing:
    """What a trust rule may see and whom it may ask."""

    context: Context
    federation: Federation  # the clients
    digests: Callable[[], Mapping[int, Samples]] = no_digests  # what stands for each client at the moderator
    received: Sequence[Update] = ()  # the updates as they were sent, before anything is clipped
    awaited: bool = False  # whether members leave digests, which look after backdoors from the second round on
    promised: bool = False  # whether digests are noised: exact answers of members would break their promise
    contradicted: Collection[int] = ()  # whose digest the others contradict


@dataclass(frozen=True)
class Testing:
    """What a rule asks testers in a round: known to everybody from the experiment, so that nobody can ask for more."""

    __test__: ClassVar[bool] = False  # its name is no call for pytest

    measure: str  # see tester.MEASURES
    most: int  # samples that a tester tests on
    patches: bool = False  # whether testers look for backdoors too


@dataclass(frozen=True)
class Trust:
    """A rule that weighs updates."""

    merges_updates: ClassVar[bool] = False  # whether it changes updates, or puts one in the place of all
    doubts_digests: ClassVar[bool] = False  # whether digests that the others contradict are set aside (FedDig)
    needs_classes: ClassVar[bool] = False  # whether it goes by accuracies or classes
    bounds_buffers: ClassVar[bool] = True  # whether running statistics far from the others' are clipped first

    def check(self, context: Context) -> None:
        """Refuse a run in which this rule cannot work, in one sentence."""

    def begin(self, clients: int) -> Tensors:
        """The rule's memory before round 1."""
        return {}

    def testing(self, round: int) -> Testing | None:
        """What clients may be asked to test in this round; a rule that asks nobody answers None."""
        return None

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        """The weight of each update; `updates` is never empty and sorted by client."""
        raise NotImplementedError

    def mass(self, samples: int) -> float | None:
        """What an update weighs before weights are made to sum to one; none: that hangs on more than its samples."""
        return None

    @property
    def panel(self) -> int | None:
        """The samples on which a member of a panel may be asked to measure models; a rule that asks none: None."""
        return None

    def hold(
        self, before: State, after: State, judged: Judgement, hearing: Hearing, again: Callable[[Judgement], State]
    ) -> tuple[State, Judgement]:
        """The round's result, held against the state before; `again` does the round once more by another judgement."""
        return after, judged


def judgement(updates: Sequence[Update], masses: Sequence[float], memory: Tensors) -> Judgement:
    """A judgement that only weighs: weights in proportion to the masses."""
    total = sum(masses)
    usable = total != 0 and math.isfinite(total)  # if not, `check_judgement` says what is wrong with the masses
    weights = [mass / total for mass in masses] if usable else list(masses)
    return Judgement(updates, weights, {u.client: w for u, w in zip(updates, weights, strict=True)}, memory)


def check_rule(rule: Trust, name: str, context: Context) -> None:
    """Refuse a rule that cannot work in this run, in one sentence."""
    if context.keeps_home and rule.testing(0) is not None:
        raise HoldfastError(
            f"trust {name!r} has clients test each other's models, of which {type(context.algorithm).__name__} sends a "
            "part only; choose another rule, or an algorithm that sends all."
        )
    if context.algorithm.asks_gradients and rule.testing(0) is not None:
        raise HoldfastError(
            f"trust {name!r} has clients test updates, and {type(context.algorithm).__name__} averages gradients "
            "before there are any; take mimelite, or a rule that goes by the updates themselves, such as krum."
        )
    why = context.algorithm.needs_each_update
    if not why and context.algorithm.extra(shared(context.algorithm, weights_of(context.bench.model))):
        why = "sends more with each"
    if rule.merges_updates and why:
        raise HoldfastError(
            f"trust {name!r} changes or merges updates, and {type(context.algorithm).__name__} {why}: take fedavg, "
            "fedprox, feddyn or adabest, or a rule that only weighs, such as krum, multikrum, geomedian or fedtest."
        )
    rule.check(context)


def check_judgement(rule: Trust, found: object) -> Judgement:
    """What a rule answered, if the round can go on with it; else a sentence that names the rule."""
    name = f"trust rule {type(rule).__name__}"
    if not isinstance(found, Judgement):
        raise HoldfastError(f"{name}: judge must answer with a Judgement, got {type(found).__name__}.")
    if len(found.weights) != len(found.updates):
        raise HoldfastError(f"{name} gives {len(found.weights)} weights to {len(found.updates)} updates.")
    for update, weight in zip(found.updates, found.weights, strict=True):
        if not 0 <= weight < math.inf:
            whose = f"client {update.client}'s update" if update.client >= 0 else "the merged update"
            raise HoldfastError(f"{name} gives {whose} the weight {weight}; weights are numbers from 0 to 1.")
    if found.updates and not math.isclose(total := sum(found.weights), 1, abs_tol=1e-3):
        raise HoldfastError(f"{name} gives weights that sum to {total:g}; they must sum to 1.")
    for key in ("say", "scores", "credibility"):
        for client, value in getattr(found, key).items():
            if not math.isfinite(value):
                raise HoldfastError(f"{name} gives client {client} {value} in {key}; it must be a finite number.")
    return found


@dataclass(frozen=True)
class BySamples(Trust):
    """a_i = n_i / sum n: as FedAvg, FedProx and FedNova print it."""

    bounds_buffers: ClassVar[bool] = False  # a plain mean, as printed

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        return judgement(updates, [update.samples for update in updates], state.trust)

    def mass(self, samples: int) -> float:
        return samples


@dataclass(frozen=True)
class Uniform(Trust):
    """a_i = 1/n: as FedDyn, AdaBest, SCAFFOLD and FedDig print it."""

    bounds_buffers: ClassVar[bool] = False

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        return judgement(updates, [1.0] * len(updates), state.trust)

    def mass(self, samples: int) -> float:
        return 1.0
