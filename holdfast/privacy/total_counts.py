"""Sums of metrics over all members' records, for secure sums: noise is made once for all, where any member wants it.

The mechanism is that of counts.py, with the noise in shares (noise_shares.py). One record is one member's: replacing it
moves the total as it moves the member's own sums. These are rounded to a grid at each member, which can add one step to
every number of a difference. Shares have a scale of LEAST steps at least, so that what they cost is no number to
speak of, below 1e-60.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from holdfast.core.failures import Refusal
from holdfast.data.metrics import Metric, moving_sums
from holdfast.privacy.calibration import calibrate_gaussian, check_delta, check_epsilon
from holdfast.privacy.claim import Claim
from holdfast.privacy.counts import FINE, claim_of_counts
from holdfast.privacy.noise import Source, Whole, gaussian
from holdfast.privacy.noise_shares import share_scale
from holdfast.privacy.total_moments import promise_of_total

BITS = 62  # of each number: there are few
MOST = 2.0**48  # that a member's sum may be


@dataclass(frozen=True)
class Wanted:
    """The noise that a total of metrics is to have: epsilon and delta of each answer; infinite: none."""

    epsilon: float = math.inf
    delta: float = 1e-5

    @property
    def noisy(self) -> bool:
        return math.isfinite(self.epsilon)


def summed(metrics: Sequence[Metric], noisy: bool) -> list[Metric]:
    """The metrics whose sums make the value over all members: with noise those that have a bound for it to cover."""
    return [one for one in (moving_sums(metrics)[0] if noisy else metrics) if one.adds_up]


def scale_of(metrics: Sequence[Metric], wanted: Wanted, source: Source, colluding: int) -> tuple[Fraction, Claim]:
    """The scale of the total's noise, in steps, and what it promises."""
    check_epsilon(wanted.epsilon, "epsilon")
    check_delta(wanted.delta)
    _, width, reach = moving_sums(metrics)
    steps = math.ceil(reach * FINE + math.sqrt(width))
    scale, said = calibrate_gaussian(steps, width, wanted.epsilon, wanted.delta)
    claim = claim_of_counts(wanted.epsilon, wanted.delta, reach, steps, said, source)
    return scale, replace(claim, noise="discrete gaussian, in shares", notes=promise_of_total(colluding))


def as_whole(metrics: Sequence[Metric], told: dict[str, list[float]]) -> Whole:
    """A member's vector before noise: the sums that records move, then those that count records."""
    moving = [one for metric in metrics for one in told[metric.name][: metric.width - metric.counted]]
    counts = [one for metric in metrics for one in told[metric.name][metric.width - metric.counted :]]
    values = np.array([*moving, *counts], dtype=np.float64)
    if not (np.abs(values) < MOST).all():
        raise Refusal("internal", "secure sum: a metric of this client is no number, or too large for a total.")
    found: Whole = np.rint(values * FINE).astype(np.int64)
    return found


def with_share(exact: Whole, metrics: Sequence[Metric], scale: Fraction, honest: int, source: Source) -> Whole:
    """The vector with a share of the noise on what records move."""
    noisy = exact.copy()
    width = sum(metric.width - metric.counted for metric in metrics)
    noisy[:width] += gaussian(width, share_scale(scale, honest), source)
    return noisy


def sums_in(metrics: Sequence[Metric], total: Whole, noisy: bool) -> dict[str, list[float]]:
    """What a total says of each metric, the nearest possible sums where it has noise."""
    width = sum(metric.width - metric.counted for metric in metrics)
    moving, counts, found = iter(total[:width] / FINE), iter(total[width:] / FINE), {}
    for metric in metrics:
        one = [float(next(moving)) for _ in range(metric.width - metric.counted)]
        one += [float(next(counts)) for _ in range(metric.counted)]
        found[metric.name] = metric.mended(one) if noisy else one
    return found
