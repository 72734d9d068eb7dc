"""What releases cost together where each budget may have been chosen after seeing the answers before: privacy filters.

The rule is fixed by the policy alone, before the first release. Where all modes that it allows have Gaussian noise, the
squares of the ratios add up as a filter, with the same numbers as budgets fixed beforehand (Smith and Thakurta 2022).

Else releases are added up by their Rényi divergences at one order a, which is that best for Gaussian noise at the
policy's (max_epsilon, delta): if the divergences, each given what came before, add up to at most r on every path, the
whole is (a, r)-Rényi-private (Feldman and Zrnic 2021; Lécuyer 2021; Haney et al. 2023), and so (epsilon, delta)-private
with epsilon = r + log((a - 1)/a) - (log delta + log a)/(a - 1) (Canonne, Kamath and Steinke 2020). The best of several
orders, or of several accountants, would not do: which is best would depend on the answers.

    noise of ratio m              a m^2 / 2
    epsilon-private at delta 0    that of randomised response, which dominates it
    a step of DP-SGD              that of the pair in accounting.py, which dominates it, by the trapezoidal rule

For the grid's cost (calibration.grid_cost) a fixed share of epsilon and delta is set aside; its proof holds path by
path as long as their sums stay below that, and beyond it nothing is released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from holdfast.privacy.calibration import MARGIN, gaussian_epsilon
from holdfast.privacy.claim import Claim
from holdfast.privacy.noise import SEEDED

ASIDE = 0.005  # of epsilon and delta, for the grid
ORDERS = [1 + 1.05**i / 100 for i in range(250)]  # 1.01 to about 1,900
STEP = 0.01  # of the integral, in deviations of the noise
TAIL = 15.0  # how far it goes beyond the last peak


def filtered_epsilon(claims: Sequence[Claim], max_epsilon: float, delta: float, gaussian: bool) -> float:
    """Epsilon at delta of releases with adaptively chosen budgets; `gaussian`: whether there is no other noise at all.

    >>> filtered_epsilon([], 3.0, 1e-5, False)
    0.0
    """
    if not claims:
        return 0.0
    if any(not math.isfinite(claim.epsilon_total) or claim.entropy == SEEDED for claim in claims):
        return math.inf
    grid = ASIDE * max_epsilon
    left = delta * (1 - ASIDE) * math.exp(-grid)
    spent = sum(claim.epsilon_grid for claim in claims), sum(claim.delta_grid for claim in claims)
    if left <= 0 or spent[0] > grid or spent[1] > delta * ASIDE:
        return math.inf
    if gaussian:
        if any(claim.steps or claim.epsilon_pure for claim in claims):
            return math.inf  # another kind than the rule was fixed for
        return gaussian_epsilon(math.sqrt(sum(claim.ratio**2 for claim in claims)) * (1 + MARGIN), left) + grid
    order = order_for(max_epsilon, delta)
    return sum(divergence(claim, order) for claim in claims) + conversion(order, left) + grid


def conversion(order: float, delta: float) -> float:
    """What epsilon at delta is above a Rényi divergence of this order."""
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


@lru_cache(maxsize=16)
def order_for(epsilon: float, delta: float) -> float:
    """The order at which most Gaussian noise fits into (epsilon, delta)."""
    return max(ORDERS, key=lambda order: (epsilon - conversion(order, delta)) / order)


def divergence(claim: Claim, order: float) -> float:
    """An upper bound of a release's Rényi divergence."""
    total = order * claim.ratio**2 / 2
    if claim.epsilon_pure:
        total += pure_divergence(claim.epsilon_pure, order)
    if claim.steps:
        total += claim.steps * step_divergence(claim.multiplier, claim.rate, order)
    return total * (1 + MARGIN)


def pure_divergence(epsilon: float, order: float) -> float:
    """That of randomised response: log(p^a q^(1-a) + q^a p^(1-a)) / (a - 1), with p = e^epsilon q and p + q = 1."""
    rare = -math.log1p(math.exp(epsilon)) if epsilon < 600 else -epsilon
    often = epsilon + rare
    first, second = order * often + (1 - order) * rare, order * rare + (1 - order) * often
    return min(epsilon, (first + math.log1p(math.exp(second - first))) / (order - 1))


@lru_cache(maxsize=256)
def step_divergence(multiplier: float, rate: float, order: float) -> float:
    """That of (1-q) N(0, s^2) + q N(1, s^2) from (1-q) N(0, s^2) + q N(-1, s^2).

    The integrand is analytic in a strip around the real line and falls like a Gaussian beyond its last peak, at most
    2a - 1 shifts from 0, so that the trapezoidal rule is exact to far more digits than are added here.

    >>> round(step_divergence(2.0, 1.0, 3.0), 6)  # two Gaussians 2/s apart: a (2/s)^2 / 2
    1.500001
    """
    shift = 1 / multiplier
    reach = 2 * order * shift + TAIL
    x = np.arange(-reach, reach, STEP)
    here, there = (np.logaddexp(_log(1 - rate), _log(rate) + sign * shift * x - shift**2 / 2) for sign in (1, -1))
    exponent = order * here + (1 - order) * there - x**2 / 2
    top = float(exponent.max())
    whole = top + math.log(float(np.exp(exponent - top).sum()) * STEP / math.sqrt(2 * math.pi))
    return max(0.0, whole) / (order - 1) * (1 + 1e-6)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
