"""Heads that follow from joint sums of features and targets (digests/sums.py): least squares, discriminants.

Counts and hazards have no such head; theirs is fitted to rows drawn from the sums (sum_samples.py).

regression   y = m_y + b' (z - m_z),   b = (C_zz + l I)^-1 C_zy,   C the sums of squares around the means.
             It is scikit-learn's Ridge(alpha = l) on all records together, to the last digits: sums add up.
             l is the one with the least generalised cross-validation error, n RSS / (n - df)^2 with
             df = 1 + sum e / (e + l) over the eigenvalues e of C_zz: it needs sums alone (Golub, Heath, Wahba 1979).
labels       for each label two classes that share a covariance: the log-odds of linear discriminant analysis
classes      all that solved.py makes of one covariance within classes
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.types import Tensors
from holdfast.digests.sums import SumDigest
from holdfast.heads.evidence import Evidence
from holdfast.heads.solved import SHRINK, shrunken
from holdfast.privacy.moment_noise import Array
from holdfast.privacy.sum_noise import Sums

PENALTIES = tuple(10.0 ** (power / 2) for power in range(-16, 5))  # l over the mean eigenvalue of C_zz
LEAST_CELL = 0.5  # records: what is divided by, where noise left less


def added(digests: Sequence[SumDigest]) -> Sums:
    """The sums of all clients."""
    if not digests:
        raise HoldfastError("digests: there are none to learn from.")
    return Sums(
        np.sum([digest.sums.cells for digest in digests], axis=0),
        np.sum([digest.sums.second for digest in digests], axis=0),
        sum(digest.sums.squares for digest in digests),
    )


def noise_of(digests: Sequence[SumDigest]) -> float:
    """Deviation of the noise in a cell of the added sums."""
    return math.sqrt(sum(digest.noise**2 for digest in digests))


def centred(sums: Sums, noise: float = 0.0) -> tuple[float, Array, Array]:
    """n, the mean of z, and sum (z - m)(z - m)', without the eigenvalues that noise may have made: 2 tau at most."""
    n = max(float(sums.cells[0, 0]), 1.0)
    mean = sums.cells[0, 1:] / n
    squares = sums.second - n * np.outer(mean, mean)
    if noise:
        values, vectors = np.linalg.eigh(squares)
        squares = (vectors * np.maximum(values, 2 * noise * math.sqrt(len(values) / 2))) @ vectors.T
    return n, mean, squares


def least_squares(sums: Sums, noise: float = 0.0, penalty: float | None = None) -> tuple[Array, float, float]:
    """Slopes, intercept and the R2 that cross-validation expects, in scaled units; penalty None: the best one.

    Two records, z = 0 and 1, y = 0 and 1: slope 1 without a penalty.

    >>> from holdfast.privacy.sum_noise import Bounds, exact_sums
    >>> line = exact_sums(np.array([[0.0], [1.0]]), np.array([[1.0, 0.0], [1.0, 1.0]]), Bounds(2, 2.0, True))
    >>> slope, intercept, _ = least_squares(line, penalty=0.0)
    >>> slope.tolist(), intercept
    ([1.0], 0.0)
    """
    n, mean, squares = centred(sums, noise)
    middle = float(sums.cells[1, 0]) / n
    joint = sums.cells[1, 1:] - n * middle * mean
    around = max(sums.squares - n * middle**2, 1e-12)
    values, vectors = np.linalg.eigh(squares)
    values, turned = np.maximum(values, 0.0), vectors.T @ joint
    usual = max(float(values.mean()), 1e-12)
    best: tuple[float, float] = (math.inf, 0.0)
    for candidate in [penalty] if penalty is not None else [usual * share for share in PENALTIES]:
        kept = values / (values + candidate) if candidate else np.ones_like(values)
        slopes = turned / np.maximum(values + candidate, 1e-12)
        left = max(around - 2 * float(slopes @ turned) + float(slopes**2 @ values), 0.0)
        free = max(n - 1 - float(kept.sum()), 1.0)
        best = min(best, (n * left / free**2, candidate))
    error, chosen = best
    slope = vectors @ (turned / np.maximum(values + chosen, 1e-12))
    return slope, middle - float(slope @ mean), 1 - error / (around / n)


def regression(digests: Sequence[SumDigest], penalty: float | None = None) -> tuple[Tensors, float]:
    """A linear head in the targets' own units, and the R2 to expect."""
    ranges = {digest.range for digest in digests}
    if len(ranges) > 1:
        raise HoldfastError(f"digests: they scale targets by different ranges, {sorted(ranges)}; agree on one.")
    slope, intercept, expected = least_squares(added(digests), noise_of(digests), penalty)
    [(low, high)] = ranges
    half, middle = (high - low) / 2, (high + low) / 2
    return head(half * slope[None], np.array([middle + half * intercept])), expected


def explained(digest: SumDigest, weights: Tensors) -> float:
    """R2 of a linear head on a site's records, from its sums: 1 - sum (y - w'z - b)^2 / sum (y - m)^2."""
    low, high = digest.range
    half, middle = (high - low) / 2, (high + low) / 2
    slope = weights["weight"][0].double().numpy() / half
    bias = (float(weights["bias"][0]) - middle) / half
    sums, n = digest.sums, max(float(digest.sums.cells[0, 0]), 1.0)
    fitted = slope @ sums.second @ slope + 2 * bias * float(slope @ sums.cells[0, 1:]) + n * bias**2
    joint = float(slope @ sums.cells[1, 1:]) + bias * float(sums.cells[1, 0])
    around = max(sums.squares - float(sums.cells[1, 0]) ** 2 / n, 1e-12)
    return 1 - (sums.squares - 2 * joint + float(fitted)) / around


def labels(digests: Sequence[SumDigest]) -> Tensors:
    """Log-odds of each label."""
    sums = added(digests)
    n, _, squares = centred(sums, noise_of(digests))
    covariance = shrunken(torch.from_numpy(squares / n), SHRINK).numpy()
    weights, biases = [], []
    for cell in sums.cells[1:]:
        weight, bias = odds(covariance, cell, sums.cells[0] - cell)
        weights.append(weight)
        biases.append(bias)
    return head(np.stack(weights), np.array(biases))


def odds(covariance: Array, yes: Array, no: Array) -> tuple[Array, float]:
    """Slopes and intercept of the log-odds of two classes; within, they have the covariance of all records less what
    lies between their means.
    """
    one, other = max(float(yes[0]), LEAST_CELL), max(float(no[0]), LEAST_CELL)
    above, below = yes[1:] / one, no[1:] / other
    away = above - below
    share = one * other / (one + other) ** 2
    slope = np.linalg.solve(covariance, away)
    # (T - share a a')^-1 a = T^-1 a / (1 - share a' T^-1 a), by Sherman and Morrison.
    slope = slope / max(1 - share * float(away @ slope), 0.05)
    return np.asarray(slope, dtype=np.float64), math.log(one / other) - float(slope @ (above + below)) / 2


def class_evidence(digests: Sequence[SumDigest]) -> Evidence:
    """What sums say of classes: one covariance within all of them."""
    sums, noise = added(digests), noise_of(digests)
    counts = np.where(sums.cells[:, 0] >= max(1.0, 2 * noise), sums.cells[:, 0], 0.0)
    means = np.where(counts[:, None] > 0, sums.cells[:, 1:] / np.maximum(counts, 1.0)[:, None], 0.0)
    within = sums.second - np.einsum("c,ck,cl->kl", counts, means, means)
    within = torch.from_numpy(within / max(float(counts.sum()), 1.0))
    held: Tensor = torch.from_numpy(counts > 0)
    return Evidence(torch.from_numpy(counts), torch.from_numpy(means), held[:, None, None] * within)


def head(weight: Array, bias: Array) -> Tensors:
    return {"weight": torch.from_numpy(weight).float(), "bias": torch.from_numpy(bias).float()}
