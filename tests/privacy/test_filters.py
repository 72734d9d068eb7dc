"""Adding up where budgets were chosen adaptively: by hand, against integrals and curves, and at the ledger."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.integrate import quad
from scipy.stats import norm

from holdfast.core.failures import Refusal
from holdfast.privacy.accounting import compose, steps_epsilon
from holdfast.privacy.calibration import gaussian_ratio
from holdfast.privacy.claim import Claim
from holdfast.privacy.counts import noised_counts
from holdfast.privacy.filters import (
    conversion,
    divergence,
    filtered_epsilon,
    order_for,
    pure_divergence,
    step_divergence,
)  # fmt: skip
from holdfast.privacy.ledger import Policy, read_ledger, read_policy, spend
from holdfast.privacy.noise import system

DELTA = 1e-5


def gaussian(epsilon: float) -> Claim:
    return noised_counts([10.0], 1.0, epsilon, DELTA, system())[1]


def pure(epsilon: float) -> Claim:
    return replace(gaussian(1.0), ratio=0.0, epsilon_pure=epsilon, epsilon_grid=0.0, delta_factor=1.0, delta_grid=0.0)


def steps(multiplier: float, rate: float, count: int) -> Claim:
    about = {"mode": "dp-sgd", "multiplier": multiplier, "rate": rate, "steps": count}
    return replace(pure(0.0), epsilon_features=1.0, **about)


@pytest.mark.parametrize(("noise", "rate", "order"), [(1.0, 0.1, 8.0), (2.0, 0.25, 12.5), (0.8, 0.02, 5.0)])
def test_a_step_of_dp_sgd_against_its_integral(noise: float, rate: float, order: float) -> None:
    def integrand(x: float) -> float:
        here, there = ((1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, at, noise) for at in (1, -1))
        return float(math.exp(order * math.log(here) + (1 - order) * math.log(there)))

    whole = quad(integrand, -8 * noise - 3, 8 * noise + 2 * order, limit=2000, epsabs=0)[0]
    exact = math.log(whole) / (order - 1)
    assert exact <= step_divergence(noise, rate, order) <= exact * (1 + 1e-5) + 1e-9


def test_randomised_response_by_hand() -> None:
    p, q = math.e / (1 + math.e), 1 / (1 + math.e)
    assert pure_divergence(1.0, 2.0) == pytest.approx(math.log(p**2 / q + q**2 / p))
    assert pure_divergence(1.0, 1e6) == pytest.approx(1.0, abs=1e-5)  # its largest loss


def test_a_filter_is_never_below_what_the_fixed_budgets_cost() -> None:
    mixed = [gaussian(1.0), pure(0.5), gaussian(0.7)]
    assert compose(mixed, DELTA) < filtered_epsilon(mixed, 2.0, DELTA, False) < 1.2 * compose(mixed, DELTA)
    assert filtered_epsilon(mixed, 2.0, DELTA, True) == math.inf  # another kind than the rule was fixed for
    trained = [steps(5.0, 0.25, 40)]
    fixed = steps_epsilon(5.0, 0.25, 40, DELTA)
    assert fixed < filtered_epsilon(trained, 3.0, DELTA, False) < 1.12 * fixed
    assert filtered_epsilon(trained, 3.0, DELTA, True) == math.inf
    one = gaussian(3.0)
    assert 3.0 < filtered_epsilon([one], 3.0, DELTA, True) < 3.03
    order, ratio = order_for(3.0, DELTA), gaussian_ratio(3.0, DELTA)
    assert divergence(one, order) == pytest.approx(order * ratio**2 / 2, rel=1e-3)
    others = (order / 1.05, order * 1.05)  # no order near it leaves more room
    assert all((3 - conversion(a, DELTA)) / a < (3 - conversion(order, DELTA)) / order for a in others)


def test_the_order_is_fixed_by_the_policy_and_divergences_add_up() -> None:
    claims = [gaussian(1.0), steps(5.0, 0.25, 8), pure(0.3), gaussian(0.5)]
    nothing = filtered_epsilon([steps(1e9, 1e-9, 1)], 3.0, DELTA, False)  # what conversion and grid alone cost
    parts = [filtered_epsilon([claim], 3.0, DELTA, False) - nothing for claim in claims]
    assert filtered_epsilon(claims, 3.0, DELTA, False) - nothing == pytest.approx(sum(parts))
    grids = [replace(gaussian(0.01), epsilon_grid=0.01)] * 2
    assert filtered_epsilon(grids, 3.0, DELTA, False) == math.inf  # more than was set aside


def test_the_ledger_refuses_by_the_filter(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('max_epsilon = 3.0\ndelta = 1e-5\nmodes = ["dp-sgd"]\nadaptive = true\n')
    policy = read_policy(tmp_path / "p.toml")
    plain = replace(policy, adaptive=False)
    for given, fits in ((plain, 7), (policy, 6)):  # by hand: how many releases of epsilon 1 fit
        ledger, name = tmp_path / f"{fits}.json", "a release"
        for _ in range(fits):
            spend(given, ledger, gaussian(1.0), name)
        with pytest.raises(Refusal, match="above max_epsilon = 3"):
            spend(given, ledger, gaussian(1.0), name)
        claims = read_ledger(ledger).claims
        assert len(claims) == fits
        assert given.total(claims) <= 3.0 < given.total([*claims, gaussian(1.0)])
    first = tmp_path / "first.json"
    spend(policy, first, gaussian(3.0), "chosen before any answer, it fits by its own claim")
    with pytest.raises(Refusal, match="above max_epsilon"):
        spend(policy, first, gaussian(0.001), "and nothing fits beside it")
    assert Policy(math.inf, DELTA, ("moments",), adaptive=True).total([gaussian(1.0)]) < 1.1  # no bound: no filter
