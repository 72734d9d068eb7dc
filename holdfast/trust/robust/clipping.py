"""Centred clipping: updates are clipped around where the last aggregate went (Karimireddy, He, Jaggi, ICML 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from holdfast.core.rows import norms_of
from holdfast.core.types import State, Update
from holdfast.trust.base import Hearing, Judgement, Trust
from holdfast.trust.robust import aggregates as robust
from holdfast.trust.robust.merging import judge_merged, stacked


@dataclass(frozen=True)
class CentredClipping(Trust):
    """Clipped differences from the last aggregate are averaged; without tau, to their median length."""

    merges_updates: ClassVar[bool] = True

    tau: float | None = None
    iterations: int = 1

    def __post_init__(self) -> None:
        if self.iterations < 1 or (self.tau is not None and self.tau <= 0):
            raise ValueError(f"tau and iterations must be above zero, got {self.tau} and {self.iterations}.")

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        rows = stacked(updates)
        centre = state.trust.get("centre", torch.zeros(rows.shape[1]))
        tau = float(norms_of(rows - centre).quantile(0.5)) if self.tau is None else self.tau
        if tau == 0:  # most updates are the centre itself: nothing pulls it away
            tau = float(torch.finfo(torch.float32).tiny)
        found = robust.centred_clipping(rows, tau, self.iterations, centre)
        judged = judge_merged(updates, found)
        return Judgement(judged.updates, judged.weights, judged.say, {"centre": found.vector})
