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
    """Samples of one party. A model is called as model(*inputs); images are (N, C, H, W), uint8 or float in [0, 1]."""

    inputs: tuple[Tensor, ...]
    labels: Tensor  # the targets, as the task's kind reads them: classes (N,), numbers (N, 1), (time, event) (N, 2)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> Samples:
        return Samples(tuple(tensor[index] for tensor in self.inputs), self.labels[index])

    def batch(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The inputs, as floats, and labels of some samples."""
        return tuple(_floats(tensor[index]) for tensor in self.inputs), self.labels[index]


def _floats(tensor: Tensor) -> Tensor:
    return tensor.float().div_(255.0) if tensor.dtype == torch.uint8 else tensor


@dataclass(frozen=True)
class Task:
    """One contract: data, kind, model, loss, metrics. The moderator keeps `test`; the clients are dealt `train`."""

    name: str
    train: Samples
    test: Samples
    class_names: tuple[str, ...] = ()  # of classes or labels; only where there are any
    model: Callable[[], nn.Module] | None = None  # None: chosen by the shape of the input
    loss: Loss = None  # type: ignore[assignment]  # None: the kind's usual one
    metrics: tuple[Metric, ...] = ()  # the first one leads; none: the kind's usual ones
    kind: Kind = field(default_factory=Classes)

    def __post_init__(self) -> None:
        if self.loss is None:
            object.__setattr__(self, "loss", self.kind.loss)
        object.__setattr__(self, "metrics", tuple(self.metrics) or self.kind.metrics(self.classes))

    @property
    def classes(self) -> int:
        """How many classes or labels there are; 0 where there are none."""
        return len(self.class_names)

    @property
    def outputs(self) -> int:
        """How many numbers a model puts out for a sample."""
        return self.kind.outputs(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's first input."""
        return tuple(self.train.inputs[0].shape[1:])
