"""FL-FDMS: the friend of whoever is missing sends its update twice ("Friends to help", 2023).

    M_ij  mean of cos(D_i, D_j) over the rounds in which both answered
    an absent i is replaced by the update of the present j with the largest M_ij

It needs members with alike data; where each hospital is the only one of its kind, the friend is a stranger. Whoever was
never there together with one who is has no stand-in. Oracle: the authors' `bpc_per.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.absence.base import AbsencePolicy, NoStandIns
from holdfast.context import Context
from holdfast.core.tensors import flat
from holdfast.core.types import State, Update


@dataclass(frozen=True)
class Friends(AbsencePolicy):
    """A missing client's update is that of the present client whose updates were most alike (FL-FDMS)."""

    def stand_ins(self, state: State, asked: Collection[int], context: Context) -> NoStandIns:
        return Doubled(state, context)

    def server_step(self, before: State, after: State, updates: Sequence[Update], context: Context) -> State:
        """Not a step: how alike those are who answered together."""
        real = [update for update in updates if not update.synthetic]
        absence = dict(after.absence)
        for one in real:
            total, together = likeness(after, one.client, context.clients)
            total, together = total.clone(), together.clone()
            for other in real:
                if other.client != one.client:
                    total[other.client] += cosine(one, other)
                    together[other.client] += 1
            absence |= {f"memory/{one.client}/likeness": total, f"memory/{one.client}/together": together}
        return replace(after, absence=absence)


@dataclass(frozen=True)
class Doubled(NoStandIns):
    """The updates of friends."""

    state: State
    context: Context

    def result(self, absent: Collection[int], received: Sequence[Update]) -> list[Update]:
        there = {update.client: update for update in received}
        found = []
        for client in sorted(absent):
            total, together = likeness(self.state, client, self.context.clients)
            known = [other for other in there if together[other]]
            if known:
                friend = max(known, key=lambda other: float(total[other] / together[other]))
                found.append(replace(there[friend], client=client, synthetic=True, signature=""))
        return found


def likeness(state: State, client: int, clients: int) -> tuple[Tensor, Tensor]:
    """The sum of a client's cosines with each other client, and of how many rounds."""
    nothing = torch.zeros(clients)
    kept = (state.absence.get(f"memory/{client}/{name}", nothing) for name in ("likeness", "together"))
    total, together = kept
    return total, together


def cosine(one: Update, other: Update) -> Tensor:
    names = list(one.delta)
    return torch.cosine_similarity(flat(one.delta, names), flat(other.delta, names), dim=0)
