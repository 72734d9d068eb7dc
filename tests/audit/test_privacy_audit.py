"""Attacks reach what theory says, and an audit passes true claims and fails false ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from holdfast.audit import statistics as audit
from holdfast.core.errors import HoldfastError
from holdfast.digests import moments as summary
from holdfast.privacy import mechanisms, noise
from holdfast.privacy import moment_noise as moments
from holdfast.privacy.grid import Grid


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


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 17), (499, 1000), (999, 1000), (7, 7)])
def test_clopper_pearson_against_scipy(successes: int, trials: int) -> None:
    expected = stats.beta.ppf(0.995, successes + 1, trials - successes) if successes < trials else 1.0
    assert audit.proportion_above(successes, trials, 0.005) == pytest.approx(expected, abs=1e-9)


def canary_release(epsilon: float, seed: int) -> tuple[object, object]:
    """A score for three known records and one canary: the first stage alone, along the difference of canaries."""
    known = np.array([[0.3, 0.4], [0.0, -1.0], [0.6, 0.0]])
    canaries = {False: (np.array([1.0, 0.0]), 0), True: (np.array([0.0, 1.0]), 1)}
    source, scales = noise.seeded(seed), moments.scales_for(epsilon, 1e-5, 2)[0]

    def score(inside: bool) -> float:
        z, label = canaries[inside]
        first, *_ = summary.stages(np.vstack([known, z]), np.array([0, 0, 0, label]), 2, scales, source)
        return float(first.counts[1] - first.counts[0] + first.sums[1, 1] - first.sums[0, 0])

    claim = summary.make(known, np.zeros(3, dtype=int), 2, epsilon=epsilon, delta=1e-5, source=source).claim
    return score, claim


def test_a_true_claim_passes_and_a_false_one_fails() -> None:
    score, claim = canary_release(20.0, 3)
    kept = {side: [score(side) for _ in range(400)] for side in (False, True)}  # type: ignore[operator]

    def replay() -> Callable[[bool], float]:
        runs = {side: iter(values) for side, values in kept.items()}
        return lambda side: next(runs[side])

    honest = audit.audit(claim, replay(), 400)  # type: ignore[arg-type]
    assert honest.passed
    assert 1.0 < honest.lower < honest.cap
    assert str(honest).startswith("not refuted")
    lying = dataclasses.replace(claim, epsilon_total=0.5)  # type: ignore[type-var]
    caught = audit.audit(lying, replay(), 400)  # type: ignore[arg-type]
    assert not caught.passed
    assert str(caught).startswith("REFUTED")


def test_an_audit_of_mixed_digests_passes() -> None:
    grid = Grid("l1", 1.0, 64)
    source, generator = noise.seeded(2), torch.Generator()

    def release(inside: bool) -> mechanisms.MixedDigests:
        x = np.array([[1.0 if inside else -1.0], [0.2]])
        return mechanisms.dp_label_public(
            x,
            np.array([0, 0]),
            1,
            spd=2,
            grid=grid,
            epsilon=2.0,
            delta=0.0,
            by_class=True,
            generator=generator,
            source=source,
        )

    found = audit.audit(release(True).claim, lambda inside: float(release(inside).sums[0, 0]), 1000)
    assert 0.8 < found.lower <= 2.0
    assert found.passed


def test_the_cap_is_what_perfect_separation_would_show() -> None:
    _, claim = canary_release(8.0, 3)
    found = audit.audit(claim, lambda inside: float(inside), 400)  # type: ignore[arg-type]
    assert found.lower == found.cap == pytest.approx(math.log((0.005 ** (1 / 200) - 1e-5) / (1 - 0.005 ** (1 / 200))))
    with pytest.raises(HoldfastError, match="at least 20"):
        audit.audit(claim, lambda inside: float(inside), 10)  # type: ignore[arg-type]
