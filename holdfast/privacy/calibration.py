"""How much Gaussian noise a guarantee costs, and what the step from the continuous to the discrete Gaussian costs.

Balle and Wang (2018): adding N(0, s^2) to a value of L2 sensitivity D is (epsilon, delta)-private exactly when
delta >= Phi(m/2 - epsilon/m) - e^epsilon Phi(-m/2 - epsilon/m), with m = D/s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from holdfast.core.errors import HoldfastError
from holdfast.privacy.noise import scale_at_least

TAIL = 60.0  # each part's noise leaves its ball with probability e^-60 at most
Noise = TypeVar("Noise")
MARGIN = 1e-9  # relative margin for the rounding of floating point in these formulas


def gaussian_delta(epsilon: float, ratio: float) -> float:
    """The smallest delta at which noise of ratio m = sensitivity / scale is epsilon-private.

    >>> round(gaussian_delta(0.0, 1.0), 4)  # 2 Phi(1/2) - 1
    0.3829
    """
    if ratio == 0.0:
        return 0.0
    first = _phi(ratio / 2 - epsilon / ratio)
    # Where e^epsilon overflows, the second term is left out: delta is then stated too large, never too small.
    second = math.exp(epsilon) * _phi(-ratio / 2 - epsilon / ratio) if epsilon < 700 else 0.0
    return max(0.0, first - second)


def _phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def gaussian_ratio(epsilon: float, delta: float) -> float:
    """The largest m = sensitivity / scale that is (epsilon, delta)-private.

    >>> [round(math.sqrt(4.5) / gaussian_ratio(epsilon, 1e-5), 3) for epsilon in (10.0, 3.0, 1.0)]
    [1.06, 2.95, 7.914]
    """
    check_epsilon(epsilon, "epsilon")
    check_delta(delta)
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon, high) <= delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(epsilon, middle) <= delta else (low, middle)
    return low * (1 - MARGIN)


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """The smallest epsilon that noise of this ratio reaches at delta, rounded up.

    >>> round(gaussian_epsilon(gaussian_ratio(3.0, 1e-5), 1e-5), 6)
    3.0
    """
    check_delta(delta)
    low, high = 0.0, 1.0
    while gaussian_delta(high, ratio) > delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(middle, ratio) <= delta else (middle, high)
    return high * (1 + MARGIN)


def grid_cost(parts: Sequence[tuple[int, float]], ratio: float) -> tuple[float, float, float]:
    """What discrete noise costs beyond continuous noise: (epsilon, factor on delta, delta).

    parts: for each scale s (in grid steps, at least 4) the number d of coordinates one record can change. If continuous
    noise of these scales is (epsilon, delta)-private, discrete noise is (epsilon + e, f delta + t)-private for the
    returned (e, f, t).

    Proof. Let g be the density of N(0, s^2), P the discrete Gaussian, and Q(k) the mass of N(0, s^2) in k +- 1/2. Noise
    Q is continuous noise followed by rounding, so on whole numbers it is (epsilon, delta)-private too.
    Q(k)/g(k) is the integral over |t| < 1/2 of cosh(kt/s^2) exp(-t^2/2s^2), which lies between exp(-1/8s^2) and
    exp(k^2/8s^4); P(k) = g(k)/G with G = sum of g over the whole numbers, 1 <= G <= 1 + 1e-130 for s >= 4. Hence
    log P/Q <= 1/8s^2 and log Q/P <= k^2/8s^4 + 1e-130. For neighbours x, x' let B be the outputs o with
    |o - x'|/s <= r + m in each part. For any set S
        P_x(S) <= P_x(S and B) + P_x(not B) <= e^a Q_x(S and B) + t <= e^a (e^epsilon Q_x'(S and B) + delta) + t
               <= e^(a + epsilon + b) P_x'(S) + e^a delta + t,
    with a = sum d/8s^2, b = sum (r + m)^2/8s^2. As |x - x'|/s <= m, leaving B needs noise |k|/s > r. E exp(c k^2/s^2)
    <= (1 - 2c)^(-1/2), as for the continuous Gaussian (G falls with s), so with r^2 = d + 2 sqrt(60 d) + 120 the bound
    for chi-square gives probability e^-60 for each part (Laurent and Massart 2000).

    >>> e, f, t = grid_cost([(640, 2000.0)], 2.0)
    >>> e < 1e-4, f - 1 < 1e-4, t < 1e-25
    (True, True, True)
    """
    below = above = 0.0
    for count, scale in parts:
        if scale < 4.0:
            raise HoldfastError(
                f"noise of {scale:.2g} grid steps is too little for its proof; ask for a smaller epsilon."
            )
        radius = math.sqrt(count + 2 * math.sqrt(TAIL * count) + 2 * TAIL)
        below += count / (8 * scale**2)
        above += (radius + ratio) ** 2 / (8 * scale**2) + 1e-100
    return (below + above) * (1 + MARGIN), math.exp(below), len(parts) * math.exp(-TAIL)


def discrete_epsilon(ratio: float, delta: float, parts: Sequence[tuple[int, float]]) -> float:
    """Epsilon at delta of discrete Gaussian noise: the continuous one's, plus the cost of the grid."""
    extra, factor, tail = grid_cost(parts, ratio)
    if delta <= tail:
        raise HoldfastError(f"delta = {delta:g} is below {tail:.1g}, the least that discrete noise can be proved for.")
    return gaussian_epsilon(ratio, (delta - tail) / factor) + extra


def least_noise(
    epsilon: float, delta: float, made: Callable[[float], Noise], cost: Callable[[Noise, float], float]
) -> tuple[Noise, float, float]:
    """The least noise with which all that is released together costs at most epsilon at delta.

    `made` makes the noise of a ratio, `cost` says what it costs with the grid; also the ratio and the epsilon spent.
    """
    slack = 0.0
    while True:
        ratio = gaussian_ratio(epsilon - slack, delta)
        noise = made(ratio)
        ratio *= 1 + 1e-12
        spent = cost(noise, ratio)
        if spent <= epsilon:
            return noise, ratio, spent
        slack = 2 * slack + (spent - epsilon)


def calibrate_gaussian(sensitivity: int, width: int, epsilon: float, delta: float) -> tuple[Fraction, dict[str, Any]]:
    """The scale, in grid steps, of discrete Gaussian noise on `width` numbers, and what a claim says of it."""
    slack = 0.0
    while True:
        scale = scale_at_least(sensitivity / gaussian_ratio(epsilon - slack, delta))
        ratio, parts = sensitivity / float(scale), [(width, float(scale))]
        spent = discrete_epsilon(ratio, delta, parts)
        if spent <= epsilon:
            break
        slack = 2 * slack + (spent - epsilon)
    extra, factor, tail = grid_cost(parts, ratio)
    return scale, {
        "noise": "discrete gaussian",
        "scale": float(scale),
        "epsilon_features": spent,
        "epsilon_pure": 0.0,
        "ratio": ratio,
        "epsilon_grid": extra,
        "delta_factor": factor,
        "delta_grid": tail,
    }


def check_epsilon(epsilon: float, key: str) -> None:
    """Refuse an epsilon that is not a positive number."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise HoldfastError(f"{key}: expected a positive number, got {epsilon!r}.")


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    if not 0 < delta < 1:
        raise HoldfastError(f"delta: expected a number between 0 and 1 (such as 1e-5), got {delta!r}.")
