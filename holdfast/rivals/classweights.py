"""Class weights from what all clients' digests count (after the ratio loss: Wang, Xu, Wang, Zhu, AAAI 2021).

    L = mean_b alpha_{y_b} loss_b,    alpha_c = n / (C n_c)        n_c records of class c over all clients, of C classes

The paper estimates the composition by a monitor, C trainings a round on balanced data at the server, and weighs by
1 + 0.1 R_c; in the released code R_c comes from those trainings alone, not from the estimate. Digests tell the counts
themselves, which makes the monitor needless, so the weights here are the plain inverse shares. Classes that nobody has
weigh nothing. That a moderator knows the composition is a leak either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from holdfast.algorithms.fedavg import FedAvg
from holdfast.core.types import Tensors
from holdfast.learning.objective import Objective, TaskLoss


@dataclass(frozen=True)
class ClassWeights(FedAvg):
    """FedAvg with rare classes weighted up, by all clients' counts (absence = "mafl").

    >>> class_weights(torch.tensor([6.0, 2.0, 0.0]))
    tensor([0.6667, 2.0000, 0.0000])
    """

    needs_absence: ClassVar[str] = "mafl"

    def broadcast(self, server: Tensors) -> Tensors:
        return {name: server[name] for name in ("counts",) if name in server}

    def objective(self, task: Objective, start: Tensors, server: Tensors, memory: Tensors) -> Objective:
        if not server:  # round 1: no counts yet
            return task
        assert isinstance(task, TaskLoss)
        each, alpha = TaskLoss(task.loss, each=True), class_weights(server["counts"])

        def weighted(model: nn.Module, inputs: tuple[Tensor, ...], labels: Tensor) -> Tensor:
            losses = alpha[labels] * each(model, inputs, labels)
            return losses if task.each else losses.mean()

        return weighted


def class_weights(counts: Tensor) -> Tensor:
    """n / (C n_c), with C the classes that somebody has; 0 for the others."""
    there = counts > 0
    return torch.where(there, counts.sum() / (there.sum() * counts.clamp(min=1e-9)), 0.0)
