"""What is learnt: samples, the kind of their targets, and the model, loss and metrics that go with them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.data.contract import Kind, Loss
from holdfast.data.kinds import Classes
from holdfast.data.metrics import Metric, right_or_wrong
from holdfast.data.tables.schema import Schema

__all__ = ["Kind", "Loss", "Metric", "Samples", "Task", "joined", "right_or_wrong"]


@dataclass(frozen=True)
class Samples:
    """Samples of one party. A model is called as model(*inputs).

    Images are (N, C, H, W), uint8 or float in [0, 1]; series (N, channels, steps) and vectors (N, D) are floats; texts
    are their UTF-8 bytes (N, longest), uint8 and filled up with 0.
    From Python, `Samples(x, y)` will do, and x and y may be tensors, NumPy arrays, pandas frames or lists.

    >>> Samples([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [0, 1, 0]).inputs[0].shape
    torch.Size([3, 2])
    """

    inputs: tuple[Tensor, ...]
    labels: Tensor  # the targets, as the task's kind reads them: classes (N,), numbers (N, 1), (time, event) (N, 2)
    facts: Mapping[str, Tensor] = field(default_factory=dict)  # whole numbers (N,) that no model reads: site, patient
    weights: Tensor | None = None  # how much each sample counts beside the others of its owner; none: all alike

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", as_tensor(self.labels, "labels"))
        rows = isinstance(self.inputs, list) and not all(np.shape(one)[:1] == (len(self),) for one in self.inputs)
        inputs = self.inputs if isinstance(self.inputs, tuple | list) and not rows else (self.inputs,)
        object.__setattr__(self, "inputs", tuple(as_tensor(one, "inputs") for one in inputs))
        object.__setattr__(self, "facts", {name: _whole(one, name) for name, one in self.facts.items()})
        if self.weights is not None:
            object.__setattr__(self, "weights", _weights(self.weights, len(self.labels)))

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor | slice) -> Samples:
        facts = {name: fact[index] for name, fact in self.facts.items()}
        weights = None if self.weights is None else self.weights[index]
        return Samples(tuple(tensor[index] for tensor in self.inputs), self.labels[index], facts, weights)

    def batch(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The inputs, as a model reads them, and labels of the samples of these numbers.

        `index_select` copies whole rows; `tensor[index]` goes from number to number, which takes four times as long.
        """
        return tuple(as_inputs(tensor.index_select(0, index)) for tensor in self.inputs), self.labels[index]


def joined(parts: Sequence[Samples]) -> tuple[tuple[Tensor, ...], Tensor]:
    """The inputs, as a model reads them, and labels of several owners' samples, one owner after the other."""
    inputs = tuple(as_inputs(torch.cat(tensors)) for tensors in zip(*(part.inputs for part in parts), strict=True))
    return inputs, torch.cat([part.labels for part in parts])


def as_inputs(tensor: Tensor) -> Tensor:
    """Values as a model reads them: bytes of images (N, C, H, W) become floats in [0, 1], other whole numbers int64.

    >>> as_inputs(torch.tensor([[7, 255]], dtype=torch.uint8)), as_inputs(torch.full((1, 1, 1, 1), 255).byte()).item()
    (tensor([[  7, 255]]), 1.0)
    """
    if tensor.dtype == torch.uint8 and tensor.ndim == 4:
        return tensor.float().div_(255.0)
    return tensor if tensor.is_floating_point() or tensor.dtype == torch.bool else tensor.long()


def as_tensor(values: Any, what: str) -> Tensor:
    """Values of a user's as a tensor: NumPy arrays and pandas frames too; wide numbers as PyTorch usually has them."""
    if isinstance(values, Tensor):
        return values
    try:
        array = np.array(values)  # a copy: what a frame or a file's bytes hold may be read-only
        tensor = torch.from_numpy(array)
    except (TypeError, ValueError):
        raise HoldfastError(f"samples: {what} must be numbers in a tensor, a NumPy array or a pandas frame.") from None
    if tensor.is_floating_point():
        return tensor.float()
    return tensor if tensor.dtype == torch.uint8 and what == "inputs" else tensor.long()


def _whole(values: Any, name: str) -> Tensor:
    fact = as_tensor(values, f"the fact {name!r}")
    if fact.ndim != 1 or fact.is_floating_point():
        raise HoldfastError(f"samples: the fact {name!r} must be one whole number for each sample.")
    return fact


def _weights(values: Any, count: int) -> Tensor:
    weights = as_tensor(values, "weights").float()
    if weights.shape != (count,) or not bool((weights.isfinite() & (weights >= 0)).all()):
        raise HoldfastError("samples: weights must be one number of at least 0 for each sample.")
    return weights


def evenly(samples: Samples) -> Samples:
    """The samples of one party with weights whose mean is 1, so that the party counts by its samples as all do."""
    if samples.weights is None or not len(samples):
        return samples
    mean = float(samples.weights.double().mean())
    if not mean:
        raise HoldfastError("samples: all weights of a party are 0, so it has nothing to learn from.")
    return replace(samples, weights=(samples.weights.double() / mean).float())


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
    fact_values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what the numbers of a fact stand for
    site: str | None = None  # the fact that says where a sample comes from: the natural partition
    person: str | None = None  # the fact that says whose a sample is: nobody is in two parts of a split
    schema: Schema | None = None  # of a table: what its columns are, which is public
    bare: bool = False  # the clients' samples are elsewhere, and what stands in `train` is made up

    def __post_init__(self) -> None:
        if self.loss is None:
            object.__setattr__(self, "loss", self.kind.loss)
        object.__setattr__(self, "class_names", tuple(self.class_names))
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

    @property
    def fingerprint(self) -> str:
        """SHA-256 of its data."""
        found = hashlib.sha256(f"{self.name} {self.kind.spec} {self.class_names}".encode())
        for samples in (self.train, self.test):
            own = () if samples.weights is None else (samples.weights,)
            facts = (samples.facts[name] for name in sorted(samples.facts))
            for tensor in (*samples.inputs, samples.labels, *facts, *own):
                found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                found.update(tensor.contiguous().numpy().tobytes())
        return found.hexdigest()
