"""The moment digest's mechanism: two stages of noisy sums over features with |z| <= 1, the second around the first.

Stage 1, a record (z, c) adds x = (e_c, e_c (x) z): class counts and class sums. They give every class a centre m_c and
a radius R_c, which anybody can compute from what was released: from here on they are public (centres_of).

Stage 2, it adds, with u = (z - m_c) / max(|z - m_c|, R_c), so that |u| <= 1 whatever the centres are,
x = (w/2 e_c, sqrt(w) e_c (x) u, sqrt(s) e_c (x) uu', sqrt(1 - s) uu'), w = WEIGHT, s below: counts and sums
again, which now cost less as u measures from the centre, a second moment of each class, and one that all share.

Sensitivity, replacing (z, c) by (z', c'):
* Stage 1. c = c': |z - z'| <= 2. c != c': sqrt(1 + 1 + |z|^2 + |z'|^2) <= 2. So D1 = 2, and hiding the labels is free.
* Stage 2. With a = |u| <= 1, b = |u'| <= 1, t the cosine between them:
  c = c':   |x - x'|^2 = w (a^2 + b^2 - 2abt) + a^4 + b^4 - 2a^2 b^2 t^2. For t > 0 that is at most 2w + 2. For t <= 0,
            with v = b|t| <= 1, the derivative in a is 2 (a + v) (w + 2a^2 - 2av), and 2a^2 - 2av >= -v^2/2 >= -w for
            w >= 1/2: it grows in a, likewise in b. At a = b = 1: 2w (1 - t) + 2 - 2t^2 <= 2 + 2w + w^2/2 (t = -w/2).
  c != c':  w^2/2 + w (a^2 + b^2) + s (a^4 + b^4) + (1 - s)(a^4 + b^4 - 2a^2 b^2 t^2) <= w^2/2 + 2w + 2.
  So D2 = (w + 2) / sqrt(2) either way.
With Gaussian noise s1 and s2 the stages have the ratios D1/s1 and D2/s2. Stage 2 may depend on what stage 1 released:
together they are one Gaussian of ratio sqrt((D1/s1)^2 + (D2/s2)^2) (Dong, Roth, Su 2022), of whose square stage 1 takes
the share FIRST.

On whole numbers: z and u are rounded to v with |v|^2 <= steps^2, checked in whole numbers (grid.py), so |v/steps| <= 1
holds *exactly* and the rounding margin is zero. Counts are released times steps, sums in steps, second moments in
steps^2, with discrete Gaussian noise; an off-diagonal number counts twice in |uu'|^2, is released once, and has noise
smaller by sqrt(2). Scales are rounded up. What discrete noise costs beyond continuous noise is in
calibration.grid_cost; its proof bounds each coordinate's density, whatever was released before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.privacy.calibration import check_epsilon, discrete_epsilon, least_noise
from holdfast.privacy.grid import Grid, quantise
from holdfast.privacy.noise import Source, Whole, gaussian, scale_at_least

Array = NDArray[np.float64]

FIRST = 0.4  # share of the budget (of the squared ratio) that stage 1 takes
WEIGHT = 0.5  # w; at least 1/2 for the proof
CLASSWISE = 0.8  # s at most: the classes' own second moments against the shared one
CLEAR = 2.0  # the ratio (that of epsilon 10) from which on s is so large; with more noise hardly a class's stands out
D1 = 2.0
D2 = (WEIGHT + 2) / math.sqrt(2)
STEPS = 1 << 10
GRID = Grid("l2", 1.0, STEPS)
RADIUS = 0.8  # of a class's usual distance from its centre: longer residuals count by their direction alone
LEAST_RADIUS = 0.3  # a class within less is drawn rounder than it is


@dataclass(frozen=True)
class First:
    """Stage 1 in whole numbers: counts times steps (classes,), sums in steps (classes, k)."""

    counts: Whole
    sums: Whole


@dataclass(frozen=True)
class Second:
    """Stage 2 in whole numbers; of second moments the upper triangle, in steps^2."""

    counts: Whole
    sums: Whole
    classwise: Whole  # (classes, k (k + 1) / 2)
    shared: Whole  # (k (k + 1) / 2,)


@dataclass(frozen=True)
class Centres:
    """What stage 2 measures from: public, as it is computed from stage 1's release."""

    means: Array  # (classes, k)
    radii: Array  # (classes,)


@dataclass(frozen=True)
class Deviations:
    """The noise of both stages in the features' units (s1, s2), and what follows for the digest's numbers."""

    first: float
    second: float
    own: float = field(default=CLASSWISE, kw_only=True)  # s; 0: no class has a second moment of its own

    def of_count(self) -> float:
        """Deviation of the noise in a class's count, both stages together."""
        return 1 / math.sqrt(1 / self.first**2 + (WEIGHT / 2 / self.second) ** 2)

    def of_sum(self, radius: Array | float) -> Array:
        """Deviation of the noise in each coordinate of a class's sum, both stages together."""
        return np.asarray(1 / np.sqrt(1 / self.first**2 + WEIGHT / (distance(radius) * self.second) ** 2))

    @property
    def of_classwise(self) -> float:
        """Deviation of the noise on the diagonal of a class's second moment of u."""
        return self.second / math.sqrt(self.own) if self.own else math.inf

    @property
    def of_shared(self) -> float:
        return self.second / math.sqrt(1 - self.own)


@dataclass(frozen=True)
class Scales(Deviations):
    """The noise of a digest's parts in whole numbers besides."""

    counts: Fraction  # of stage 1, and so on
    sums: Fraction
    counts_2: Fraction
    sums_2: Fraction
    classwise: tuple[Fraction, Fraction]  # on and off the diagonal
    shared: tuple[Fraction, Fraction]

    def parts(self, k: int) -> list[tuple[int, float]]:
        """How many coordinates of each scale one record can change."""
        pairs = k * (k - 1) // 2
        parts = [(2, self.counts), (2 * k, self.sums), (2, self.counts_2), (2 * k, self.sums_2)]
        parts += [(2 * k, self.classwise[0]), (2 * pairs, self.classwise[1])]
        parts += [(k, self.shared[0]), (pairs, self.shared[1])]
        return [(count, float(scale)) for count, scale in parts if count]


def distance(radius: Array | float) -> Array:
    """How far a record usually lies from its centre, of which the radius is RADIUS: what a residual of 1 stands for."""
    return np.asarray(radius) / RADIUS


def classwise_share(ratio: float) -> float:
    """s, of the ratio alone, so that both sides know it: it falls with the ratio's square, by which the records grow
    that a class's own second moment needs to stand out of its noise.

    >>> classwise_share(2.0), round(classwise_share(0.72), 3)
    (0.8, 0.104)
    """
    return CLASSWISE * min(1.0, max(ratio / CLEAR, 0.1) ** 2)


@lru_cache(maxsize=64)
def scales_for(epsilon: float, delta: float, k: int) -> tuple[Scales, float, float]:
    """The least noise with which the digest is (epsilon, delta)-private; also the ratio and the epsilon spent.

    >>> [round(scales_for(epsilon, 1e-5, 128)[0].second, 3) for epsilon in (10.0, 3.0, 1.0)]
    [1.141, 3.174, 8.514]
    """
    check_epsilon(epsilon, "epsilon")

    def made(ratio: float) -> Scales:
        first, second = D1 / (ratio * math.sqrt(FIRST)), D2 / (ratio * math.sqrt(1 - FIRST))
        share = classwise_share(ratio)
        own, shared = second / math.sqrt(share) * STEPS**2, second / math.sqrt(1 - share) * STEPS**2
        return Scales(
            first,
            second,
            own=share,
            counts=scale_at_least(first * STEPS),
            sums=scale_at_least(first * STEPS),
            counts_2=scale_at_least(second / (WEIGHT / 2) * STEPS),
            sums_2=scale_at_least(second / math.sqrt(WEIGHT) * STEPS * (1 + 1e-15)),
            classwise=(scale_at_least(own * (1 + 1e-15)), scale_at_least(own / math.sqrt(2.0) * (1 + 1e-15))),
            shared=(scale_at_least(shared * (1 + 1e-15)), scale_at_least(shared / math.sqrt(2.0) * (1 + 1e-15))),
        )

    return least_noise(epsilon, delta, made, lambda scales, ratio: discrete_epsilon(ratio, delta, scales.parts(k)))


def exact_first(values: Whole, labels: NDArray[Any], classes: int) -> First:
    """Stage 1 of quantised records before its noise.

    >>> exact_first(np.array([[1, 2], [3, 0]]), np.array([1, 1]), 2)
    First(counts=array([   0, 2048]), sums=array([[0, 0],
           [4, 2]]))
    """
    sums = np.zeros((classes, values.shape[1]), dtype=np.int64)
    np.add.at(sums, labels, values)
    return First(np.bincount(labels, minlength=classes).astype(np.int64) * STEPS, sums)


def exact_second(values: Whole, labels: NDArray[Any], classes: int) -> Second:
    """Stage 2 of quantised residuals before its noise.

    >>> exact_second(np.array([[1, 2], [3, 0]]), np.array([0, 1]), 2).classwise.tolist()
    [[1, 2, 4], [9, 0, 0]]
    """
    first = exact_first(values, labels, classes)
    triangles = np.stack([triangle(values[labels == c]) for c in range(classes)])
    return Second(first.counts, first.sums, triangles, triangles.sum(0))


def triangle(values: Whole) -> Whole:
    """Upper triangle of the sum of v v'. Products of floats are exact here: a block's sums stay below 2^53."""
    k = values.shape[1]
    total = torch.zeros(k, k, dtype=torch.int64)
    for block in torch.from_numpy(values).split(2**52 // STEPS**2):
        part = block.double()
        total += (part.T @ part).long()
    return np.asarray(total.numpy()[np.triu_indices(k)])


def stage_one(values: Whole, labels: NDArray[Any], classes: int, scales: Scales, source: Source) -> First:
    """Noisy class counts and class sums."""
    exact = exact_first(values, labels, classes)
    return First(noised(exact.counts, scales.counts, source), noised(exact.sums, scales.sums, source))


def stage_two(values: Whole, labels: NDArray[Any], centres: Centres, scales: Scales, source: Source) -> Second:
    """Noisy counts, sums and second moments of the residuals around public centres."""
    exact = exact_second(residuals(values, labels, centres), labels, len(centres.radii))
    return Second(
        noised(exact.counts, scales.counts_2, source),
        noised(exact.sums, scales.sums_2, source),
        noised_triangles(exact.classwise, scales.classwise, source),
        noised_triangles(exact.shared, scales.shared, source),
    )


def residuals(values: Whole, labels: NDArray[Any], centres: Centres) -> Whole:
    """u of each quantised record, on the grid."""
    away = values / STEPS - centres.means[labels]
    length = np.sqrt((away**2).sum(1))
    return quantise(away / np.maximum(length, centres.radii[labels])[:, None], GRID).values


def centres_of(first: First, scales: Deviations) -> Centres:
    """Class means from the noisy sums, shrunk to the mean of all by as much as noise explains; and the radii.

    A class's mean differs from that of all by a true difference of variance b and noise of variance v = (s1/n)^2: it
    keeps b/(b + v) of it. Records of unit length lie sqrt(1 - |m|^2) from their mean; the radius is RADIUS of that.
    """
    counts, sums = first.counts / STEPS, first.sums / STEPS
    clear = counts >= 2 * scales.first
    means = np.zeros(sums.shape)
    if clear.any():
        safe = np.maximum(counts, 1.0)
        own, noise = sums / safe[:, None], (scales.first / safe) ** 2
        middle = sums[clear].sum(0) / counts[clear].sum()
        away = own - middle
        between = max(1e-6, float(np.average(((away**2).mean(1) - noise)[clear], weights=counts[clear])))
        keep = np.where(counts > 0, between / (between + noise), 0.0)
        means = middle + keep[:, None] * away
        means /= np.maximum(1.0, np.sqrt((means**2).sum(1, keepdims=True)))
    usual = np.sqrt(np.maximum(0.0, 1 - (means**2).sum(1)))
    return Centres(means, np.clip(RADIUS * usual, LEAST_RADIUS, 1.0))


def square(triangles: NDArray[Any], k: int) -> Array:
    """Symmetric matrices (..., k, k) from their upper triangles."""
    row, column = np.triu_indices(k)
    whole = np.zeros((*triangles.shape[:-1], k, k))
    whole[..., row, column] = whole[..., column, row] = triangles
    return whole


def noised(exact: Whole, scale: Fraction, source: Source) -> Whole:
    return exact + gaussian(exact.size, scale, source).reshape(exact.shape)


def noised_triangles(exact: Whole, scale: tuple[Fraction, Fraction], source: Source) -> Whole:
    k = (math.isqrt(8 * exact.shape[-1] + 1) - 1) // 2
    row, column = np.triu_indices(k)
    found = exact.copy()
    for where, one in ((row == column, scale[0]), (row != column, scale[1])):
        if where.any():
            found[..., where] = noised(exact[..., where], one, source)
    return found
