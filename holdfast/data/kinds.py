"""Kinds of tasks: what a target is, and the loss, metrics and outputs that go with it.

A kind is one object without state. Another one (several labels, survival times) is a class like these, given to
`Task(kind=...)`; what needs classes says so itself (`needs_classes`) and is refused where a kind has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.data.metrics import R2, Accuracy, Mae, Metric, Rmse

Loss = Callable[[Tensor, Tensor], Tensor]  # mean over a batch of (model output, labels)


class Kind:
    """What a kind of task is made from. `classes` is the number of the task's class names, 0 where it has none."""

    name: ClassVar[str]
    has_classes: ClassVar[bool] = False  # trust by accuracy, digests and class-wise partitions need them
    answer: ClassVar[str] = "values"  # what a trained model's answers are called

    @property
    def loss(self) -> Loss:
        """The usual loss."""
        raise NotImplementedError

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The usual metrics, the leading one first."""
        raise NotImplementedError

    def outputs(self, classes: int) -> int:
        """How many numbers the model puts out for a sample."""
        raise NotImplementedError

    def read(self, labels: Tensor, classes: int, where: str) -> Tensor:
        """The labels as loss and metrics read them; what cannot be a target of this kind is refused."""
        raise NotImplementedError

    def check_output(self, output: Tensor, labels: Tensor) -> None:
        """Refuse a model's output that loss and metrics would misread."""

    def readout(self, output: Tensor) -> Tensor:
        """A model's output as its user reads it."""
        return output

    def words(self, classes: int) -> str:
        """What is predicted, in two words."""
        return self.name


class Classes(Kind):
    """One of several classes."""

    name = "classes"
    has_classes = True
    answer = "probabilities"

    @property
    def loss(self) -> Loss:
        return nn.functional.cross_entropy

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (Accuracy(),)

    def outputs(self, classes: int) -> int:
        return classes

    def read(self, labels: Tensor, classes: int, where: str) -> Tensor:
        """Whole numbers (N,), or soft labels (N, classes)."""
        if labels.ndim == 1 and (
            labels.is_floating_point() or not 0 <= int(labels.min()) <= int(labels.max()) < classes
        ):
            raise HoldfastError(f"{where}: labels must be whole numbers 0 to {classes - 1}, one for each class name.")
        return labels

    def readout(self, output: Tensor) -> Tensor:
        return torch.softmax(output, dim=1)

    def words(self, classes: int) -> str:
        return f"{classes} classes"


class Regression(Kind):
    """A number for each sample."""

    name = "regression"

    @property
    def loss(self) -> Loss:
        return nn.functional.mse_loss

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return Rmse(), Mae(), R2()

    def outputs(self, classes: int) -> int:
        return 1

    def read(self, labels: Tensor, classes: int, where: str) -> Tensor:
        """Numbers as float32 (N, 1): as wide as the output, since losses would pair (N,) with (N, 1) all with all."""
        if labels.ndim not in (1, 2) or labels.shape[1:].numel() != 1 or labels.is_complex():
            raise HoldfastError(f"{where}: expected one number for each sample, got shape {tuple(labels.shape)}.")
        numbers = labels.float().reshape(-1, 1)
        if not torch.isfinite(numbers).all():
            raise HoldfastError(f"{where}: some targets are NaN or infinite; mend or drop these samples.")
        return labels if labels.shape == numbers.shape and labels.dtype == numbers.dtype else numbers

    def check_output(self, output: Tensor, labels: Tensor) -> None:
        if output.shape != labels.shape:
            raise HoldfastError(
                f"model: it gives {tuple(output.shape)} for {len(labels)} samples of a regression, which needs one "
                f"number for each, {tuple(labels.shape)}."
            )


KINDS: dict[str, Kind] = {kind.name: kind for kind in (Classes(), Regression())}


def refuse_without_classes(kind: Kind, part: object, named: str, remedy: str) -> None:
    """Refuse a part that needs classes where there are none."""
    if getattr(part, "needs_classes", False) and not kind.has_classes:
        raise HoldfastError(f"{named} needs classes, and this task is of kind {kind.name!r}, without any; {remedy}.")
