"""MimeLite: clients step with the federation's momentum, not with their own (Karimireddy et al., arXiv 2008.03606).

The moderator keeps the momentum m (at first 0) and sends it along; clients leave it as it is in all of their steps:

    w_i <- w_i - lr ((1 - beta) g + beta m)            g the batch's gradient; at the client
    c    = sum_i a_i grad f_i(w)                       over all of a client's samples, at the model that was sent
    m   <- (1 - beta) c + beta m,   w <- w + sum_i a_i (w_i - w)                            at the moderator

beta is the experiment's `momentum`. The gradient travels with the update, so a client tells twice as much, and passes
over its samples once more. It is computed in evaluation mode: norms by their running statistics, nothing dropped out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from holdfast.algorithms.fedavg import FedAvg, Work, add, average
from holdfast.core.types import Tensors, Update, weighted_sum
from holdfast.learning.optimizers import SharedMomentum
from holdfast.learning.settings import Learning


@dataclass(frozen=True)
class MimeLite(FedAvg):
    """FedAvg whose clients step with the federation's momentum."""

    needs_each_update: ClassVar[str] = "averages a gradient sent with each"
    needs_reach: ClassVar[bool] = True
    needs_gradient: ClassVar[bool] = True

    def begin(self, model: Tensors) -> Tensors:
        return {name: torch.zeros_like(weight) for name, weight in model.items()}

    def broadcast(self, server: Tensors) -> Tensors:
        return server

    def extra(self, model: Tensors) -> Tensors:
        return model

    def stepping(self, learning: Learning, server: Tensors) -> Learning:
        return replace(learning, optimizer=SharedMomentum(server))

    def enclose(self, delta: Tensors, work: Work, server: Tensors, memory: Tensors) -> Tensors:
        return work.gradient

    def aggregate(
        self,
        model: Tensors,
        updates: Sequence[Update],
        weights: Sequence[float],
        server: Tensors,
        clients: int,
        learning: Learning,
    ) -> tuple[Tensors, Tensors]:
        beta, gradient = learning.momentum, weighted_sum([update.extra for update in updates], weights)
        momentum = {name: (1 - beta) * gradient[name] + beta * m for name, m in server.items()}
        return add(model, average(updates, weights)), momentum
