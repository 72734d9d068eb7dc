"""What is learnt: samples, classes, and the model, loss and metric that go with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Samples:
    """Samples of one party. A model is called as model(*inputs); images are (N, C, H, W), uint8 or float in [0, 1]."""

    inputs: tuple[Tensor, ...]
    labels: Tensor  # whole-number classes (N,), or soft labels (N, classes)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> Samples:
        return Samples(tuple(tensor[index] for tensor in self.inputs), self.labels[index])

    def batch(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The inputs, as floats, and labels of some samples."""
        return tuple(_floats(tensor[index]) for tensor in self.inputs), self.labels[index]


def _floats(tensor: Tensor) -> Tensor:
    return tensor.float().div_(255.0) if tensor.dtype == torch.uint8 else tensor


Loss = Callable[[Tensor, Tensor], Tensor]  # mean over a batch of (model output, labels)
Metric = Callable[[Tensor, Tensor], Tensor]  # one value in [0, 1] for each sample


def right_or_wrong(output: Tensor, labels: Tensor) -> Tensor:
    """1 where the largest output is the label, else 0: its mean is the accuracy."""
    return (output.argmax(1) == labels).float()


@dataclass(frozen=True)
class Task:
    """One contract: data, model, loss and metric. The moderator keeps `test`; `train` is dealt out to the clients."""

    name: str
    train: Samples
    test: Samples
    class_names: tuple[str, ...]
    model: Callable[[], nn.Module] | None = None  # None: chosen by the shape of the input
    loss: Loss = nn.functional.cross_entropy
    metric: Metric = right_or_wrong

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's first input."""
        return tuple(self.train.inputs[0].shape[1:])
