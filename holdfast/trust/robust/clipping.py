"""Centred clipping: updates, or each client's momentum, are clipped around where the last aggregate went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.core.rows import Aggregate, norms_of
from holdfast.core.types import State, Tensors, Update, pack, unpack
from holdfast.trust.base import Hearing, Judgement, Trust
from holdfast.trust.robust import aggregates as robust
from holdfast.trust.robust.merging import judge_merged, stacked


def clip_around(
    rows: Tensor, memory: Tensors, tau: float | None = None, iterations: int = 1
) -> tuple[Aggregate, Tensors]:
    """Clipped differences from the last aggregate are averaged, and the rule's memory after it; without tau, to their
    median length."""
    centre = memory.get("centre", torch.zeros(rows.shape[1]))
    if tau is None:
        tau = float(norms_of(rows - centre).quantile(0.5))
    if tau == 0:  # most rows are the centre itself: nothing pulls it away
        tau = float(torch.finfo(torch.float32).tiny)
    found = robust.centred_clipping(rows, tau, iterations, centre)
    return found, {"centre": found.vector}


@dataclass(frozen=True)
class CentredClipping(Trust):
    """Clipped differences from the last aggregate are averaged; without tau, to their median length.

    With `momentum`, m_i = momentum m_i + (1 - momentum) delta_i takes the place of update delta_i (client momentum):
    what is a little hostile in every round adds up, what is noise does not. m_i starts at the client's first update.

    Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021.
    """

    merges_updates: ClassVar[bool] = True

    tau: float | None = None
    iterations: int = 1
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.iterations < 1 or (self.tau is not None and self.tau <= 0):
            raise ValueError(f"tau and iterations must be above zero, got {self.tau} and {self.iterations}.")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}.")

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        rows = stacked(updates)
        kept: Tensors = {}
        if self.momentum:
            kept = unpack(state.trust, "momentum")
            for place, update in enumerate(updates):
                before = kept.get(str(update.client), rows[place])
                kept[str(update.client)] = self.momentum * before + (1 - self.momentum) * rows[place]
            rows = torch.stack([kept[str(update.client)] for update in updates])
        found, memory = clip_around(rows, state.trust, self.tau, self.iterations)
        return replace(judge_merged(updates, found), memory={**memory, **pack(momentum=kept)})
