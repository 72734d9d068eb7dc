"""Noise in shares: each of n members adds a little, so that the total is private although t of them add nothing.

A share is discrete Gaussian noise of scale r = s / sqrt(n - t) (rounded up), s being the scale that the total needs.
Members beyond the n - t only add to it, which costs nothing: it is post-processing.

The sum of j discrete Gaussians of scale r is nearly the one of scale r sqrt(j) (Kairouz, Liu, Steinke, "The Distributed
Discrete Gaussian Mechanism", ICML 2021). Derivation. Let X and Y have P(x) proportional to exp(-x^2/2a^2) and
exp(-y^2/2b^2) on the whole numbers. With p^2 = a^2 b^2 / (a^2 + b^2) and c = z a^2 / (a^2 + b^2), by completing the
square,

    P(X + Y = z)  =  K exp(-z^2 / 2(a^2 + b^2))  T(c),      T(c) = sum over whole x of exp(-(x - c)^2 / 2p^2),

and by Poisson's summation T(c) = sqrt(2 pi) p (1 + 2 sum_{k >= 1} exp(-2 pi^2 p^2 k^2) cos(2 pi k c)). So T(c) is
within sqrt(2 pi) p (1 +- h), h = 2 q / (1 - q), q = exp(-2 pi^2 p^2). Both X + Y and the discrete Gaussian of variance
a^2 + b^2 have total 1: at every z their probabilities differ by a factor within (1 + h) / (1 - h), either way. By
induction, with a^2 = j r^2, b^2 = r^2, hence p^2 = r^2 j / (j + 1), so do the sum of n shares and the discrete Gaussian
of scale r sqrt(n), with the factor exp(A), A = sum_{j=1}^{n-1} log((1 + h_j) / (1 - h_j)). Over d coordinates, on both
sides of the promise's inequality: if the discrete Gaussian is (epsilon, delta)-private, the sum of shares is
(epsilon + 2 d A, delta exp(d A))-private.

Rounding. A member sends its number with its share rounded to a multiple of g, which saves log2 g bits. Then it sends a
multiple m of g with the probability sum over v in V of K exp(-(m + v - x)^2/2r^2), x its exact number and V the g whole
numbers that round to 0. In the sum of two such the derivation above holds for each pair of v's, the sums over x running
over multiples of g, so with p/g in place of p: q = exp(-2 pi^2 p^2/g^2). All members together send a multiple z with

    P(z)  =  K' (sum over v_1 .. v_n in V of exp(-(z + v_1 + .. + v_n - x)^2 / 2 n r^2)),  up to a factor within exp(A),

x now being the exact total. The sum over v_1 is what rounding to a multiple of g makes of the others: without the
factor, z is the discrete Gaussian of scale r sqrt(n) around x, less n - 1 independent uniform numbers of V, rounded.
That is the discrete Gaussian mechanism, processed further: it costs nothing, however many members round. What it costs
in accuracy is n g^2/12 more variance. At r = COARSE g, 2 d A is 1e-8 for 20,000 coordinates and a thousand members.
"""

from __future__ import annotations

import math
from fractions import Fraction

from holdfast.core.errors import HoldfastError
from holdfast.privacy.noise import scale_at_least

LEAST = 4.0  # scale of a share, in steps of the grid
COARSE = Fraction(7, 4)  # least scale of a share, in steps of what is sent
MOST_MEMBERS = 1000


def share_scale(total: Fraction, honest: int) -> Fraction:
    """The scale of each share where so many are sure to be in the total.

    >>> share_scale(Fraction(30), 9)
    Fraction(10, 1)
    """
    share = scale_at_least(Fraction(math.ceil(total / Fraction(math.isqrt(honest * 10**24), 10**12) * 2**20), 2**20))
    if share < LEAST:
        raise HoldfastError(f"noise of {float(share):.2g} grid steps a member is too little for its proof.")
    return share


def coarse_step(total: Fraction, honest: int) -> int:
    """g: what is sent are multiples of so many steps.

    >>> coarse_step(Fraction(30), 9)  # shares of scale 10
    5
    """
    return int(share_scale(total, honest) / COARSE)


def share_cost(scale: float, members: int, coordinates: int) -> float:
    """2 d A: what epsilon costs beyond one discrete Gaussian.

    >>> 0 < share_cost(1.2, 20, 1) < 1e-3, share_cost(float(COARSE), MOST_MEMBERS, 20_000) < 1.3e-8
    (True, True)
    """
    total = 0.0
    for j in range(1, members):
        q = math.exp(-2 * (math.pi * scale) ** 2 * j / (j + 1))
        h = 2 * q / (1 - q)
        if h >= 1:
            return math.inf
        total += math.log1p(2 * h / (1 - h))
    return 2 * coordinates * total
