"""What is learnt: samples, the kind of their targets, and the model, loss and metrics that go with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from holdfast.data.kinds import Classes, Kind, Loss
from holdfast.data.metrics import Metric, right_or_wrong

__all__ = ["Kind", "Loss", "Metric", "Samples", "Task", "right_or_wrong"]


@dataclass(frozen=True)
class Samples:
    """Samples of one party. A model is called as model(*inputs).

    Images are (N, C, H, W), uint8 or float in [0, 1]; series (N, channels, steps) and vectors (N, D) are floats; texts
    are their UTF-8 bytes (N, longest), uint8 and filled up with 0.
    """

    inputs: tuple[Tensor, ...]
    labels: Tensor  # the targets: whole-number classes (N,), soft labels (N, classes), or numbers (N, 1)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> Samples:
        return Samples(tuple(tensor[index] for tensor in self.inputs), self.labels[index])

    def batch(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The inputs, as a model reads them, and labels of some samples."""
        return tuple(as_inputs(tensor[index]) for tensor in self.inputs), self.labels[index]


def as_inputs(tensor: Tensor) -> Tensor:
    """Values as a model reads them: bytes of images (N, C, H, W) become floats in [0, 1], other whole numbers int64.

    >>> as_inputs(torch.tensor([[7, 255]], dtype=torch.uint8)), as_inputs(torch.full((1, 1, 1, 1), 255).byte()).item()
    (tensor([[  7, 255]]), 1.0)
    """
    if tensor.dtype == torch.uint8 and tensor.ndim == 4:
        return tensor.float().div_(255.0)
    return tensor if tensor.is_floating_point() or tensor.dtype == torch.bool else tensor.long()


@dataclass(frozen=True)
class Task:
    """One contract: data, kind, model, loss, metrics. The moderator keeps `test`; the clients are dealt `train`."""

    name: str
    train: Samples
    test: Samples
    class_names: tuple[str, ...] = ()  # only where there are classes
    model: Callable[[], nn.Module] | None = None  # None: chosen by the shape of the input
    loss: Loss = None  # type: ignore[assignment]  # None: the kind's usual one
    metrics: tuple[Metric, ...] = ()  # the first one leads; none: the kind's usual ones
    kind: Kind = field(default_factory=Classes)

    def __post_init__(self) -> None:
        if self.loss is None:
            object.__setattr__(self, "loss", self.kind.loss)
        object.__setattr__(self, "metrics", tuple(self.metrics) or self.kind.metrics)

    @property
    def classes(self) -> int:
        """How many classes there are; 0 where there are none."""
        return len(self.class_names)

    @property
    def outputs(self) -> int:
        """How many numbers a model puts out for a sample."""
        return self.kind.outputs(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's first input."""
        return tuple(self.train.inputs[0].shape[1:])
