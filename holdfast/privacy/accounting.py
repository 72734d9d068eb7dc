"""What several releases about the same records cost together.

Gaussian releases of ratios m_1, m_2, ... compose to one Gaussian of ratio sqrt(m_1^2 + m_2^2 + ...), exactly (Dong,
Roth, Su 2022). A release that is epsilon-private at delta = 0 (discrete Laplace: sensitivity/scale; randomised
response) is no worse than the randomised response of that epsilon, whose privacy-loss distribution joins the
Gaussian's. The costs of the grid (calibration.grid_cost) add up: its proof holds for the product of the releases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.errors import HoldfastError
from holdfast.privacy.calibration import MARGIN, gaussian_epsilon
from holdfast.privacy.claim import Claim
from holdfast.privacy.noise import SEEDED

INTERVAL = 1e-4  # width of the privacy-loss buckets; they are rounded up, so epsilon is never understated


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
    left = delta
    if ratio > 0:
        left = (delta - sum(claim.delta_grid for claim in claims)) / math.prod(claim.delta_factor for claim in claims)
        if left <= 0:
            return math.inf  # Gaussian noise promises nothing at delta = 0
    simple = sum(pure) + (gaussian_epsilon(ratio, left) if ratio > 0 else 0.0)
    parts = len(pure) + (ratio > 0)
    epsilon = min(simple, _by_loss_distributions(pure, ratio, left)) if parts > 1 and left > 0 else simple
    return epsilon + sum(claim.epsilon_grid for claim in claims)


def _by_loss_distributions(pure: Sequence[float], ratio: float, delta: float) -> float:
    try:
        from dp_accounting.pld import common, privacy_loss_distribution  # slow: only when it is needed
    except ImportError:
        raise HoldfastError(
            "accounting: releases of different kinds are added up with dp-accounting, which is not installed; "
            "install it (pip install dp-accounting) or release one kind only."
        ) from None
    losses = [
        privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=INTERVAL
        )
        for epsilon in pure
    ]
    if ratio > 0:
        losses.append(
            privacy_loss_distribution.from_gaussian_mechanism(
                1.0 / ratio, value_discretization_interval=INTERVAL, use_connect_dots=False
            )
        )
    total = losses[0]
    for loss in losses[1:]:
        total = total.compose(loss)
    return float(total.get_epsilon_for_delta(delta)) * (1 + MARGIN)
