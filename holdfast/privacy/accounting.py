"""What several releases about the same records cost together.

Gaussian releases of ratios m_1, m_2, ... compose to one Gaussian of ratio sqrt(m_1^2 + m_2^2 + ...), exactly (Dong,
Roth, Su 2022). A release that is epsilon-private at delta = 0 (discrete Laplace: sensitivity/scale; randomised
response) is no worse than the randomised response of that epsilon, whose privacy-loss distribution joins the
Gaussian's. The costs of the grid (calibration.grid_cost) add up: its proof holds for the product of the releases.

The first two rules hold as filters too, where later budgets depend on earlier answers (Smith and Thakurta 2022; Rogers
et al. 2016). Composed privacy-loss distributions, with mixed releases or steps of DP-SGD, are right for budgets that
were fixed beforehand, as they are within an experiment; docs/privacy-policy.md says what that assumes of several, and
filters.py adds up without that.

A step of DP-SGD takes each record into its batch with chance q, adds up gradients of length at most 1 (in units of the
clip bound) and adds N(0, s^2). If one record is replaced, its gradient g becomes g' and everything else stays. All such
steps are dominated by the pair P = (1-q) N(0, s^2) + q N(1, s^2), Q = (1-q) N(0, s^2) + q N(-1, s^2), and so is their
composition (Zhu, Dong, Wang 2022): this is dp-accounting's subsampled Gaussian for REPLACE_ONE. Twice the sensitivity
in the bound for adding a record would not do: that bound is not symmetric, and a replacement goes both ways.

Proof. Given which other records are in the batch, the outputs are (1-q) N(0) + q N(g) and (1-q) N(0) + q N(g'). For
a >= 1 their hockey-stick divergence is the largest value over sets S of q N(g)(S) - a q N(g')(S) - (a-1)(1-q) N(0)(S).
Let N(g)(S) = p, and t the number with p = N(1)(x > t). By Neyman and Pearson, N(0)(S) >= N(0)(x > t), as |g| <= 1, and
N(g')(S) >= N(-1)(x > t), as |g - g'| <= 2. So no pair does better than S = {x > t} does for P and Q. For a < 1 exchange
the two, which P and Q's symmetry allows. What the others add is the same on both sides, and mixing does not help.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.privacy.calibration import MARGIN, gaussian_delta, gaussian_epsilon
from holdfast.privacy.claim import Claim
from holdfast.privacy.noise import SEEDED

INTERVAL = 1e-4  # width of the privacy-loss buckets; they are rounded up, so epsilon is never understated
STEP_INTERVAL = 1e-3  # the same where there are steps of DP-SGD: connecting the dots makes up for it
Steps = tuple[tuple[float, float, int], ...]  # of DP-SGD: noise multiplier, sampling rate, how many


def compose(claims: Sequence[Claim], delta: float) -> float:
    """Epsilon at delta of all these releases together; infinite where one of them promises nothing.

    >>> compose([], 1e-5)
    0.0
    """
    if not 0 <= delta < 1:
        raise HoldfastError(f"delta: expected a number from 0 to below 1, got {delta!r}.")
    if any(not math.isfinite(claim.epsilon_total) or claim.entropy == SEEDED for claim in claims):
        return math.inf
    pure = [claim.epsilon_pure for claim in claims if claim.epsilon_pure > 0]
    ratio = math.sqrt(sum(claim.ratio**2 for claim in claims)) * (1 + MARGIN)
    steps = _steps_of(claims)
    left = delta
    if ratio > 0 or steps:
        left = (delta - sum(claim.delta_grid for claim in claims)) / math.prod(claim.delta_factor for claim in claims)
        if left <= 0:
            return math.inf  # Gaussian noise promises nothing at delta = 0
    grid = sum(claim.epsilon_grid for claim in claims)
    if steps:
        return _by_loss_distributions(tuple(sorted(pure)), ratio, steps, left) + grid
    simple = sum(pure) + (gaussian_epsilon(ratio, left) if ratio > 0 else 0.0)
    parts = len(pure) + (ratio > 0)
    if parts > 1 and left > 0:
        simple = min(simple, _by_loss_distributions(tuple(sorted(pure)), ratio, (), left))
    return simple + grid


def group_epsilon(claim: Claim, records: int) -> float:
    """Epsilon of one release for a person with so many records, at the same delta; infinite where it is not known.

    Replacing all of them moves what is noised by at most so many sensitivities, so the Gaussian part is that of a ratio
    as many times as large (not the epsilon: for epsilon 3 at delta 1e-5, five records cost 21, not 15), and a pure part
    is as many times as large. Batches drawn by chance (DP-SGD) are not covered. A promise for patients
    holds for all of a patient's records as it is.

    >>> from holdfast.privacy.counts import noised_counts
    >>> from holdfast.privacy.noise import system
    >>> claim = noised_counts([10.0], 1.0, 3.0, 1e-5, system())[1]
    >>> [round(group_epsilon(claim, k), 1) for k in (1, 2, 5, 10)]
    [3.0, 6.7, 21.1, 55.7]
    """
    if claim.for_patients:
        return claim.epsilon_total
    if claim.steps or not math.isfinite(claim.epsilon_total):
        return math.inf
    # The grid's cost holds (r + m)^2, at most records^2 times as much for a ratio of records x m (calibration.py).
    pure = records * claim.epsilon_pure + records**2 * claim.epsilon_grid
    if not claim.ratio:
        return pure
    return gaussian_epsilon(records * claim.ratio, (claim.delta - claim.delta_grid) / claim.delta_factor) + pure


def delta_at(claim: Claim, epsilon: float) -> float:
    """The delta at which one release is epsilon-private, for any epsilon: the claim's whole trade-off curve.

    >>> from holdfast.privacy.counts import noised_counts
    >>> from holdfast.privacy.noise import system
    >>> claim = noised_counts([10.0], 1.0, 3.0, 1e-5, system())[1]
    >>> [f"{delta_at(claim, epsilon):.1g}" for epsilon in (0.0, 1.0, 3.0)]
    ['0.3', '0.04', '1e-05']
    """
    pure, left = claim.epsilon_pure, max(0.0, epsilon - claim.epsilon_grid)
    if claim.ratio and not pure and not claim.steps:
        return min(1.0, claim.delta_factor * gaussian_delta(left, claim.ratio) + claim.delta_grid)
    if pure and not claim.ratio and not claim.steps:
        return max(0.0, (math.exp(pure) - math.exp(epsilon)) / (1 + math.exp(pure)))  # of randomised response
    losses = _losses((pure,) if pure else (), claim.ratio, _steps_of([claim]))
    return min(1.0, claim.delta_factor * float(losses.get_delta_for_epsilon(left)) + claim.delta_grid)


def steps_epsilon(multiplier: float, rate: float, steps: int, delta: float) -> float:
    """Epsilon at delta of so many steps of DP-SGD, one record replaced.

    >>> round(steps_epsilon(2.0, 1.0, 1, 1e-5), 2), round(gaussian_epsilon(2 / 2.0, 1e-5), 2)  # |g - g'| <= 2
    (4.38, 4.38)
    """
    return _by_loss_distributions((), 0.0, ((multiplier, rate, steps),), delta)


def _steps_of(claims: Sequence[Claim]) -> Steps:
    """The steps of DP-SGD in all claims, those of one kind together."""
    found: Counter[tuple[float, float]] = Counter()
    for claim in claims:
        if claim.steps:
            found[claim.multiplier, claim.rate] += claim.steps
    return tuple((multiplier, rate, count) for (multiplier, rate), count in sorted(found.items()))


@lru_cache(maxsize=256)
def _by_loss_distributions(pure: tuple[float, ...], ratio: float, steps: Steps, delta: float) -> float:
    return float(_losses(pure, ratio, steps).get_epsilon_for_delta(delta)) * (1 + MARGIN)


@lru_cache(maxsize=16)
def _losses(pure: tuple[float, ...], ratio: float, steps: Steps) -> Any:
    """The privacy-loss distribution of releases together."""
    common, privacy_loss_distribution = _accountant()
    interval = STEP_INTERVAL if steps else INTERVAL
    losses = [
        privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=interval
        )
        for epsilon in pure
    ]
    if ratio > 0:
        losses.append(
            privacy_loss_distribution.from_gaussian_mechanism(
                1.0 / ratio, value_discretization_interval=interval, use_connect_dots=bool(steps)
            )
        )
    losses += [_one_step(multiplier, rate).self_compose(count) for multiplier, rate, count in steps]
    total = losses[0]
    for loss in losses[1:]:
        total = total.compose(loss)
    return total


@lru_cache(maxsize=64)
def _one_step(multiplier: float, rate: float) -> Any:
    """The privacy-loss distribution of one step of DP-SGD, one record replaced."""
    _, privacy_loss_distribution = _accountant()
    from dp_accounting import NeighboringRelation

    return privacy_loss_distribution.from_gaussian_mechanism(
        multiplier,
        sampling_prob=rate,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
        value_discretization_interval=STEP_INTERVAL,
    )


def _accountant() -> tuple[Any, Any]:
    try:
        from dp_accounting.pld import common, privacy_loss_distribution  # slow: only when it is needed
    except ImportError:
        raise HoldfastError(
            "accounting: releases of different kinds, and steps of DP-SGD, are added up with dp-accounting, which is "
            "not installed; install it (pip install dp-accounting) or release one kind only."
        ) from None
    return common, privacy_loss_distribution
