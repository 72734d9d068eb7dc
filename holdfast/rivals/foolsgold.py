"""FoolsGold: members whose updates always agree count less (Fung, Yoon, Beschastnikh, RAID 2020).

    s_i   sum of client i's updates so far          c_ij = cos(s_i, s_j),  v_i = max_{j != i} c_ij
    c_ij <- c_ij v_i / v_j  where v_i < v_j         honest members that resemble an attacker are pardoned
    a_i   proportional to  clip(logit(x_i / max x) + 1/2, 0, 1),   x_i = clip(1 - max_j c_ij, 0, 1)

It looks for many members under one will. Honest ones with alike data are punished as well, and a lone attacker has the
most weight of all; the jury counts near-duplicates as one vote instead. Rule as in the authors' `foolsgold.py`, where
the largest x is set to 0.99 before the logit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.core.tensors import flat
from holdfast.core.types import State, Update
from holdfast.trust.base import Hearing, Judgement, Trust, judgement


@dataclass(frozen=True)
class FoolsGold(Trust):
    """Members whose updates of all rounds are alike count less.

    >>> foolsgold(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))  # twins, and one of its own kind
    tensor([0., 0., 1.])
    """

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        names = list(updates[0].delta)
        memory = dict(state.trust)
        for update in updates:
            name, now = f"momentum/{update.client}", flat(update.delta, names)
            memory[name] = memory[name] + now if name in memory else now
        masses = foolsgold(torch.stack([memory[f"momentum/{update.client}"] for update in updates]))
        return judgement(updates, masses.tolist(), memory)


def foolsgold(sums: Tensor) -> Tensor:
    """The weights, at most 1, of clients with these sums of updates (n, d); all alike: all the same."""
    rows = torch.nn.functional.normalize(sums.double(), dim=1)
    like = rows @ rows.T
    like.fill_diagonal_(0)
    most = like.max(1).values
    pardoned = torch.where(most[:, None] < most[None, :], like * most[:, None] / most[None, :], like)
    alone = (1 - pardoned.max(1).values).clamp(0, 1)
    if float(alone.max()) < 1e-9:
        return torch.ones(len(sums))
    alone = alone / alone.max()
    alone = torch.where(alone == 1, 0.99, alone)
    return (torch.logit(alone) + 0.5).clamp(0, 1).float()
