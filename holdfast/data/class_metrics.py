"""Metrics of classes and of labels (yes or no, several at a time): from confusion counts, from ranks, of probabilities.

With two classes the second one is the positive one: the ill, the event. `several` says that each output column is a
yes-or-no question of its own (labels), not one of the classes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from holdfast.data.metrics import Accuracy, Metric

BINS = 15  # of the calibration error
STEPS = 100  # of thresholds: 0.01, 0.02, ...


def chances(output: Tensor, several: bool) -> Tensor:
    """The probability of each class, or of each label."""
    return output.double().sigmoid() if several else output.double().softmax(1)


def truths(output: Tensor, labels: Tensor, several: bool) -> Tensor:
    """1 where a class or label is true, else 0, in the shape of the output; soft labels count for their likeliest."""
    if several:
        return (labels > 0.5).double()
    hard = labels if labels.ndim == 1 else labels.argmax(1)
    return torch.nn.functional.one_hot(hard, output.shape[1]).double()


def mean_defined(values: list[float]) -> float:
    """The mean of those that are defined; NaN if none is."""
    there = [value for value in values if math.isfinite(value)]
    return sum(there) / len(there) if there else math.nan


# From ranks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BalancedAccuracy(Metric):
    """The mean over classes of the share of its samples that is recognised; classes without samples are left out.

    Sums: of each class the right ones, then of each class all.

    >>> output = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> metric = BalancedAccuracy(2)
    >>> metric.value(metric.sums(output, torch.tensor([0, 0, 1, 1])))  # (2/2 + 1/2) / 2
    0.75
    """

    name: ClassVar[str] = "balanced-accuracy"
    unit: ClassVar[str] = "%"
    sensitivity: ClassVar[float] = 2.0  # at most one right one and one of all less in one class, one more in another
    counted: ClassVar[int] = 0

    classes: int

    @property
    def width(self) -> int:
        return 2 * self.classes

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        right, _, all_of = confusion(output, labels, several=False)
        return [*right, *all_of]

    def value(self, sums: Sequence[float]) -> float:
        parts = zip(sums[: self.classes], sums[self.classes :], strict=True)
        return mean_defined([right / count if count else math.nan for right, count in parts])

    def count(self, sums: Sequence[float]) -> float:
        return sum(sums[self.classes :])

    def possible(self, sums: Sequence[float]) -> bool:
        parts = zip(sums[: self.classes], sums[self.classes :], strict=True)
        return all(0 <= right <= count for right, count in parts) and self.count(sums) >= 1

    def mended(self, sums: Sequence[float]) -> list[float]:
        counts = [max(0.0, count) for count in sums[self.classes :]]
        if sum(counts) < 1:
            counts[0] += 1
        rights = [min(max(0.0, right), count) for right, count in zip(sums[: self.classes], counts, strict=True)]
        return [*rights, *counts]


@dataclass(frozen=True)
class F1(Metric):
    """2 x right / (called so + being so), at the likeliest class or a probability of one half.

    Of two classes that of the second; of more, and of labels, the mean (macro), those left out that neither are nor are
    called. Sums: of each column the right ones, those called so, those being so; last the number of samples.

    >>> output = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> round(F1(2).value(F1(2).sums(output, torch.tensor([0, 0, 1]))), 4)  # 2 x 1 / (2 + 1)
    0.6667
    """

    name: ClassVar[str] = "f1"

    classes: int
    several: bool = False

    @property
    def sensitivity(self) -> float:
        """Right, called and being so: one less in one class, one more in another; of labels each may change."""
        return math.sqrt(3 * self.classes) if self.several else math.sqrt(6)

    @property
    def width(self) -> int:
        return 3 * self.classes + 1

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        right, called, all_of = confusion(output, labels, self.several)
        return [*right, *called, *all_of, float(len(labels))]

    def value(self, sums: Sequence[float]) -> float:
        found = [2 * right / (called + are) if called + are else math.nan for right, called, are in self._by(sums)]
        return found[1] if self.classes == 2 and not self.several else mean_defined(found)

    def possible(self, sums: Sequence[float]) -> bool:
        most = sums[-1]
        return most >= 1 and all(
            0 <= right <= min(called, count) and max(called, count) <= most for right, called, count in self._by(sums)
        )

    def mended(self, sums: Sequence[float]) -> list[float]:
        most = sums[-1]
        called, are = (
            [min(max(0.0, one), most) for one in part] for part in list(zip(*self._by(sums), strict=True))[1:]
        )
        rights = [min(max(0.0, right), c, a) for right, c, a in zip(sums[: self.classes], called, are, strict=True)]
        return [*rights, *called, *are, most]

    def _by(self, sums: Sequence[float]) -> list[tuple[float, float, float]]:
        k = self.classes
        return list(zip(sums[:k], sums[k : 2 * k], sums[2 * k : 3 * k], strict=True))


def confusion(output: Tensor, labels: Tensor, several: bool) -> tuple[list[float], list[float], list[float]]:
    """Of each column: how many are right, are called so, and are so."""
    true = truths(output, labels, several)
    if several:
        called = (output > 0).double()
    else:
        called = torch.nn.functional.one_hot(output.argmax(1), output.shape[1]).double()
    return (true * called).sum(0).tolist(), called.sum(0).tolist(), true.sum(0).tolist()


class LabelAccuracy(Accuracy):
    """The share of all yes-or-no questions, over samples and labels, that are answered right at one half."""

    name = "label-accuracy"
    unit = "%"

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        right = (output > 0) == (labels > 0.5)
        return [float(right.double().mean(1).sum()), float(len(labels))]


@dataclass(frozen=True)
class AtThreshold(Metric):
    """A share of the positives or negatives of two classes, at a threshold of the second one's probability.

    Sums: how many positives, then negatives, have a probability in [0, 0.01), [0.01, 0.02), ...: so the threshold can
    be chosen afterwards. In a run it is the median over clients of what is best for each on its validation samples.
    """

    unit: ClassVar[str] = "%"
    width: ClassVar[int] = 2 * STEPS

    threshold: float = 0.5

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        step = (chances(output, several=False)[:, 1] * STEPS).long().clamp(0, STEPS - 1)
        true = truths(output, labels, several=False)[:, 1] > 0.5
        counts = (torch.bincount(step[which], minlength=STEPS) for which in (true, ~true))
        return [float(count) for side in counts for count in side.tolist()]

    def at(self, threshold: float) -> Self:
        return dataclasses.replace(self, threshold=threshold)

    def count(self, sums: Sequence[float]) -> float:
        return sum(sums)

    def possible(self, sums: Sequence[float]) -> bool:
        return all(count >= 0 for count in sums) and sum(sums) >= 1

    @property
    def _step(self) -> int:
        return round(self.threshold * STEPS)


class Sensitivity(AtThreshold):
    """The share of the positives whose probability reaches the threshold."""

    name = "sensitivity"

    def value(self, sums: Sequence[float]) -> float:
        positives = sums[:STEPS]
        return sum(positives[self._step :]) / sum(positives) if sum(positives) else math.nan


class Specificity(AtThreshold):
    """The share of the negatives whose probability stays below the threshold."""

    name = "specificity"

    def value(self, sums: Sequence[float]) -> float:
        negatives = sums[STEPS:]
        return sum(negatives[: self._step]) / sum(negatives) if sum(negatives) else math.nan


def best_threshold(sums: Sequence[float]) -> float | None:
    """The threshold with the largest sensitivity + specificity (Youden), of several the one nearest to one half; none
    where there are no positives or no negatives.

    >>> sums = [0.0] * 200
    >>> sums[70], sums[100 + 20], sums[100 + 50] = 2.0, 3.0, 1.0  # positives at .7; negatives at .2 and .5
    >>> best_threshold(sums)
    0.51
    """
    positives, negatives = torch.tensor(sums, dtype=torch.float64).view(2, STEPS)
    if not positives.sum() or not negatives.sum():
        return None
    reached = positives.flip(0).cumsum(0).flip(0) / positives.sum()
    below = (negatives.cumsum(0) - negatives) / negatives.sum()
    gain = (reached + below).tolist()
    best = max(gain)
    return min((abs(step / STEPS - 0.5), step / STEPS) for step in range(1, STEPS) if gain[step] >= best - 1e-12)[1]


# Of probabilities -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Brier(Metric):
    """The mean squared error of probabilities: of two classes that of the second (0 to 1), of more the sum over classes
    (0 to 2), of labels their mean.

    >>> Brier().value(Brier().sums(torch.zeros(1, 2), torch.tensor([1])))  # (1/2 - 1)^2
    0.25
    """

    name: ClassVar[str] = "brier"
    smaller_is_better: ClassVar[bool] = True
    sensitivity: ClassVar[float] = 2.0

    several: bool = False

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        squares = (chances(output, self.several) - truths(output, labels, self.several)).square()
        two = output.shape[1] == 2 and not self.several
        each = squares[:, 1] if two else squares.mean(1) if self.several else squares.sum(1)
        return [float(each.sum()), float(len(labels))]

    def value(self, sums: Sequence[float]) -> float:
        total, count = sums
        return total / count if count else math.nan

    def possible(self, sums: Sequence[float]) -> bool:
        total, count = sums
        return 0 <= total <= 2 * count and count >= 1

    def mended(self, sums: Sequence[float]) -> list[float]:
        total, count = sums
        return [min(max(total, 0.0), 2 * count), count]


class CalibrationError(Metric):
    """Expected calibration error: over 15 bins of probability, the mean distance of a bin's mean probability from the
    share that came true, weighted by its samples.

    Of two classes the probability is that of the second one, of more that of the likeliest one. Sums: of each bin its
    samples, their probabilities, those that came true. Naeini et al., 2015.

    >>> metric = CalibrationError()
    >>> metric.value(metric.sums(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1])))  # |1/2 - 3/4|
    0.25
    """

    name = "ece"
    smaller_is_better = True
    width = 3 * BINS

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        chance, true = confidence(output, labels)
        bins = (chance * BINS).long().clamp(0, BINS - 1)
        weights = (torch.ones_like(chance), chance, true)
        return [float(one) for w in weights for one in torch.bincount(bins, w, minlength=BINS).tolist()]

    def value(self, sums: Sequence[float]) -> float:
        counts, chance, true = torch.tensor(sums, dtype=torch.float64).view(3, BINS)
        return float((chance - true).abs().sum() / counts.sum()) if counts.sum() else math.nan

    def count(self, sums: Sequence[float]) -> float:
        return sum(sums[:BINS])

    def possible(self, sums: Sequence[float]) -> bool:
        counts, chance, true = sums[:BINS], sums[BINS : 2 * BINS], sums[2 * BINS :]
        within = all(0 <= part <= n + 1e-6 for side in (chance, true) for part, n in zip(side, counts, strict=True))
        return within and sum(counts) >= 1


def confidence(output: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The probability that is told, and 1 where it came true: of the second of two classes, else of the likeliest."""
    chance, true = chances(output, several=False), truths(output, labels, several=False)
    at = torch.ones(len(output), dtype=torch.long) if output.shape[1] == 2 else chance.argmax(1)
    return chance.gather(1, at[:, None])[:, 0], true.gather(1, at[:, None])[:, 0]
