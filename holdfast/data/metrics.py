"""Metrics: what a model is measured by, as sums that add up over batches and clients.

A task has several; the first one leads: closing lines, reports and comparisons show it. A metric that no sums make
(the area under a curve) is a `WholeMetric`: over several clients there is only the mean of its values, weighted by
samples, which is not its value over all of their samples together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

WORDS = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "balanced-accuracy": "balanced accuracy",
    "label-accuracy": "accuracy over labels",
    "f1": "F1",
    "brier": "Brier score",
    "ece": "calibration error",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R2",
    "deviance": "Poisson deviance",
    "c-index": "C-index",
}


@dataclass(frozen=True)
class Measure:
    """How the values of a metric are read: its name, its unit, and which way is better."""

    name: str
    unit: str = ""  # "%": a share from 0 to 1, shown as percent; others are put behind the number
    smaller_is_better: bool = False

    @property
    def is_share(self) -> bool:
        return self.unit == "%"

    @property
    def words(self) -> str:
        """The name as people read it; experiments and files have the key.

        >>> Measure("auroc").words, Measure("balanced-accuracy").words, Measure("my-own").words
        ('AUROC', 'balanced accuracy', 'my-own')
        """
        return WORDS.get(self.name, self.name)

    @property
    def title(self) -> str:
        """The name with its unit, as the title of a column or an axis.

        >>> ACCURACY.title, Measure("rmse", "mm").title, Measure("rmse").title
        ('accuracy in %', 'RMSE in mm', 'RMSE')
        """
        return f"{self.words} in {self.unit}" if self.unit else self.words

    def shown(self, value: float) -> float:
        """The value in its unit."""
        return 100 * value if self.is_share else value

    def number(self, value: float) -> str:
        """The value as it stands in a table, without its unit.

        >>> ACCURACY.number(0.8214), Measure("rmse").number(12.34567), Measure("rmse").number(1234.5)
        ('82.1', '12.3', '1234')
        """
        if self.is_share:
            return f"{self.shown(value):.1f}"
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"  # as the report's page rounds

    def text(self, value: float) -> str:
        """The value with its unit.

        >>> ACCURACY.text(0.8214), Measure("rmse", "mm").text(12.34567)
        ('82.1%', '12.3 mm')
        """
        gap = "" if self.is_share or not self.unit else " "
        return f"{self.number(value)}{gap}{self.unit}"

    def said(self, value: float) -> str:
        """The value with its unit and name; accuracy, which everyone expects, goes without its name.

        >>> ACCURACY.said(0.5), Measure("rmse", "mm").said(1.25)
        ('50.0%', 'RMSE 1.25 mm')
        """
        return self.text(value) if self == ACCURACY else f"{self.words} {self.text(value)}"

    def best(self, values: Iterable[float]) -> float:
        return min(values) if self.smaller_is_better else max(values)

    def loss(self, best: float, value: float) -> float:
        """How much worse a value is than the best: in points of a share, else relative to the best.

        >>> round(ACCURACY.loss(0.9, 0.7), 3), Measure("rmse", smaller_is_better=True).loss(2.0, 3.0)
        (0.2, 0.5)
        """
        lost = value - best if self.smaller_is_better else best - value
        return lost if self.is_share else lost / max(abs(best), 1e-12)


ACCURACY = Measure("accuracy", "%")


class Metric:
    """What a metric is made from: `sums` of outputs and labels, and the `value` that they make."""

    name: ClassVar[str]
    unit: ClassVar[str] = ""
    smaller_is_better: ClassVar[bool] = False
    adds_up: ClassVar[bool] = True  # whether sums of batches or clients make the value over all of their samples
    weighs: ClassVar[bool] = False  # whether `over` takes weights, where sums do not add up
    counted: ClassVar[int] = 1  # how many of the last sums are the number of samples, which replacing does not move

    @property
    def width(self) -> int:
        """How many sums."""
        return 2

    @property
    def sensitivity(self) -> float | None:
        """How far the sums, but for the number of samples, can move (L2) if one sample is replaced; none: no bound."""
        return None

    @property
    def measure(self) -> Measure:
        return Measure(self.name, self.unit, self.smaller_is_better)

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        """The sums over these samples; those of two batches or clients add up, number by number."""
        raise NotImplementedError

    def value(self, sums: Sequence[float]) -> float:
        """What the sums come to; NaN where they come to nothing, as without samples."""
        raise NotImplementedError

    def count(self, sums: Sequence[float]) -> float:
        """Of how many samples these sums are."""
        return sums[-1]

    def possible(self, sums: Sequence[float]) -> bool:
        """Whether a client's sums, which are finite, can be true."""
        return True

    def mended(self, sums: Sequence[float]) -> list[float]:
        """The nearest sums that are possible, after noise."""
        return [max(0.0, one) for one in sums]


class WholeMetric(Metric):
    """A metric of all samples at once, from 0 to 1. Its sums are the value times the number of samples, and the number:
    so the sums of several clients make the mean of their values, weighted by samples.
    """

    adds_up = False

    def over(self, output: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
        """The value over these samples; NaN where there is none."""
        raise NotImplementedError

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        return self.times(self.over(output, labels) if len(labels) else math.nan, len(labels))

    def times(self, value: float, count: int) -> list[float]:
        return [value * count, float(count)] if math.isfinite(value) else [0.0, 0.0]

    def value(self, sums: Sequence[float]) -> float:
        total, count = sums
        return total / count if count else math.nan

    def possible(self, sums: Sequence[float]) -> bool:
        total, count = sums
        return 0 <= total <= count


def moving_sums(metrics: Sequence[Metric]) -> tuple[list[Metric], int, float]:
    """The metrics that noise can cover, how many of their sums one sample can move, and how far (L2)."""
    able = [metric for metric in metrics if metric.sensitivity is not None]
    count = sum(metric.width - metric.counted for metric in able)
    return able, count, math.sqrt(sum((metric.sensitivity or 0.0) ** 2 for metric in able))


def value_of(metric: Metric, sums: Sequence[float]) -> float | None:
    """The value of a metric; none where it is not a finite number."""
    value = float(metric.value(sums))
    return value if math.isfinite(value) else None


def weighted_sums(metric: Metric, output: Tensor, labels: Tensor, weights: Tensor | None) -> list[float]:
    """The sums of a metric with each sample counting by its weight.

    >>> outputs, labels = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1, 1])
    >>> weighted_sums(Accuracy(), outputs, labels, torch.tensor([0.5, 0.5, 2.0]))
    [1.0, 3.0]
    """
    if weights is None or not len(labels):
        return metric.sums(output, labels)
    if isinstance(metric, WholeMetric):
        return metric.times(metric.over(output, labels, weights), len(labels))
    total = [0.0] * metric.width
    for weight in weights.unique():  # sums add up, so those of equal weight are summed at once
        at = weights == weight
        total = [a + float(weight) * b for a, b in zip(total, metric.sums(output[at], labels[at]), strict=True)]
    return total


def values_of(
    metrics: Sequence[Metric], output: Tensor, labels: Tensor, weights: Tensor | None = None
) -> dict[str, float]:
    """The metrics of some samples by name; those that come to nothing are left out."""
    found = {metric.name: value_of(metric, weighted_sums(metric, output, labels, weights)) for metric in metrics}
    return {name: value for name, value in found.items() if value is not None}


def right_or_wrong(output: Tensor, labels: Tensor) -> Tensor:
    """1 where the largest output is the label, else 0: its mean is the accuracy."""
    return (output.argmax(1) == labels).float()


class Accuracy(Metric):
    """The share of samples whose largest output is their class.

    >>> outputs = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    >>> Accuracy().sums(outputs, torch.tensor([0, 1, 1]))
    [2.0, 3.0]
    """

    name = ACCURACY.name
    unit = ACCURACY.unit
    sensitivity = 1.0

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        return [float(right_or_wrong(output, labels).sum(dtype=torch.float64)), float(len(labels))]

    def value(self, sums: Sequence[float]) -> float:
        right, count = sums
        return right / count if count else math.nan

    def possible(self, sums: Sequence[float]) -> bool:
        right, count = sums
        return 0 <= right <= count and count >= 1

    def mended(self, sums: Sequence[float]) -> list[float]:
        right, count = sums
        return [min(max(right, 0.0), count), count]


class Error(Metric):
    """A mean over samples of how far the output is from the number: the base of RMSE and MAE."""

    smaller_is_better = True

    def possible(self, sums: Sequence[float]) -> bool:
        total, count = sums
        return total >= 0 and count >= 1


class Rmse(Error):
    """The root of the mean squared error.

    >>> Rmse().value(Rmse().sums(torch.tensor([[1.0], [5.0]]), torch.tensor([[1.0], [2.0]])))  # sqrt((0 + 9) / 2)
    2.1213203435596424
    """

    name = "rmse"

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        return [float((output.double() - labels).square().sum()), float(len(labels))]

    def value(self, sums: Sequence[float]) -> float:
        total, count = sums
        return math.sqrt(total / count) if count else math.nan


class Mae(Error):
    """The mean absolute error."""

    name = "mae"

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        return [float((output.double() - labels).abs().sum()), float(len(labels))]

    def value(self, sums: Sequence[float]) -> float:
        total, count = sums
        return total / count if count else math.nan


class R2(Metric):
    """The share of the numbers' variance that the outputs explain: 1 - sum (y - o)^2 / sum (y - mean of y)^2.

    Of numbers that are all alike there is none.
    """

    name = "r2"
    width = 4

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        y = labels.double()
        squares = (output.double() - y).square().sum()
        return [float(squares), float(y.sum()), float(y.square().sum()), float(len(y))]

    def value(self, sums: Sequence[float]) -> float:
        squares, total, total_squares, count = sums
        spread = total_squares - total * total / count if count else 0.0
        return 1 - squares / spread if spread > 1e-12 * total_squares else math.nan

    def possible(self, sums: Sequence[float]) -> bool:
        squares, _, total_squares, count = sums
        return squares >= 0 and total_squares >= 0 and count >= 1


class Deviance(Error):
    """The mean Poisson deviance of counts whose rate is exp(output): 2 mean (y log(y / m) - y + m), m the rate.

    >>> output, counts = torch.tensor([[0.0], [0.0]]), torch.tensor([[1.0], [0.0]])  # a rate of 1: 0, and 2 x 1
    >>> Deviance().value(Deviance().sums(output, counts))
    1.0
    """

    name = "deviance"

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        log_rate, y = output.double(), labels.double()
        each = torch.xlogy(y, y) - y * log_rate - y + log_rate.exp()
        return [2 * max(float(each.sum()), 0.0), float(len(labels))]

    def value(self, sums: Sequence[float]) -> float:
        total, count = sums
        return total / count if count else math.nan


class CountMae(Mae):
    """The mean absolute error of the expected counts, exp(output)."""

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        return super().sums(output.double().exp(), labels)


class CountRmse(Rmse):
    """The root of the mean squared error of the expected counts, exp(output)."""

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        return super().sums(output.double().exp(), labels)
