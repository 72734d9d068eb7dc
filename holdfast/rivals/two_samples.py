"""Whether two samples are alike: the three tests by which CrowdGuard looks for a hostile model, without a library.

Each answers with a p value, or 1 where there is too little to test. Levene's of two samples is the t test of the
distances from each sample's median: its F has one degree of freedom above, and is that t squared.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from fractions import Fraction


def t_test(x: Sequence[float], y: Sequence[float]) -> float:
    """Student's t test of equal means, with one variance for both.

    >>> round(t_test([1, 2, 3], [3, 4, 5]), 4)  # t = 2 / sqrt(1 x 2/3), four degrees of freedom
    0.0705
    """
    n, m = len(x), len(y)
    if n + m < 3 or not n or not m:
        return 1.0
    apart = abs(statistics.fmean(x) - statistics.fmean(y))
    within = sum((v - statistics.fmean(s)) ** 2 for s in (x, y) for v in s) / (n + m - 2)
    if within == 0:
        return 0.0 if apart > 0 else 1.0
    return beyond(apart / math.sqrt(within * (1 / n + 1 / m)), n + m - 2)


def beyond(t: float, free: int) -> float:
    """The chance that Student's t is farther from zero, by the closed form for a whole number of degrees of freedom.

    >>> round(beyond(1.0, 1), 4), round(beyond(2.0, 2), 4)  # 1 - 2 atan(1) / pi;  1 - 2 / sqrt(6)
    (0.5, 0.1835)
    """
    angle = math.atan(t / math.sqrt(free))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = free % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, free, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1 - inside))


def levene(x: Sequence[float], y: Sequence[float]) -> float:
    """Levene's test of equal spread, around the medians (Brown and Forsythe)."""
    if not x or not y:
        return 1.0
    return t_test(*([abs(value - statistics.median(s)) for value in s] for s in (x, y)))


def kolmogorov_smirnov(x: Sequence[float], y: Sequence[float]) -> float:
    """The exact two-sided test of one distribution: the share of orders that stay nearer than the samples are.

    >>> round(kolmogorov_smirnov([1, 2, 3], [4, 5, 6]), 4)  # apart: two of the 20 orders
    0.1
    """
    n, m = len(x), len(y)
    if not n or not m:
        return 1.0
    gap = max(abs(sum(v <= at for v in x) * m - sum(v <= at for v in y) * n) for at in (*x, *y))
    paths = [0] * (m + 1)
    for i in range(n + 1):
        for j in range(m + 1):
            came = 1 if i == j == 0 else (paths[j] if i else 0) + (paths[j - 1] if j else 0)
            paths[j] = came if abs(i * m - j * n) < gap else 0
    return float(1 - Fraction(paths[m], math.comb(n + m, n))) if gap else 1.0
