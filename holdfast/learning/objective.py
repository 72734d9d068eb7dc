"""The objective: the one place where a loss is computed, for the epoch loop, DP-SGD and the tests alike.

An objective is called as objective(model, inputs, labels) and answers with the loss of each record, (n,), or with their
mean. An algorithm may put its own around the task's (`algorithm.objective`), with terms that see features, outputs, the
model that was sent, what the client remembers, or tensors that the moderator sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from holdfast.data.task import Loss

Objective = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]


@dataclass(frozen=True)
class TaskLoss:
    """The task's loss of the model's output."""

    loss: Loss = nn.functional.cross_entropy

    def __call__(self, model: nn.Module, inputs: tuple[Tensor, ...], labels: Tensor) -> Tensor:
        return self.loss(model(*inputs), labels)

    @property
    def separable(self) -> bool:
        return bool(getattr(self.loss, "separable", True))


def is_separable(objective: Objective) -> bool:
    """Whether each record's loss depends on that record alone.

    Where it does not (Cox's partial likelihood, contrastive terms), the objective says `separable = False`, and
    DP-SGD, which shortens each record's gradient, refuses it.
    """
    return bool(getattr(objective, "separable", True))
