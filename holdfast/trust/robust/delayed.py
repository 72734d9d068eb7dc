"""DeMoA, delayed momentum aggregation: a robust rule that sees every client in every round, there or away.

A robust rule withstands a share of hostile rows. Where members are away, the hostile may be the majority of those who
are there, though they are few among all. So the moderator keeps a momentum of each client, and the rule sees them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from holdfast.context import Context
from holdfast.core.types import State, Tensors, Update, pack, unpack
from holdfast.trust.base import Hearing, Judgement, Trust
from holdfast.trust.robust.clipping import clip_around
from holdfast.trust.robust.merging import judge_merged, stacked
from holdfast.trust.robust.prepared import followed
from holdfast.trust.robust.rules import NEEDS, check_hostile, hostile_of


@dataclass(frozen=True)
class Demoa(Trust):
    """A robust rule over the momenta of all clients, fresh or, of those who are away, cached and decayed.

        there:  m_i <- (1 - alpha p) m_i + alpha delta_i        away:  m_i <- (1 - alpha p) m_i
        c <- (1 - alpha p) c + alpha p                          delta = RobustAgg(m_1, ..., m_N) / c

    p is the share of clients that is there, as seen so far unless it is given; who was never there has m_i = 0. c, the
    same for all, makes up for the start at zero. `nnm` is nearest-neighbour mixing and the trimmed mean.

    Delayed Momentum Aggregation, arXiv 2509.02970 (which has no c).
    """

    merges_updates: ClassVar[bool] = True

    then: Literal["clipping", "nnm", "median", "trimmed", "geomedian", "mean"] = "clipping"
    alpha: float = 0.5
    p: float | None = None
    f: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1 or not (self.p is None or 0 < self.p <= 1):
            raise ValueError(f"alpha and p must be in (0, 1], got {self.alpha} and {self.p}.")

    def check(self, context: Context) -> None:
        if self.then in NEEDS:
            check_hostile(self.then, self.f, context.clients)

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        rows, clients = stacked(updates), hearing.context.clients
        heard = state.trust.get("heard", torch.zeros(2, dtype=torch.float64)) + torch.tensor([len(updates), clients])
        keep = 1 - self.alpha * (float(heard[0] / heard[1]) if self.p is None else self.p)
        made_up = state.trust.get("made_up", torch.zeros((), dtype=torch.float64)) * keep + (1 - keep)
        momentum: Tensors = {name: keep * m for name, m in unpack(state.trust, "momentum").items()}
        nothing = torch.zeros_like(rows[0])
        for update, row in zip(updates, rows, strict=True):
            momentum[str(update.client)] = momentum.get(str(update.client), nothing) + self.alpha * row
        known = torch.stack([momentum.get(str(client), nothing) for client in range(clients)]) / float(made_up)
        memory = {"heard": heard, "made_up": made_up, **pack(momentum=momentum)}
        if self.then == "clipping":
            found, centre = clip_around(known, state.trust)
            memory |= centre
        else:
            fits = hostile_of(self.then, self.f, clients) if self.then in NEEDS else 0
            found = followed(self.then, known, fits)
        return replace(judge_merged(updates, found, clients=range(clients)), memory=memory)
