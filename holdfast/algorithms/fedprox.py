"""FedProx: a leash to the model that was sent (Li et al., MLSys 2020).

Client i minimises  L_i(w) + mu/2 ||w - w_t||^2,  so each gradient gets  + mu (w - w_t).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.algorithms.fedavg import FedAvg
from holdfast.core.types import Tensors
from holdfast.learning.loop import Correction


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term.

    >>> import torch
    >>> FedProx(mu=0.5).correction({"w": torch.tensor([1.0])}, {}, {})("w", torch.tensor([3.0]))
    tensor([1.])
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.mu < math.inf:
            raise ValueError(f"mu must not be negative, got {self.mu}.")

    def correction(self, start: Tensors, server: Tensors, memory: Tensors) -> Correction:
        return lambda name, weight: self.mu * (weight - start[name])
