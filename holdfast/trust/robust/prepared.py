"""Rules in two steps: the updates are mixed, clipped or put into buckets first; then another rule follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from holdfast.context import Context
from holdfast.core.rows import Aggregate, canonical_order
from holdfast.core.types import State, Update
from holdfast.trust.base import Hearing, Judgement, Trust
from holdfast.trust.robust import aggregates as robust
from holdfast.trust.robust.clipping import clip_around
from holdfast.trust.robust.merging import judge_merged, stacked
from holdfast.trust.robust.rules import NEEDS, check_hostile, hostile_of, judged, lowered


def followed(then: str, rows: Tensor, f: int) -> Aggregate:
    """The aggregate of a rule that needs nothing but the rows and f."""
    if then == "nnm":
        mixed = robust.nearest_neighbour_mixing(rows, f)
        return robust.through(mixed, robust.trimmed_mean(mixed.updates, f))
    rules: dict[str, Callable[[Tensor], Aggregate]] = {
        "median": robust.median,
        "trimmed": partial(robust.trimmed_mean, f=f),
        "krum": partial(robust.krum, f=f),
        "multikrum": partial(robust.multi_krum, f=f),
        "geomedian": robust.geometric_median,
        "mean": partial(robust.trimmed_mean, f=0),
    }
    return rules[then](rows)


@dataclass(frozen=True)
class Nnm(Trust):
    """Each update becomes the mean of its n - f nearest; then another rule (Allouah et al.)."""

    merges_updates: ClassVar[bool] = True

    then: Literal["median", "trimmed", "krum", "multikrum", "geomedian", "mean"] = "trimmed"
    f: int | None = None

    def check(self, context: Context) -> None:
        for rule in ("nnm", self.then):
            if rule in NEEDS:
                check_hostile(rule, self.f, context.clients)

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        return judged(self.then if self.then in NEEDS else "nnm", self.f, updates, self.mix, merge=True)

    def mix(self, rows: Tensor, f: int) -> Aggregate:
        prepared = robust.nearest_neighbour_mixing(rows, f)
        return robust.through(prepared, followed(self.then, prepared.updates, f))


@dataclass(frozen=True)
class Arc(Trust):
    """The longest updates are shortened to the next one's length; then another rule (Allouah et al.).

    `nnm` is nearest-neighbour mixing and the trimmed mean.
    """

    merges_updates: ClassVar[bool] = True

    then: Literal["nnm", "median", "trimmed", "krum", "multikrum", "geomedian", "mean"] = "nnm"
    f: int | None = None

    def check(self, context: Context) -> None:
        check_hostile(self.needs, self.f, context.clients)

    @property
    def needs(self) -> str:
        """The rule that says how many updates there must be."""
        return self.then if self.then in NEEDS else "arc"

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        return judged(self.needs, self.f, updates, self.clip, merge=True)

    def clip(self, rows: Tensor, f: int) -> Aggregate:
        prepared = robust.adaptive_clipping(rows, f)
        return robust.through(prepared, followed(self.then, prepared.updates, f))


@dataclass(frozen=True)
class Bucketing(Trust):
    """The means of buckets of updates, drawn anew in each round, go to another rule (Karimireddy et al.)."""

    merges_updates: ClassVar[bool] = True

    then: Literal["clipping", "nnm", "median", "trimmed", "krum", "multikrum", "geomedian", "mean"] = "clipping"
    size: int = 2
    f: int | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size, the updates in a bucket, must be at least 1, got {self.size}.")

    def check(self, context: Context) -> None:
        if self.then in NEEDS:
            f = context.clients // 5 if self.f is None else self.f
            check_hostile(self.then, f, -(-context.clients // self.size))

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        rows = stacked(updates)
        drawn = torch.randperm(len(rows), generator=hearing.context.draw(state.round, "buckets"))
        prepared = robust.bucketing(rows, self.size, canonical_order(rows)[drawn])
        if self.then == "clipping":
            found, memory = clip_around(prepared.updates, state.trust)
            return replace(judge_merged(updates, robust.through(prepared, found)), memory=memory)
        wanted, fits, then = (len(rows) // 5 if self.f is None else self.f), 0, self.then
        if then in NEEDS and len(prepared.updates) < NEEDS[then][1]:
            notes, then = [f"{len(prepared.updates)} buckets are too few for {then}: they are averaged"], "mean"
        else:
            fits = hostile_of(then, wanted, len(prepared.updates)) if then in NEEDS else 0
            notes = lowered(then, wanted, fits, f"{len(prepared.updates)} buckets") if then in NEEDS else []
        return judge_merged(updates, robust.through(prepared, followed(then, prepared.updates, fits)), notes)
