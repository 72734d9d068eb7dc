"""FedStale: how far old updates are trusted is a choice (Rodio and Neglia, ECAI 2024).

    v  = (beta / N) sum_j h_j + (1/N) sum_{i in S} (1 / p_i) (D_i - beta h_i)        S answered, of N
    w <- w + v,    h_i <- D_i for i in S                                             h_i = 0 before the first update

beta = 0 is FedAvg weighted by how rarely each answers, beta = 1 is FedVARP with known chances p_i. Here p_i is the
share of the rounds so far in which i answered. (1/N) stands for a_i |S| / N, so that a trust rule keeps its say.

The authors find that old updates hurt where some take part much less than others, which is what absence is. Public
code: one simulation credits other authors; in it p_i is known. A round in which nobody answers changes nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from holdfast.algorithms.fedavg import FedAvg, add
from holdfast.core.types import Tensors, Update, weighted_sum
from holdfast.learning.settings import Learning
from holdfast.rivals.fedvarp import kept, known_updates, less


@dataclass(frozen=True)
class FedStale(FedAvg):
    """Old updates count by beta, new ones by how rarely their client answers.

    Round 2, beta = 1/2: client 0 sent 4 and now 6 (p = 1), client 1 sent 2 and is away:
    (4 + 2) / 4 + (6 - 4 / 2) / 2 = 3.5.

    >>> known = {"memory/0/w": torch.tensor([4.0]), "memory/1/w": torch.tensor([2.0])}
    >>> known |= {"answered": torch.tensor([1.0, 1.0]), "rounds": torch.tensor([1.0])}
    >>> now = Update(0, {"w": torch.tensor([6.0])}, samples=1, steps=1)
    >>> FedStale(0.5).aggregate({"w": torch.tensor([0.0])}, [now], [1.0], known, 2, Learning())[0]
    {'w': tensor([3.5000])}
    """

    weights: ClassVar[str] = "uniform"
    needs_each_update: ClassVar[str] = "keeps each"
    beta: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must lie between 0 and 1, got {self.beta}.")

    def aggregate(
        self,
        model: Tensors,
        updates: Sequence[Update],
        weights: Sequence[float],
        server: Tensors,
        clients: int,
        learning: Learning,
    ) -> tuple[Tensors, Tensors]:
        answered = server.get("answered", torch.zeros(clients)).clone()
        answered[[update.client for update in updates]] += 1
        rounds = server.get("rounds", torch.zeros(1)) + 1
        known = known_updates(server)
        corrected = [less(update.delta, known.get(update.client), self.beta) for update in updates]
        scales = [
            weight * len(updates) / clients / float(answered[update.client] / rounds)
            for update, weight in zip(updates, weights, strict=True)
        ]
        found = add(model, weighted_sum(corrected, scales))
        for update in known.values():
            found = add(found, update, self.beta / clients)
        return found, {**server, **kept(updates), "answered": answered, "rounds": rounds}
