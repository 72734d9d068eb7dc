"""Gaussian calibration and the cost of the grid, against closed forms, dp-accounting and direct sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from holdfast.core.errors import HoldfastError
from holdfast.privacy import calibration


@pytest.mark.parametrize(("epsilon", "sigma"), [(10.0, 1.060), (3.0, 2.950), (1.0, 7.914)])
def test_known_sigmas(epsilon: float, sigma: float) -> None:
    assert math.sqrt(4.5) / calibration.gaussian_ratio(epsilon, 1e-5) == pytest.approx(sigma, abs=5e-4)


@given(st.floats(0.05, 30), st.floats(1e-9, 0.1))
def test_ratio_and_epsilon_are_inverse_and_on_the_safe_side(epsilon: float, delta: float) -> None:
    ratio = calibration.gaussian_ratio(epsilon, delta)
    assert calibration.gaussian_delta(epsilon, ratio) <= delta
    assert calibration.gaussian_delta(epsilon, ratio * (1 + 1e-6)) > delta
    assert calibration.gaussian_epsilon(ratio, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "ratio"), [(0.0, 0.3), (1.0, 1.0), (3.0, 2.0), (10.0, 3.0)])
def test_delta_is_the_hockey_stick_integral(epsilon: float, ratio: float) -> None:
    def excess(x: float) -> float:
        return max(0.0, stats.norm.pdf(x, ratio) - math.exp(epsilon) * stats.norm.pdf(x))

    start = epsilon / ratio + ratio / 2
    value, _ = integrate.quad(excess, start, start + 40, epsabs=1e-14)
    assert calibration.gaussian_delta(epsilon, ratio) == pytest.approx(value, rel=1e-6)


def test_a_huge_epsilon_does_not_overflow() -> None:
    assert 0 <= calibration.gaussian_delta(5000.0, 10.0) < 1e-10
    assert calibration.gaussian_delta(1.0, 0.0) == 0.0
    assert calibration.gaussian_epsilon(100.0, 1e-5) > 5000


@pytest.mark.parametrize("scale", [4.0, 5.5, 20.0])
@pytest.mark.parametrize("shift", [(3, 0), (4, 4), (-9, 2)])
def test_grid_cost_covers_two_dimensions_of_discrete_noise(scale: float, shift: tuple[int, int]) -> None:
    """The exact delta of discrete noise in the plane, summed up, stays within continuous delta and the cost."""
    ratio = math.hypot(*shift) / scale
    reach = np.arange(-int(14 * scale), int(14 * scale) + 1)
    one = np.exp(-(reach**2) / (2 * scale**2))
    moved = [np.exp(-((reach - s) ** 2) / (2 * scale**2)) for s in shift]
    p = np.outer(one, one) / one.sum() ** 2
    q = np.outer(*moved) / one.sum() ** 2
    extra, factor, tail = calibration.grid_cost([(2, scale)], ratio)
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        exact = float(np.maximum(p - math.exp(epsilon + extra) * q, 0).sum())
        assert exact <= factor * calibration.gaussian_delta(epsilon, ratio) + tail + 1e-15


@given(st.floats(4, 50), st.integers(-400, 400))
def test_the_two_bounds_in_the_proof(scale: float, k: int) -> None:
    t = np.linspace(-0.5, 0.5, 2001)
    ratio = float(integrate.simpson(np.exp(-(2 * k * t + t * t) / (2 * scale**2)), x=t))
    assert -1 / (8 * scale**2) <= math.log(ratio) + 1e-12
    assert math.log(ratio) <= k * k / (8 * scale**4) + 1e-12


def test_grid_cost_by_hand() -> None:
    """One coordinate, scale 10, ratio 1: a = 1/800, r^2 = 1 + 2 sqrt(60) + 120, b = (r + 1)^2/800."""
    extra, factor, tail = calibration.grid_cost([(1, 10.0)], 1.0)
    radius = math.sqrt(121 + 2 * math.sqrt(60))
    assert extra == pytest.approx((1 + (radius + 1) ** 2) / 800, rel=1e-8)
    assert factor == pytest.approx(math.exp(1 / 800))
    assert tail == pytest.approx(math.exp(-60))


def test_refusals() -> None:
    with pytest.raises(HoldfastError, match="smaller epsilon"):
        calibration.grid_cost([(1, 3.9)], 1.0)
    with pytest.raises(HoldfastError, match="positive"):
        calibration.gaussian_ratio(0.0, 1e-5)
    with pytest.raises(HoldfastError, match="delta"):
        calibration.gaussian_ratio(1.0, 0.0)
    with pytest.raises(HoldfastError, match="least that discrete"):
        calibration.discrete_epsilon(1.0, 1e-30, [(1, 100.0)])
