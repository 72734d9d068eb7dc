"""Joint sums of features and targets, for any kind of target, and the noise that makes them private.

A record with features z, |z| <= 1, and targets t, |t|^2 <= B, adds x = (t (x) (1, z), z z', y^2):

    regression   t = (1, y), y in [-1, 1] by a public range    B = 2        besides y^2, to know how much is explained
    labels       t = (1, y_1, ..., y_m), y_j in {0, 1}          B = 1 + m
    hazards      t = (survived_1, ..., survived_J, ended_1, ..., ended_J): each interval once at most      B = J
    classes      t = e_c                                        B = 1

From their sums least squares and linear discriminants follow exactly, whoever has left since (heads/from_sums.py).

Sensitivity, replacing (z, t) by (z', t'). |x|^2 = |t|^2 (1 + |z|^2) + |z|^4 + y^4 <= 2B + 1, and 1 more with y. And
    <x, x'> = (t . t') (1 + z . z') + (z . z')^2 + y^2 y'^2 >= 0,
since t . t' >= 0 (targets are not negative; of a regression it is 1 + y y' >= 0) and z . z' >= -1. So
    |x - x'|^2 = |x|^2 + |x'|^2 - 2 <x, x'> <= 2 (2B + 1 [+ 1]) = D^2.

On whole numbers: z is rounded to v with |v| <= steps, checked in whole numbers (grid.py), t to whole numbers up to
steps, and all products are in steps^2: the bound holds exactly. Of z z' each pair leaves once, counts twice in |z z'|^2
and has noise smaller by sqrt(2). What discrete noise costs beyond continuous noise is in calibration.grid_cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from holdfast.privacy.calibration import check_epsilon, discrete_epsilon, grid_cost, least_noise
from holdfast.privacy.claim import Claim, of_sums
from holdfast.privacy.grid import Floats, quantise
from holdfast.privacy.moment_noise import GRID, STEPS, Array, noised, noised_triangles, square, triangle
from holdfast.privacy.noise import Source, Whole, scale_at_least


@dataclass(frozen=True)
class Bounds:
    """What is public of a kind's targets: how many there are, B, and whether y^2 leaves besides."""

    targets: int
    square: float  # B
    with_squares: bool

    @property
    def sensitivity(self) -> float:
        """D.

        >>> round(Bounds(2, 2.0, True).sensitivity ** 2, 9), round(Bounds(4, 4.0, False).sensitivity ** 2, 9)
        (12.0, 18.0)
        """
        return math.sqrt(2 * (2 * self.square + 1 + self.with_squares))


@dataclass(frozen=True)
class Sums:
    """cells (targets, 1 + k): sums of t (x) (1, z); second (k, k): of z z'; squares: of y^2."""

    cells: Array
    second: Array
    squares: float


@lru_cache(maxsize=64)
def scales_for(epsilon: float, delta: float, k: int, bounds: Bounds) -> tuple[tuple[Fraction, Fraction], float, float]:
    """The least noise, in steps^2 (and off the diagonal of z z'), its ratio and the epsilon spent."""
    check_epsilon(epsilon, "epsilon")

    def made(ratio: float) -> tuple[Fraction, Fraction]:
        scale = bounds.sensitivity / ratio * STEPS**2 * (1 + 1e-15)
        return scale_at_least(scale), scale_at_least(scale / math.sqrt(2.0) * (1 + 1e-15))

    return least_noise(epsilon, delta, made, lambda s, ratio: discrete_epsilon(ratio, delta, parts(k, bounds, s)))


def parts(k: int, bounds: Bounds, scales: tuple[Fraction, Fraction]) -> list[tuple[int, float]]:
    """How many coordinates of each scale one record can change."""
    on, off = bounds.targets * (1 + k) + k + bounds.with_squares, k * (k - 1) // 2
    return [(count, float(scale)) for count, scale in zip((on, off), scales, strict=True) if count]


def exact_whole(z: Floats, targets: Floats, bounds: Bounds) -> tuple[Whole, Whole, Whole]:
    """The sums in steps^2, before their noise: cells, the upper triangle of z z', and y^2 where it leaves."""
    v = quantise(z, GRID).values
    t = np.rint(np.clip(targets, -1.0, 1.0) * STEPS).astype(np.int64)
    one = np.concatenate([np.full((len(v), 1), STEPS, dtype=np.int64), v], axis=1)
    squares = np.array([int((t[:, -1] ** 2).sum())] if bounds.with_squares else [], dtype=np.int64)
    return t.T @ one, triangle(v), squares


def noisy_sums(z: Floats, targets: Floats, bounds: Bounds, epsilon: float, delta: float, source: Source) -> Sums:
    """What leaves a client, in the features' and targets' own units."""
    k = z.shape[1]
    (on, off), _, _ = scales_for(epsilon, delta, k, bounds)
    cells, second, squares = exact_whole(z, targets, bounds)
    unit = float(STEPS**2)
    noisy = noised(squares, on, source) if len(squares) else squares
    return Sums(
        noised(cells, on, source) / unit,
        square(noised_triangles(second, (on, off), source) / unit, k),
        float(noisy.sum()) / unit,
    )


def exact_sums(z: Floats, targets: Floats, bounds: Bounds, weights: Floats | None = None) -> Sums:
    """The sums without noise and without a grid; each record counts by its weight, if there are any.

    >>> exact_sums(np.array([[0.5], [1.0]]), np.array([[1.0, -1.0], [1.0, 2.0]]), Bounds(2, 2.0, True))
    Sums(cells=array([[2. , 1.5],
           [1. , 1.5]]), second=array([[1.25]]), squares=5.0)
    """
    x, t = z.astype(np.float64), targets.astype(np.float64)
    one = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    w = np.ones((len(x), 1)) if weights is None else weights[:, None]
    return Sums((w * t).T @ one, (w * x).T @ x, float((w[:, 0] * t[:, -1] ** 2).sum()) if bounds.with_squares else 0.0)


def sums_claim(epsilon: float, delta: float, k: int, bounds: Bounds, source: Source) -> Claim:
    """What noisy sums promise, whatever the records are."""
    scales, ratio, spent = scales_for(epsilon, delta, k, bounds)
    return of_sums(
        "moments",
        (epsilon, delta),
        spent,
        ratio,
        grid_cost(parts(k, bounds, scales), ratio),
        scale=float(scales[0]),
        sensitivity=bounds.sensitivity * STEPS**2,
        grid=f"{STEPS} steps within an l2 norm of 1; sums in steps^2",
        entropy=source.guarantee,
        notes=(
            "Features and targets are released together: one epsilon covers both.",
            "Targets beyond their public range are moved to its ends.",
        ),
    )
