"""What a kind of target must say: its loss, metrics and outputs, and how its labels are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.data.metrics import Metric

Part = tuple[Tensor, Tensor, Tensor]  # positions among the samples, outputs, labels
Loss = Callable[[Tensor, Tensor], Tensor]  # mean over a batch of (model output, labels)


class Kind:
    """What a kind of task is made from. `classes` is the number of the task's class names, 0 where it has none."""

    name: ClassVar[str]
    has_classes: ClassVar[bool] = False  # trust by accuracy, digests and class-wise partitions need them
    has_names: ClassVar[bool] = False  # whether Task.class_names names something: the classes, or the labels
    answer: ClassVar[str] = "values"  # what a trained model's answers are called
    losses: ClassVar[Mapping[str, type]] = {}  # that an experiment may choose in place of the usual one

    @property
    def spec(self) -> str:
        """The kind as text, which `kind_of` reads."""
        return self.name

    @property
    def loss(self) -> Loss:
        """The usual loss."""
        raise NotImplementedError

    def metrics(self, classes: int) -> tuple[Metric, ...]:
        """The usual metrics, the leading one first."""
        raise NotImplementedError

    def all_metrics(self, classes: int) -> tuple[Metric, ...]:
        """Every metric that an experiment may choose."""
        return self.metrics(classes)

    def by_class(self, output: Tensor, labels: Tensor) -> list[Part]:
        """The part of each class or label, to be measured apart by `of_class`; none where there are neither."""
        return []

    def of_class(self, metrics: Sequence[Metric]) -> tuple[Metric, ...]:
        """What a class or label is measured by, of a task with these metrics."""
        return ()

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

    def columns(self, names: Sequence[str]) -> list[str]:
        """What each number of a readout is called."""
        return ["value"]

    def words(self, classes: int) -> str:
        """What is predicted, in two words."""
        return self.name


def numbers(labels: Tensor, where: str) -> Tensor:
    """Numbers as float32 (N, 1): as wide as the output, since losses would pair (N,) with (N, 1) all with all."""
    if labels.ndim not in (1, 2) or labels.shape[1:].numel() != 1 or labels.is_complex():
        raise HoldfastError(f"{where}: expected one number for each sample, got shape {tuple(labels.shape)}.")
    found = labels.float().reshape(-1, 1)
    if not torch.isfinite(found).all():
        raise HoldfastError(f"{where}: some targets are NaN or infinite; mend or drop these samples.")
    return labels if labels.shape == found.shape and labels.dtype == found.dtype else found


def refuse_other_shape(kind: Kind, output: Tensor, labels: Tensor, width: int) -> None:
    wanted = (len(labels), width)
    if tuple(output.shape) != wanted:
        many = "one number" if width == 1 else f"{width} numbers"
        raise HoldfastError(
            f"model: it gives {tuple(output.shape)} for {len(labels)} samples of a {kind.name}, which needs {many} for "
            f"each, {wanted}."
        )
