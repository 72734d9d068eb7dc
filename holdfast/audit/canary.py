"""The strongest attack on a release by mode: two records, and the best test which of them was used.

The adversary knows every record but one, and that this one is a or b. The worst pair is the one that changes a release
most: for moments two unit vectors at right angles, of two classes (moments.py), for mixed features z and -z.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.audit import statistics as auditing
from holdfast.audit.statistics import Membership, gaussian_auc, moment_change, rates, scores
from holdfast.audit.tradeoff import proportion_above
from holdfast.digests.release_options import ReleaseOptions
from holdfast.privacy.claim import Claim
from holdfast.privacy.exact import Kind
from holdfast.privacy.moment_noise import Centres, scales_for
from holdfast.privacy.noise import Source

Array = NDArray[np.float64]
Record = tuple[Array, int]  # features, label
MOST_DRAWS = 20_000_000  # of noise, for one pair of records: a few seconds


@dataclass(frozen=True)
class Finding:
    """How well the best test tells two records apart, with 99 % confidence limits, and what the claim predicts."""

    who: str
    auc: float
    auc_limits: tuple[float, float]
    tpr_1: float
    tpr_1_limits: tuple[float, float]
    tpr_01: float
    tpr_01_limits: tuple[float, float]
    predicted: float | None  # AUC

    @property
    def better_than_predicted(self) -> bool:
        return self.predicted is not None and self.auc_limits[0] > self.predicted


def worst_pair(mode: str, k: int, classes: int = 2) -> tuple[Record, Record]:
    """The two records that are easiest to tell apart.

    >>> (a, _), (b, _) = worst_pair("moments", 3)
    >>> float(a @ b)
    0.0
    """
    one = np.zeros(k)
    one[0] = 1.0
    if mode != "moments" or k == 1 or classes == 1:
        return (one, 0), (-one, 0)
    return (one, 0), (np.roll(one, 1), 1)


def tell_apart(
    options: ReleaseOptions,
    claim: Claim,
    pair: tuple[Record, Record],
    classes: int,
    trials: int,
    source: Source,
    who: str,
    centres: Centres | None = None,
) -> Finding:
    """The best test on many releases that differ in one record; each has fresh noise.

    centres: what a moment digest's second stage measures from; none: those of a client with too few records.
    """
    (a, label_a), (b, label_b) = pair
    predicted: float | None = None
    if claim.mode == "paper":
        found = _paper(options, a, b, trials, source)
    elif claim.mode == "moments":
        scales = scales_for(options.true_epsilon, options.delta, len(a))[0]
        change, spread = moment_change((a, label_a), (b, label_b), classes, scales, centres)
        predicted = gaussian_auc(float(np.sqrt(((change / spread) ** 2).sum())))
        trials = min(trials, max(100, MOST_DRAWS // int(2 * (change != 0).sum())))
        found = auditing.membership("gaussian", change, spread, trials, source)
    else:
        kind: Kind = "laplace" if claim.noise.endswith("laplace") else "gaussian"
        step = claim.clip / (claim.sensitivity / 2)  # the sensitivity is two bounds, in grid steps
        change = np.rint((b - a) / step)
        spread = np.full(len(a), claim.scale)
        if kind == "gaussian":
            predicted = gaussian_auc(float(np.sqrt(((change / spread) ** 2).sum())))
        found = auditing.membership(kind, change, spread, trials, source)
    return with_limits(found, trials, predicted, who)


def _paper(options: ReleaseOptions, a: Array, b: Array, trials: int, source: Source) -> Membership:
    """Floating-point Laplace noise of scale tau / (S epsilon), tau being the largest feature; or none at all."""
    change = (b - a) / options.spd
    if options.epsilon is None:
        return Membership(1.0, 1.0, 1.0)
    scale = max(float(np.abs(a).max()), float(np.abs(b).max())) / (options.size * options.epsilon)
    noise = np.random.default_rng(source.words(4)).laplace(0.0, scale, (2 * trials, len(a)))
    spread = np.full(len(a), scale)
    without, within = (scores("laplace", change, spread, part) for part in (noise[:trials], noise[trials:] + change))
    return rates(without, within)


def with_limits(found: Membership, trials: int, predicted: float | None, who: str) -> Finding:
    """Confidence limits: Clopper and Pearson's for rates; for the AUC its largest possible variance, A (1 - A) / n."""
    reach = 2.576 * math.sqrt(max(found.auc * (1 - found.auc), 1.0 / trials) / trials)
    auc_limits = (max(0.0, found.auc - reach), min(1.0, found.auc + reach))
    limits = [_proportion(rate, trials) for rate in (found.tpr_at_1_percent, found.tpr_at_01_percent)]
    return Finding(
        who, found.auc, auc_limits, found.tpr_at_1_percent, limits[0], found.tpr_at_01_percent, limits[1], predicted
    )


def _proportion(rate: float, trials: int) -> tuple[float, float]:
    hits = round(rate * trials)
    return 1 - proportion_above(trials - hits, trials, 0.005), proportion_above(hits, trials, 0.005)
