"""The moment digest: noisy class counts, class sums and one shared second moment of features with |z| <= 1.

A record (z, c) adds kappa to its class's count, z to its class's sum and zz' to the second moment, so releasing all
three is one Gaussian mechanism on the vector x = (kappa e_c, e_c (x) z, zz').

Sensitivity, replacing (z, c) by (z', c'), with a = |z| <= 1, b = |z'| <= 1, t = cos of their angle, kappa = 1/2:
* c = c': |x - x'|^2 = a^2 + b^2 - 2abt + a^4 + b^4 - 2a^2 b^2 t^2. For t > 0 it is at most a^2 + b^2 + a^4 + b^4 <= 4.
  For t <= 0 put u = b|t| <= 1: the derivative in a is 4a^3 + (2a + 2u - 4au^2); the bracket is linear in a, 2u >= 0
  at a = 0 and 2(1 - u)(1 + 2u) >= 0 at a = 1. So it grows in a, likewise in b, and is largest at a = b = 1:
  4 - 2t - 2t^2 <= 4.5, at t = -1/2.
* c != c': 2 kappa^2 + a^2 + b^2 + a^4 + b^4 - 2a^2 b^2 t^2 <= 2 kappa^2 + 4 = 4.5.
So D = sqrt(4.5) either way: with kappa = 1/2 hiding the labels is free.

On whole numbers: z is rounded to v with |v|^2 <= steps^2, checked in whole numbers (grid.py), so z = v/steps obeys
|z| <= 1 *exactly* and the rounding margin is zero. Counts are released times `steps`, sums of v in steps, sums of v v'
in steps^2: whole numbers, with discrete Gaussian noise of scale sigma/kappa and sigma (times steps), and sigma and
sigma/sqrt(2) (times steps^2, on and off the diagonal: each off-diagonal pair counts twice in |zz'|^2 and is released
once). Scales are rounded up, so |x - x'| over the scales is at most D/sigma, as in the continuous mechanism; what
discrete noise costs beyond continuous noise is in calibration.grid_cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import HoldfastError
from holdfast.privacy.calibration import check_epsilon, discrete_epsilon, gaussian_ratio, grid_cost
from holdfast.privacy.claim import REPLACE_ONE, Claim
from holdfast.privacy.grid import Floats, Grid, check_features, check_labels, quantise
from holdfast.privacy.noise import Source, Whole, gaussian, scale_at_least

KAPPA = 0.5
SENSITIVITY = math.sqrt(4.5)
STEPS = 1 << 11


@dataclass(frozen=True)
class Scales:
    """The noise of the four parts, in whole-number units, and sigma in the features' units."""

    sigma: float
    counts: Fraction
    sums: Fraction
    diagonal: Fraction
    off_diagonal: Fraction

    def parts(self, k: int) -> list[tuple[int, float]]:
        """How many coordinates of each scale one record can change."""
        pairs = k * (k - 1) // 2
        parts = [(2, self.counts), (2 * k, self.sums), (k, self.diagonal), (pairs, self.off_diagonal)]
        return [(count, float(scale)) for count, scale in parts if count]


@dataclass(frozen=True)
class MomentDigest:
    """What a client releases once: noisy moments in the features' units, and the claim."""

    counts: NDArray[np.float64]  # (classes,)
    sums: NDArray[np.float64]  # (classes, k)
    second: NDArray[np.float64]  # (k, k), symmetric
    sigma: float
    claim: Claim
    clipped: int = 0  # records the bound shortened: the client's to know, never sent

    @property
    def sigma_counts(self) -> float:
        return self.sigma / KAPPA


@lru_cache(maxsize=64)
def scales_for(epsilon: float, delta: float, k: int, steps: int = STEPS) -> tuple[Scales, float, float]:
    """The least noise with which the digest is (epsilon, delta)-private; also the ratio D/sigma and the epsilon spent.

    >>> [round(scales_for(epsilon, 1e-5, 64)[0].sigma, 3) for epsilon in (10.0, 3.0, 1.0)]
    [1.06, 2.95, 7.914]
    """
    check_epsilon(epsilon, "epsilon")
    slack = 0.0
    while True:
        sigma = SENSITIVITY / gaussian_ratio(epsilon - slack, delta)
        scales = Scales(
            sigma,
            counts=scale_at_least(sigma / KAPPA * steps),
            sums=scale_at_least(sigma * steps),
            diagonal=scale_at_least(sigma * steps**2),
            off_diagonal=scale_at_least(sigma * steps**2 / math.sqrt(2.0) * (1 + 1e-15)),
        )
        ratio = SENSITIVITY / sigma * (1 + 1e-12)
        spent = discrete_epsilon(ratio, delta, scales.parts(k))
        if spent <= epsilon:
            return scales, ratio, spent
        slack = 2 * slack + (spent - epsilon)


def exact_moments(values: Whole, labels: NDArray[Any], classes: int, steps: int) -> tuple[Whole, Whole, Whole]:
    """Counts times steps, class sums and the second moment's upper triangle of quantised records: whole numbers.

    >>> exact_moments(np.array([[1, 2], [3, 0]]), np.array([1, 1]), 2, 4)
    (array([0, 8]), array([[0, 0],
           [4, 2]]), array([10,  2,  4]))
    """
    counts = np.bincount(labels, minlength=classes).astype(np.int64) * steps
    sums = np.zeros((classes, values.shape[1]), dtype=np.int64)
    np.add.at(sums, labels, values)
    # Products of floats are exact here, and many times faster: |v v'| <= steps^2, and a block's sums stay below 2^53.
    block = max(1, 2**52 // steps**2)
    second = np.zeros((values.shape[1], values.shape[1]), dtype=np.int64)
    for first in range(0, len(values), block):
        part = values[first : first + block].astype(np.float64)
        second += (part.T @ part).astype(np.int64)
    return counts, sums, second[np.triu_indices(values.shape[1])]


def make(
    features: Floats,
    labels: NDArray[Any],
    classes: int,
    *,
    epsilon: float,
    delta: float,
    source: Source,
    steps: int = STEPS,
) -> MomentDigest:
    """A client's moment digest; features longer than 1 are shortened and counted, anything not finite is refused."""
    check_features(features)
    check_labels(labels, len(features), classes)
    k = features.shape[1]
    if classes < 1 or k < 1:
        raise HoldfastError(f"moments: expected at least one class and one feature, got {classes} and {k}.")
    scales, ratio, spent = scales_for(epsilon, delta, k, steps)
    values = quantise(features, Grid("l2", 1.0, steps))
    counts, sums, triangle = exact_moments(values.values, labels, classes, steps)
    row, column = np.triu_indices(k)
    counts = counts + gaussian(classes, scales.counts, source)
    sums = sums + gaussian(sums.size, scales.sums, source).reshape(sums.shape)
    triangle[row == column] += gaussian(k, scales.diagonal, source)
    triangle[row != column] += gaussian(len(row) - k, scales.off_diagonal, source)
    second = np.zeros((k, k))
    second[row, column] = second[column, row] = triangle / steps**2
    extra, factor, tail = grid_cost(scales.parts(k), ratio)
    claim = Claim(
        mode="moments",
        adjacency=REPLACE_ONE,
        epsilon_nominal=epsilon,
        epsilon_features=spent,
        epsilon_labels=spent,
        epsilon_total=spent,
        delta=delta,
        noise="discrete gaussian",
        scale=float(scales.sums),
        sensitivity=SENSITIVITY * steps,
        grid=f"{steps} steps within an l2 norm of 1; second moments in steps^2",
        clip=1.0,
        entropy=source.guarantee,
        spd=0,  # nothing is mixed in groups
        ratio=ratio,
        epsilon_grid=extra,
        delta_factor=factor,
        delta_grid=tail,
        notes=(
            "Features and labels are released together: one epsilon covers both.",
            "The number of records is not released exactly; under this adjacency it is not protected either.",
        ),
    )
    return MomentDigest(counts / steps, sums / steps, second, scales.sigma, claim, values.clipped)


def pack(digest: MomentDigest) -> tuple[dict[str, NDArray[np.int32]], dict[str, float]]:
    """The digest as whole numbers of 24 bits with one power-of-two step each; rounding noised numbers costs no privacy.

    The step is at most 2^-21 of the largest number: for 10^6 records half of one, well below their noise.
    """
    row, column = np.triu_indices(len(digest.second))
    arrays, steps = {}, {}
    for name, values in (("counts", digest.counts), ("sums", digest.sums), ("second", digest.second[row, column])):
        largest = float(np.abs(values).max(initial=1.0))
        step = 2.0 ** (math.ceil(math.log2(largest)) - 22)
        arrays[name], steps[name] = np.rint(values / step).astype(np.int32), step
    return arrays, steps


def unpack(arrays: dict[str, NDArray[np.int32]], steps: dict[str, float], sigma: float, claim: Claim) -> MomentDigest:
    """The opposite of pack; arrays that do not fit together are refused."""
    try:
        counts, sums, triangle = (
            arrays[name].astype(np.float64) * steps[name] for name in ("counts", "sums", "second")
        )
    except KeyError as error:
        raise HoldfastError(f"moment digest: {error} is missing; ask the client to send it again.") from None
    k = sums.shape[1] if sums.ndim == 2 else 0
    if k == 0 or counts.shape != sums.shape[:1] or triangle.shape != (k * (k + 1) // 2,):
        raise HoldfastError(
            f"moment digest: counts {counts.shape}, sums {sums.shape} and second moment {triangle.shape} do not fit "
            "together; ask the client to send it again."
        )
    if not (np.isfinite(counts).all() and np.isfinite(sums).all() and np.isfinite(triangle).all() and sigma >= 0):
        raise HoldfastError("moment digest: it holds values that are not finite; ask the client to send it again.")
    second = np.zeros((k, k))
    row, column = np.triu_indices(k)
    second[row, column] = second[column, row] = triangle
    return MomentDigest(counts, sums, second, sigma, claim)
