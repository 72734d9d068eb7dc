"""FedAU: who comes rarely counts more when it comes (Wang and Ji, ICLR 2024).

    w <- w + sum_{i in S} (a_i |S| / N) omega_i D_i        a_i = 1/|S| as printed, so that each counts omega_i / N

omega_i is the mean length of client i's intervals so far: the rounds from one of its answers to the next, both ends in
the past, cut at `longest` (a cut interval counts, and a new one begins); 1 while there is none. For a member that has
left for ever it changes nothing, since it never comes back.

Rounds in which nobody answers are not counted. Oracle: IBM/fedau `main.py`, whose estimate this is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from holdfast.algorithms.fedavg import FedAvg, add, average
from holdfast.core.types import Tensors, Update
from holdfast.learning.settings import Learning


@dataclass(frozen=True)
class FedAU(FedAvg):
    """Updates weighted by how long their client is away between two of them.

    Client 0 comes in rounds 1 and 3, client 1 in round 2: intervals 1 and 2, so in round 4 client 0 has omega = 1.5.

    >>> one = [Update(c, {"w": torch.tensor([1.0])}, samples=1, steps=1) for c in (0, 1)]
    >>> model, kept = {"w": torch.tensor([0.0])}, {}
    >>> for present in (one[:1], one[1:], one[:1], one[:1]):
    ...     before = model["w"]
    ...     model, kept = FedAU().aggregate(model, present, [1.0], kept, 2, Learning())
    >>> model["w"] - before  # omega / N = 1.5 / 2
    tensor([0.7500])
    """

    weights: ClassVar[str] = "uniform"
    needs_each_update: ClassVar[str] = "weighs each by its client's past"
    longest: int = 50  # rounds, at which an interval is cut

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise ValueError(f"longest must be at least 1, got {self.longest}.")

    def aggregate(
        self,
        model: Tensors,
        updates: Sequence[Update],
        weights: Sequence[float],
        server: Tensors,
        clients: int,
        learning: Learning,
    ) -> tuple[Tensors, Tensors]:
        omega, count, running = (server.get(n, torch.zeros(clients)).clone() for n in ("omega", "count", "running"))
        scales = [
            weight * len(updates) / clients * (float(omega[update.client]) if count[update.client] else 1.0)
            for update, weight in zip(updates, weights, strict=True)
        ]
        running += 1
        ended = running >= self.longest
        ended[[update.client for update in updates]] = True
        omega = torch.where(ended, (count * omega + running) / (count + 1), omega)
        count, running = count + ended, torch.where(ended, 0.0, running)
        return add(model, average(updates, scales)), {"omega": omega, "count": count, "running": running}
