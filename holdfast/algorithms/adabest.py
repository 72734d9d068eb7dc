"""AdaBest: FedDyn's bias estimates, but forgetting (Varno et al., ECCV 2022).

Client i keeps h_i (at first 0) and minimises  L_i(w) - <h_i, w>. With t' the last round it took part in,

    h_i <- h_i / (t - t') + mu (w_t - w_i)                   at the client
    m_t  = sum_i a_i w_i                                     at the moderator
    w   <- m_t - beta (m_{t-1} - m_t)

A step s that the moderator takes of its own (FedDig, a server optimiser) moves m_t along: the momentum is the clients',
and m_{t+1} - m_t would hold s a second time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from holdfast.algorithms.fedavg import FedAvg, Work, add, average
from holdfast.core.types import Tensors, Update
from holdfast.learning.loop import Correction
from holdfast.learning.settings import Learning


@dataclass(frozen=True)
class AdaBest(FedAvg):
    """Adaptive bias estimates at clients and moderator.

    >>> import torch
    >>> AdaBest().correction({}, {}, {"w": torch.tensor([3.0])})("w", torch.tensor([2.0]))
    tensor([-3.])
    """

    weights: ClassVar[str] = "uniform"
    remembers: ClassVar[bool] = True
    mu: float = 0.02
    beta: float = 0.8

    def __post_init__(self) -> None:
        if not 0 <= self.mu < math.inf or not 0 <= self.beta < 1:
            raise ValueError(f"mu must not be negative and beta must be in [0, 1), got {self.mu} and {self.beta}.")

    def begin(self, model: Tensors) -> Tensors:
        return dict(model)  # m_0 = w_0

    def correction(self, start: Tensors, server: Tensors, memory: Tensors) -> Correction | None:
        return (lambda name, weight: -memory[name]) if memory else None

    def remember(self, delta: Tensors, work: Work, server: Tensors, memory: Tensors) -> Tensors:
        if not memory:
            return {name: -self.mu * change for name, change in delta.items()}
        age = work.round - work.last
        return {name: memory[name] / age - self.mu * change for name, change in delta.items()}

    def aggregate(
        self,
        model: Tensors,
        updates: Sequence[Update],
        weights: Sequence[float],
        server: Tensors,
        clients: int,
        learning: Learning,
    ) -> tuple[Tensors, Tensors]:
        mean = add(model, average(updates, weights))
        return add(add(mean, mean, self.beta), server, -self.beta), mean

    def moved(self, server: Tensors, step: Tensors) -> Tensors:
        return add(server, step)
