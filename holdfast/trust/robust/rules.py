"""The field's robust rules as choices. The rules themselves, on stacked vectors, are in aggregates.py and krum.py.

Some only weigh (Krum, Multi-Krum, geometric median): they go with every algorithm. The others make one new update of
all: they cannot go with FedNova, which weighs clients by their steps, nor with SCAFFOLD, which works out a control
variate of each client from its own update.

f is the number of hostile clients to withstand; left out, it is a fifth of the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from holdfast.context import Context
from holdfast.core.errors import HoldfastError
from holdfast.core.rows import Aggregate
from holdfast.core.types import State, Update
from holdfast.trust.base import Hearing, Judgement, Trust
from holdfast.trust.robust import aggregates as robust
from holdfast.trust.robust.merging import judge_merged, judge_weighed, shortened, stacked

# How many updates a rule needs to withstand f hostile ones: slope x f + offset.
NEEDS = {"trimmed": (2, 1), "krum": (2, 3), "multikrum": (2, 3), "bulyan": (4, 3), "nnm": (2, 1), "arc": (2, 1)}


def hostile_of(rule: str, f: int | None, updates: int) -> int:
    """f as given or a fifth, lowered to what so many updates can bear: clients may be away in a round.

    >>> hostile_of("krum", None, 20), hostile_of("bulyan", 4, 12)
    (4, 2)
    """
    slope, offset = NEEDS[rule]
    return max(0, min(updates // 5 if f is None else f, (updates - offset) // slope))


def check_hostile(rule: str, f: int | None, clients: int) -> None:
    """Refuse an f that the run's clients cannot bear even when all of them are there."""
    slope, offset = NEEDS[rule]
    wanted = clients // 5 if f is None else f
    if wanted < 0:
        raise HoldfastError(f"trust {rule!r}: f, the hostile clients to withstand, must not be negative, got {f}.")
    if clients < slope * wanted + offset:
        raise HoldfastError(
            f"trust {rule!r}: to withstand f = {wanted} hostile clients it needs {slope * wanted + offset} clients, "
            f"got {clients}; lower f or take more clients."
        )


def lowered(rule: str, f: int | None, fits: int, rows: str) -> list[str]:
    """What is said where f had to be lowered."""
    return [f"{rows} are too few for {rule} with f = {f}: f was {fits} in this round"] if f and fits < f else []


def judged(
    rule: str, f: int | None, updates: Sequence[Update], aggregate: Callable[[Tensor, int], Aggregate], merge: bool
) -> Judgement:
    """The judgement of a rule that withstands f; said when f had to be lowered, or when there are too few for it."""
    n, fits = len(updates), hostile_of(rule, f, len(updates))
    if n < NEEDS[rule][1]:
        notes = [f"{n} updates are too few for {rule}: they are averaged"]
        return judge_weighed(updates, [1.0] * n, notes)
    notes = lowered(rule, f, fits, f"{n} updates")
    found = aggregate(stacked(updates), fits)
    if merge:
        return judge_merged(updates, found, notes)
    return judge_weighed(updates, found.weights.tolist(), notes)


@dataclass(frozen=True)
class Median(Trust):
    """The median of each coordinate (Yin et al.)."""

    merges_updates: ClassVar[bool] = True

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        return judge_merged(updates, robust.median(stacked(updates)))


@dataclass(frozen=True)
class Trimmed(Trust):
    """The mean of each coordinate without its f largest and f smallest values (Yin et al.)."""

    merges_updates: ClassVar[bool] = True

    f: int | None = None

    def check(self, context: Context) -> None:
        check_hostile("trimmed", self.f, context.clients)

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        return judged("trimmed", self.f, updates, robust.trimmed_mean, merge=True)


@dataclass(frozen=True)
class Krum(Trust):
    """The one update nearest to its neighbours (Blanchard et al.)."""

    f: int | None = None

    def check(self, context: Context) -> None:
        check_hostile("krum", self.f, context.clients)

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        return judged("krum", self.f, updates, robust.krum, merge=False)


@dataclass(frozen=True)
class MultiKrum(Trust):
    """The mean of the m updates nearest to their neighbours (Blanchard et al.)."""

    f: int | None = None
    m: int | None = None

    def check(self, context: Context) -> None:
        check_hostile("multikrum", self.f, context.clients)
        if self.m is not None and self.m < 1:
            raise HoldfastError(f"trust 'multikrum': m, the updates to keep, must be at least 1, got {self.m}.")

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        def keep(rows: Tensor, f: int) -> Aggregate:
            return robust.multi_krum(rows, f, None if self.m is None else min(self.m, len(rows) - f))

        return judged("multikrum", self.f, updates, keep, merge=False)


@dataclass(frozen=True)
class Bulyan(Trust):
    """Krum chooses, then in each coordinate the values nearest to the median are averaged (El Mhamdi et al.)."""

    merges_updates: ClassVar[bool] = True

    f: int | None = None

    def check(self, context: Context) -> None:
        check_hostile("bulyan", self.f, context.clients)

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        return judged("bulyan", self.f, updates, robust.bulyan, merge=True)


@dataclass(frozen=True)
class GeometricMedian(Trust):
    """The point with the least sum of distances to the updates (Pillutla et al.)."""

    iterations: int = 100

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {self.iterations}.")

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        found = robust.geometric_median(stacked(updates), iterations=self.iterations)
        return judge_weighed(updates, found.weights.tolist())


@dataclass(frozen=True)
class NormClip(Trust):
    """The mean of the updates, each shortened to the bound, or to the median of their lengths (Sun et al.)."""

    merges_updates: ClassVar[bool] = True

    bound: float | None = None

    def __post_init__(self) -> None:
        if self.bound is not None and self.bound <= 0:
            raise ValueError(f"bound must be above zero, got {self.bound}; leave it out for the median length.")

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        kept = robust.norm_clipping(stacked(updates), self.bound).weights * len(updates)
        clipped = [shortened(update, float(factor)) for update, factor in zip(updates, kept, strict=True)]
        plain = judge_weighed(clipped, [1.0] * len(updates))
        total = float(kept.sum())
        say = {update.client: float(factor) / total for update, factor in zip(updates, kept, strict=True)}
        return Judgement(clipped, plain.weights, say)
