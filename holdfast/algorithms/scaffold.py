"""SCAFFOLD: control variates against client drift (Karimireddy et al., ICML 2020; option II).

The moderator keeps c, client i keeps c_i (both at first 0). Each gradient gets  + c - c_i.  After its steps

    c_i+ = c_i - c + (w_t - w_i) / (lr ||a||_1)                        at the client
    w   <- w + sum_i a_i (w_i - w),   c <- c + (|S|/N) sum_i a_i (c_i+ - c_i)      at the moderator; S took part, of N

||a||_1 is the number of steps K, as printed, for plain SGD; with momentum it is the reach of K steps
(`Learning.reach`), so that c_i+ stays a mean of gradients. The change c_i+ - c_i = -c + (w_t - w_i) / (lr ||a||_1) is
a function of the update, so it does not travel: the moderator works it out, and nobody can send a false one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from holdfast.algorithms.fedavg import FedAvg, Work, add, average
from holdfast.core.types import Tensors, Update, weighted_sum
from holdfast.learning.loop import Correction
from holdfast.learning.settings import Learning


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """Stochastic controlled averaging.

    >>> c, c_i = {"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}
    >>> Scaffold().correction({}, c, c_i)("w", torch.tensor([9.0]))
    tensor([-2.])
    """

    weights: ClassVar[str] = "uniform"
    remembers: ClassVar[bool] = True
    needs_each_update: ClassVar[str] = "works out a control variate of each"
    needs_reach: ClassVar[bool] = True

    def begin(self, model: Tensors) -> Tensors:
        return {name: torch.zeros_like(weight) for name, weight in model.items()}

    def broadcast(self, server: Tensors) -> Tensors:
        return server

    def correction(self, start: Tensors, server: Tensors, memory: Tensors) -> Correction:
        c_minus_ci = add(server, memory, -1.0) if memory else server
        return lambda name, weight: c_minus_ci[name]

    def remember(self, delta: Tensors, work: Work, server: Tensors, memory: Tensors) -> Tensors:
        change = variate_change(delta, work.steps, server, work.learning)
        return add(memory, change) if memory else change

    def aggregate(
        self,
        model: Tensors,
        updates: Sequence[Update],
        weights: Sequence[float],
        server: Tensors,
        clients: int,
        learning: Learning,
    ) -> tuple[Tensors, Tensors]:
        changes = [variate_change(update.delta, update.steps, server, learning) for update in updates]
        change = weighted_sum(changes, weights)
        return add(model, average(updates, weights)), add(server, change, len(updates) / clients)


def variate_change(delta: Tensors, steps: int, server: Tensors, learning: Learning) -> Tensors:
    """c_i+ - c_i."""
    reach = learning.lr * learning.reach(steps)
    return {name: -server[name] - change / reach for name, change in delta.items()}
