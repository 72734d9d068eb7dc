"""The objective: the one place where a loss is computed, for the epoch loop, DP-SGD and the tests alike.

An objective is called as objective(model, inputs, labels) and answers with the loss of each record, (n,), or with their
mean. An algorithm may put its own around the task's (`algorithm.objective`), with terms that see features, outputs, the
model that was sent, what the client remembers, or tensors that the moderator sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.data.task import Loss

Objective = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]


@dataclass(frozen=True)
class TaskLoss:
    """The task's loss of the model's output: the mean over the batch, or that of each record."""

    loss: Loss = nn.functional.cross_entropy
    each: bool = False  # record: where records have weights

    def __call__(self, model: nn.Module, inputs: tuple[Tensor, ...], labels: Tensor) -> Tensor:
        output = model(*inputs)
        return record_losses(self.loss, output, labels) if self.each else self.loss(output, labels)

    @property
    def separable(self) -> bool:
        return bool(getattr(self.loss, "separable", True))


def record_losses(loss: Loss, output: Tensor, labels: Tensor) -> Tensor:
    """The loss of each record alone, (n,), from a loss that is a plain mean over a batch.

    >>> record_losses(nn.functional.mse_loss, torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1))
    tensor([1., 9.])
    """
    each: Tensor = torch.vmap(lambda one, label: loss(one[None], label[None]))(output, labels)
    return each


def is_separable(objective: Objective) -> bool:
    """Whether each record's loss depends on that record alone.

    Where it does not (Cox's partial likelihood, contrastive terms), the objective says `separable = False`, and
    DP-SGD, which shortens each record's gradient, refuses it.
    """
    return bool(getattr(objective, "separable", True))
