"""FedDyn: local losses are bent until their minima agree (Acar et al., ICLR 2021).

Client i keeps g_i (at first 0) and minimises  L_i(w) - <g_i, w> + alpha/2 ||w - w_t||^2. Then

    g_i <- g_i - alpha (w_i - w_t)                                     at the client
    h   <- h - alpha (|P|/m) sum_i a_i (w_i - w_t)                     at the moderator; P took part, of m clients
    w   <- sum_i a_i w_i - h / alpha

With the printed a_i = 1/|P| the second line is the paper's  h - alpha/m sum_i (w_i - w_t).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from holdfast.algorithms.fedavg import FedAvg, Work, add, average
from holdfast.core.types import Tensors, Update
from holdfast.learning.loop import Correction
from holdfast.learning.settings import Learning


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """Dynamic regularisation. Large alpha or high learning rates make it diverge; the run then says so.

    >>> start, g = {"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}
    >>> FedDyn(alpha=0.5).correction(start, {}, g)("w", torch.tensor([2.0]))
    tensor([-2.5000])
    """

    weights: ClassVar[str] = "uniform"
    remembers: ClassVar[bool] = True
    alpha: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha must be positive, got {self.alpha}.")

    def begin(self, model: Tensors) -> Tensors:
        return {name: torch.zeros_like(weight) for name, weight in model.items()}

    def correction(self, start: Tensors, server: Tensors, memory: Tensors) -> Correction:
        if not memory:
            return lambda name, weight: self.alpha * (weight - start[name])
        return lambda name, weight: self.alpha * (weight - start[name]) - memory[name]

    def remember(self, delta: Tensors, work: Work, server: Tensors, memory: Tensors) -> Tensors:
        return add(memory or self.begin(delta), delta, -self.alpha)

    def aggregate(
        self,
        model: Tensors,
        updates: Sequence[Update],
        weights: Sequence[float],
        server: Tensors,
        clients: int,
        learning: Learning,
    ) -> tuple[Tensors, Tensors]:
        mean = average(updates, weights)
        h = add(server, mean, -self.alpha * len(updates) / clients)
        return add(add(model, mean), h, -1 / self.alpha), h
