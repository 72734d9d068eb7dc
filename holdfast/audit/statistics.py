"""The best test which of two records was used: the likelihood ratio.

The adversary knows every record but one, and that this one is either a or b. What is left of a release is then known
values plus noise, and the best test (Neyman, Pearson) compares log P(noise | b) - log P(noise | a) with a threshold.
For Gaussian noise of ratio m = |x_a - x_b| / scale it reaches AUC = Phi(m / sqrt 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.privacy.exact import Kind
from holdfast.privacy.moment_noise import (
    RADIUS,
    STEPS,
    Centres,
    First,
    Scales,
    Second,
    exact_first,
    exact_second,
    residuals,
)
from holdfast.privacy.noise import Source, gaussian, laplace, scale_at_least

Array = NDArray[np.float64]
AT_ONCE = 1 << 22  # numbers of noise held at a time


@dataclass(frozen=True)
class Membership:
    """How well the best test tells record a from record b."""

    auc: float
    tpr_at_1_percent: float
    tpr_at_01_percent: float


def scores(kind: Kind, difference: Array, scale: Array | float, noise: Array) -> Array:
    """log P(o | b) - log P(o | a) for o = x_a + noise, difference = x_b - x_a; one score for each row of noise.

    >>> scores("gaussian", np.array([2.0]), np.array([1.0]), np.array([[0.0], [2.0]])).tolist()
    [-2.0, 2.0]
    """
    if kind == "laplace":
        return np.asarray(((np.abs(noise) - np.abs(noise - difference)) / scale).sum(1))
    return np.asarray((difference * (2 * noise - difference) / (2 * scale**2)).sum(1))


def membership(kind: Kind, difference: NDArray[Any], scale: Array, trials: int, source: Source) -> Membership:
    """The best test on a release whose values change by `difference`, with fresh exact noise of these scales."""
    changed = difference != 0
    change, spread = difference[changed].astype(np.float64), np.broadcast_to(scale, difference.shape)[changed]
    draw = laplace if kind == "laplace" else gaussian
    told = np.zeros(2 * trials)
    for one in np.unique(spread):
        same = change[spread == one]
        for few in np.array_split(same, 1 + 2 * trials * len(same) // AT_ONCE):
            drawn = draw(2 * trials * len(few), scale_at_least(float(one)), source)
            noise = drawn.reshape(2 * trials, -1).astype(np.float64)
            noise[trials:] += few
            told += scores(kind, few, one, noise)
    return rates(told[:trials], told[trials:])


def rates(out: Array, inside: Array) -> Membership:
    """AUC and TPR at fixed FPR of a score that should be larger inside; ties count half, a tied threshold not at all.

    >>> rates(np.array([0.0, 1.0]), np.array([1.0, 2.0])).auc
    0.875
    """
    ordered = np.sort(out)
    below = np.searchsorted(ordered, inside, side="left")
    tied = np.searchsorted(ordered, inside, side="right") - below
    auc = float((below + tied / 2).mean() / len(out))

    def tpr(fpr: float) -> float:
        return float((inside > ordered[len(out) - 1 - int(fpr * len(out))]).mean())

    return Membership(auc, tpr(0.01), tpr(0.001))


def gaussian_auc(ratio: float) -> float:
    """AUC of the best test against Gaussian noise: Phi(m / sqrt 2).

    >>> [round(gaussian_auc(ratio), 2) for ratio in (2.0, 0.719, 0.268)]  # of epsilon 10, 3, 1 at delta 1e-5
    [0.92, 0.69, 0.58]
    """
    return 0.5 * math.erfc(-ratio / 2)


def stage_values(stage: First | Second) -> Array:
    """All numbers of a stage in one row."""
    return np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in vars(stage).values()])


def stage_spreads(classes: int, k: int, scales: Scales) -> tuple[Array, Array]:
    """The noise of each number of both stages, in the order of stage_values."""
    row, column = np.triu_indices(k)

    def triangle(scale: tuple[Fraction, Fraction]) -> Array:
        return np.where(row == column, float(scale[0]), float(scale[1]))

    counts, sums = np.ones(classes), np.ones(classes * k)
    first = [counts * float(scales.counts), sums * float(scales.sums)]
    second = [counts * float(scales.counts_2), sums * float(scales.sums_2)]
    second += [np.tile(triangle(scales.classwise), classes), triangle(scales.shared)]
    return np.concatenate(first), np.concatenate(second)


def stages_of(record: tuple[Array, int], classes: int, centres: Centres) -> tuple[Array, Array]:
    """What one record adds to each stage before its noise, given the centres that stage 1 led to."""
    values, label = np.rint(record[0] * STEPS).astype(np.int64)[None], np.array([record[1]])
    first = exact_first(values, label, classes)
    return stage_values(first), stage_values(exact_second(residuals(values, label, centres), label, classes))


def no_centres(classes: int, k: int) -> Centres:
    """The centres of a client with too few records to have any."""
    return Centres(np.zeros((classes, k)), np.full(classes, RADIUS))


def moment_change(
    a: tuple[Array, int], b: tuple[Array, int], classes: int, scales: Scales, centres: Centres | None = None
) -> tuple[Array, Array]:
    """How a moment digest's whole numbers change from record a to record b, and the noise of each."""
    centres = centres or no_centres(classes, len(a[0]))
    before, after = (np.concatenate(stages_of(record, classes, centres)) for record in (a, b))
    return after - before, np.concatenate(stage_spreads(classes, len(a[0]), scales))


def moment_ratio(
    a: tuple[Array, int], b: tuple[Array, int], classes: int, scales: Scales, centres: Centres | None = None
) -> float:
    """|x_a - x_b| over the moment digest's scales, for two (features, label): what the best test sees."""
    change, spread = moment_change(a, b, classes, scales, centres)
    return float(np.sqrt(((change / spread) ** 2).sum()))
