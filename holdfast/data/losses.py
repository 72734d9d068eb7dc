"""Losses that an experiment may choose in place of its kind's usual one: `loss = "focal:2"`, `"huber:1.0"`, ...

A loss is called with a batch of (outputs, labels) and gives a plain mean over the batch, so that the gradient of each
record is its own; one that compares records (Cox) says `separable = False`. Class weights are written down in the
experiment: they are public, and nobody's class counts are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Weighted:
    """Cross-entropy with a public weight for each class, in the order of the class names: mean of w_y (-log p_y).

    >>> even = torch.zeros(2, 2)  # p = 1/2: (1 + 3) / 2 x log 2
    >>> round(float(Weighted((1.0, 3.0))(even, torch.tensor([0, 1]))), 4)
    1.3863
    """

    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_weights(self.weights)

    def __call__(self, output: Tensor, labels: Tensor) -> Tensor:
        return _weighted_mean(-functional.log_softmax(output, 1), labels, self.weights)


@dataclass(frozen=True)
class Smoothed:
    """Cross-entropy with label smoothing: each target is (1 - s) of the truth and s shared by all classes alike.

    Szegedy et al., Rethinking the Inception Architecture, CVPR 2016.

    >>> sure = torch.tensor([[math.log(3.0), 0.0]])  # p = 3/4, 1/4: 0.9 (-log 3/4) + 0.1 (-log 1/4)
    >>> round(float(Smoothed(0.2)(sure, torch.tensor([0]))), 4)
    0.3975
    """

    smoothing: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must be in [0, 1), got {self.smoothing}.")

    def __call__(self, output: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(output, labels, label_smoothing=self.smoothing)


@dataclass(frozen=True)
class Focal:
    """Focal loss: mean of w_y (1 - p_y)^gamma (-log p_y), which makes little of what is known already.

    gamma = 0 is the cross-entropy. Lin et al., Focal Loss for Dense Object Detection, 2017.

    >>> round(float(Focal(2.0)(torch.zeros(1, 2), torch.tensor([0]))), 4)  # (1/2)^2 log 2
    0.1733
    """

    gamma: float = 2.0
    weights: tuple[float, ...] = ()  # of each class; none: all count alike

    def __post_init__(self) -> None:
        _check_gamma(self.gamma)
        if self.weights:
            _check_weights(self.weights)

    def __call__(self, output: Tensor, labels: Tensor) -> Tensor:
        log = functional.log_softmax(output, 1)
        return _weighted_mean((1 - log.exp()) ** self.gamma * -log, labels, self.weights)


@dataclass(frozen=True)
class LabelFocal:
    """Focal loss of several labels: mean over records and labels of (1 - p)^gamma (-log p), p that of the truth."""

    gamma: float = 2.0

    def __post_init__(self) -> None:
        _check_gamma(self.gamma)

    def __call__(self, output: Tensor, labels: Tensor) -> Tensor:
        log_yes, log_no = functional.logsigmoid(output), functional.logsigmoid(-output)
        yes, no = (1 - log_yes.exp()) ** self.gamma * -log_yes, (1 - log_no.exp()) ** self.gamma * -log_no
        return (labels * yes + (1 - labels) * no).mean()


@dataclass(frozen=True)
class Huber:
    """Squared error up to `delta`, absolute beyond: mean of r^2 / 2 where |r| <= delta, else delta (|r| - delta / 2).

    >>> Huber(1.0)(torch.tensor([[0.5], [3.0]]), torch.zeros(2, 1))  # (0.125 + 2.5) / 2
    tensor(1.3125)
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.delta < math.inf:
            raise ValueError(f"delta must be positive, got {self.delta}.")

    def __call__(self, output: Tensor, labels: Tensor) -> Tensor:
        return functional.huber_loss(output, labels, delta=self.delta)


def poisson(output: Tensor, labels: Tensor) -> Tensor:
    """The negative log-likelihood of counts whose rate is exp(output), without the term of labels alone.

    >>> round(float(poisson(torch.tensor([[math.log(2.0)]]), torch.tensor([[3.0]]))), 4)  # 2 - 3 log 2
    -0.0794
    """
    return functional.poisson_nll_loss(output, labels)


def _weighted_mean(losses: Tensor, labels: Tensor, weights: tuple[float, ...]) -> Tensor:
    """The mean over records of each one's weighted loss, from the losses (N, classes) that each class would have."""
    if weights:
        losses = losses * torch.tensor(weights, dtype=losses.dtype, device=losses.device)
    if labels.ndim == 1:
        return losses.gather(1, labels[:, None]).mean()
    return (labels * losses).sum(1).mean()  # soft labels


def _check_weights(weights: tuple[float, ...]) -> None:
    if not weights or not all(0 <= weight < math.inf for weight in weights) or not any(weights):
        raise ValueError("weights must be numbers of at least 0, one for each class, and not all 0.")


def _check_gamma(gamma: float) -> None:
    if not 0 <= gamma < math.inf:
        raise ValueError(f"gamma must be at least 0, got {gamma}.")


@dataclass(frozen=True)
class InUnits:
    """A squared loss of numbers in units of their public range's half, so that gradients do not depend on the unit.

    >>> float(InUnits(functional.mse_loss, 10.0)(torch.tensor([[30.0]]), torch.tensor([[10.0]])))
    4.0
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    unit: float

    def __call__(self, output: Tensor, labels: Tensor) -> Tensor:
        return self.loss(output, labels) / self.unit**2
