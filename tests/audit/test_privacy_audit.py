"""Attacks reach what theory says."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from holdfast.audit import statistics as audit
from holdfast.privacy import moment_noise as moments
from holdfast.privacy import noise


@pytest.mark.parametrize("epsilon", [10.0, 3.0, 1.0])
def test_the_worst_canary_of_a_moment_digest(epsilon: float) -> None:
    """Two unit vectors at right angles, of two classes, reach the sensitivity of both stages at once."""
    scales, ratio, _ = moments.scales_for(epsilon, 1e-5, 2)
    found = audit.moment_ratio((np.array([1.0, 0.0]), 0), (np.array([0.0, 1.0]), 1), 2, scales)
    assert found == pytest.approx(ratio, rel=1e-3)
    assert audit.gaussian_auc(found) == pytest.approx({10.0: 0.92, 3.0: 0.69, 1.0: 0.58}[epsilon], abs=0.006)


def test_gaussian_membership_reaches_the_formula() -> None:
    difference = np.array([300, -400, 0])
    found = audit.membership("gaussian", difference, np.array([500.0]), 20_000, noise.seeded(0))
    assert found.auc == pytest.approx(audit.gaussian_auc(1.0), abs=0.01)
    expected = stats.norm.cdf(1.0 - stats.norm.ppf(0.99))
    assert found.tpr_at_1_percent == pytest.approx(expected, abs=0.02)
    assert found.tpr_at_01_percent == pytest.approx(stats.norm.cdf(1.0 - stats.norm.ppf(0.999)), abs=0.01)


def test_no_difference_is_a_coin_toss() -> None:
    found = audit.membership("laplace", np.zeros(3, dtype=int), np.array([5.0]), 500, noise.seeded(0))
    assert found == audit.Membership(0.5, 0.0, 0.0)


def test_the_published_digest_gives_everything_away() -> None:
    """l = 64, features up to tau, SpD 4, S eps = 100: a record moves its digest by up to 25 scales."""
    change = np.random.default_rng(0).integers(-250, 251, 64)  # thousandths of tau
    assert audit.membership("laplace", change, np.array([10.0]), 500, noise.seeded(0)).auc == 1.0


def test_laplace_scores_are_bounded_by_epsilon() -> None:
    difference = np.array([3.0, -4.0])
    draws = noise.laplace(2000, Fraction(10), noise.seeded(1)).reshape(-1, 2)
    found = audit.scores("laplace", difference, np.array([10.0]), draws.astype(float))
    assert np.abs(found).max() <= 0.7 + 1e-12
