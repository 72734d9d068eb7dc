"""Metrics of classes and labels that go by ranks alone: the areas under the ROC and the precision-recall curve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.data.class_metrics import chances, mean_defined, truths
from holdfast.data.metrics import WholeMetric


def columns(output: Tensor, labels: Tensor, several: bool) -> list[tuple[Tensor, Tensor]]:
    """What ranks are made of: (scores, truth) of the positive class, of each class against the rest, of each label."""
    true = truths(output, labels, several) > 0.5
    if several:
        return list(zip(output.double().T, true.T, strict=True))
    if output.shape[1] == 2:
        return [(output[:, 1].double() - output[:, 0].double(), true[:, 1])]
    return list(zip(chances(output, several).T, true.T, strict=True))


@dataclass(frozen=True)
class Auroc(WholeMetric):
    """The area under the ROC curve: the chance that a positive scores higher than a negative, equal scores one half.

    Of two classes that of the second; of more, and of labels, the mean over each against the rest (macro), those left
    out that have no positive or no negative here.

    >>> output = torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]])
    >>> Auroc().over(output, torch.tensor([0, 1, 0]))
    1.0
    """

    name: ClassVar[str] = "auroc"

    weighs: ClassVar[bool] = True

    several: bool = False

    def over(self, output: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
        return mean_defined([area(scores, true, weights) for scores, true in columns(output, labels, self.several)])


def area(scores: Tensor, true: Tensor, weights: Tensor | None = None) -> float:
    """(sum of the positives' ranks - P (P + 1) / 2) / (P N), equal scores at their mean rank (Mann and Whitney).

    With weights each pair of a positive and a negative counts by the product of theirs.
    """
    positives, negatives = int(true.sum()), int((~true).sum())
    if not positives or not negatives or not scores.isfinite().all():
        return math.nan
    _, place, counts = scores.unique(return_inverse=True, return_counts=True)
    if weights is not None:
        won, lost = torch.where(true, weights, 0).double(), torch.where(true, 0, weights).double()
        at = torch.zeros(len(counts), dtype=torch.float64).index_add(0, place, lost)
        below = (at.cumsum(0) - at / 2)[place]  # negatives that score less, and half of those that score the same
        pairs = float(won.sum() * lost.sum())
        return float((won * below).sum()) / pairs if pairs else math.nan
    ranks = counts.cumsum(0).double() - (counts.double() - 1) / 2
    total = float(ranks[place][true].sum())
    return (total - positives * (positives + 1) / 2) / (positives * negatives)


@dataclass(frozen=True)
class Auprc(WholeMetric):
    """Average precision, the area under the steps of precision over recall: sum of (R_k - R_{k-1}) P_k.

    Of two classes that of the second, whose share is what guessing reaches; of more, and of labels, the mean (macro).

    >>> output = torch.tensor([[0.0, 3.0], [0.0, 2.0], [0.0, 1.0]])
    >>> round(Auprc().over(output, torch.tensor([1, 0, 1])), 4)  # (1/1 + 2/3) / 2
    0.8333
    """

    name: ClassVar[str] = "auprc"

    weighs: ClassVar[bool] = True

    several: bool = False

    def over(self, output: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
        both = columns(output, labels, self.several)
        return mean_defined([average_precision(scores, true, weights) for scores, true in both])


def average_precision(scores: Tensor, true: Tensor, weights: Tensor | None = None) -> float:
    each = torch.ones(len(true), dtype=torch.float64) if weights is None else weights.double()
    positives = float(each[true].sum())
    if not positives or not scores.isfinite().all():
        return math.nan
    order = scores.argsort(descending=True, stable=True)
    _, counts = scores[order].unique_consecutive(return_counts=True)
    last = counts.cumsum(0) - 1  # equal scores are one step
    found = (true[order].double() * each[order]).cumsum(0)[last]
    precision = found / each[order].cumsum(0)[last].clamp(min=1e-300)
    return float((found.diff(prepend=found.new_zeros(1)) * precision).sum()) / positives


# From confusion counts ------------------------------------------------------------------------------------------
