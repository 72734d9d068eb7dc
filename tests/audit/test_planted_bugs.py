"""Audits find the bugs that benchmarks/audits.py plants, and pass right code; `make evidence` does it 60 times each."""

from __future__ import annotations

import math

import numpy as np
import pytest
from audits import BUGS, RIGHT
from scipy import stats

from holdfast.absence import FedDig
from holdfast.audit.canary_digests import audit_digest
from holdfast.audit.tradeoff import Audit, Scored, audit, best_accuracy, learnt, one_run_bound, proportion_above
from holdfast.core.errors import HoldfastError
from holdfast.digests.release import claim_of
from holdfast.privacy.accounting import delta_at
from holdfast.privacy.calibration import gaussian_ratio
from holdfast.privacy.counts import noised_counts
from holdfast.privacy.dp_sgd import DpSgd
from holdfast.privacy.dp_sgd import claim_of as steps_claim
from holdfast.privacy.noise import seeded, system


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    bug, audited, mode = BUGS[name]
    with bug():
        assert audited(mode, 500)


@pytest.mark.parametrize("name", RIGHT)
def test_right_code_raises_no_alarm(name: str) -> None:
    audited, mode = RIGHT[name]
    assert not audited(mode, 500)


def test_what_an_audit_says() -> None:
    options = FedDig(mode="dp-label-public", epsilon=3.0)
    found = audit_digest(options, claim_of(options, (64,), 10), 64, 500, seeded(0))["digest"]
    assert found.passed
    assert found.lower < 3.0 < found.would_find < 5.1
    assert str(found).startswith("not refuted")
    assert "would have found epsilon >= 4.7 with 95%" in str(found)
    nothing = audit_digest(FedDig(), claim_of(FedDig(), (64,), 10), 64, 40, seeded(0))["digest"]
    assert nothing.passed
    assert str(nothing).startswith("No epsilon is claimed")


# Counting -------------------------------------------------------------------------------------------------------


def gaussian(ratio: float, trials: int, seed: int) -> Scored:
    """The best test's scores against Gaussian noise: normal, m^2/2 to either side of 0, with deviation m."""
    draw = np.random.default_rng(seed)
    out, inside = (draw.normal(sign * ratio**2 / 2, ratio, trials) for sign in (-1, 1))
    return Scored(out, inside, (-1.5, 1.5))


def test_guesses_are_held_to_the_curve_of_gaussian_noise() -> None:
    claim = noised_counts([0.0], 1.0, 3.0, 1e-5, system())[1]
    assert best_accuracy(claim) == pytest.approx(stats.norm.cdf(claim.ratio / 2), abs=1e-6)
    found = [audit(claim, [gaussian(claim.ratio / share, 500, seed)]) for share in (1.0, 0.5) for seed in range(20)]
    assert sum(not one.passed for one in found[:20]) <= 1
    assert sum(not one.passed for one in found[20:]) >= 19
    assert all((one.lower <= one.claimed) == one.passed for one in found)
    power = found[0].would_find  # that it finds this epsilon 95 times in a hundred
    weak = [audit(claim, [gaussian(gaussian_ratio(power, 1e-5), 500, seed)]).passed for seed in range(60)]
    assert 1 <= sum(weak) <= 7


def test_an_end_of_the_curve_counts_too() -> None:
    """One record in ten leaves as it is: guesses are hardly better, but the best of them are certain."""
    claim = noised_counts([0.0], 1.0, 0.5, 1e-5, system())[1]
    scored = gaussian(claim.ratio, 2000, 0)
    scored.inside[:200] = 5.0
    assert not audit(claim, [Scored(scored.out, scored.inside, (-2.0, 2.0))]).passed


def test_the_curve_is_that_of_an_independent_accountant() -> None:
    steps = steps_claim(DpSgd(3.0), 2.0, 1.0, 1, system())
    for epsilon in (0.0, 0.5, 2.0):  # one step with every record in it: Gaussian noise, ratio 2 / 2
        gaussian_delta = stats.norm.cdf(0.5 - epsilon) - math.exp(epsilon) * stats.norm.cdf(-0.5 - epsilon)
        assert delta_at(steps, epsilon) == pytest.approx(gaussian_delta, rel=2e-3)


def test_a_leak_that_nobody_expected_is_learnt() -> None:
    draw = np.random.default_rng(0)
    rows = [draw.normal(size=(100, 3)) for _ in range(4)]
    for one in rows[:2]:
        one[:, 2] = draw.normal(size=100)
    rows[1][:, 1] += 9.0
    rows[3][:, 1] += 9.0
    found = learnt((rows[0], rows[1]), (rows[2], rows[3]))
    assert (found.inside > 0).all()
    assert (found.out <= 0).all()


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 17), (499, 1000), (999, 1000), (7, 7)])
def test_clopper_pearson_against_scipy(successes: int, trials: int) -> None:
    expected = stats.beta.ppf(0.995, successes + 1, trials - successes) if successes < trials else 1.0
    assert proportion_above(successes, trials, 0.005) == pytest.approx(expected, abs=1e-9)


def test_one_run_alone() -> None:
    """Without delta: the epsilon at which so many of a binomial's guesses are right with a chance of 1 %."""
    shown = one_run_bound(90, 100, 0.0)
    assert stats.binom.sf(89, 100, 1 / (1 + math.exp(-shown))) == pytest.approx(0.01, rel=1e-3)
    assert one_run_bound(90, 100, 1e-3) < shown


def test_few_trials_are_refused() -> None:
    claim = noised_counts([0.0], 1.0, 3.0, 1e-5, system())[1]
    with pytest.raises(HoldfastError, match="at least 40"):
        audit(claim, [gaussian(1.0, 10, 0)])
    assert isinstance(audit(claim, [gaussian(1.0, 20, 0)]), Audit)
