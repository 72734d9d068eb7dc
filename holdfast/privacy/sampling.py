"""The moderator's side of the moment digest: a classifier in closed form, and samples that stand in for a client.

All of it is post-processing of what the clients released: it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.errors import HoldfastError
from holdfast.privacy.moments import MomentDigest

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Pooled:
    """What all digests say together: class weights and means, one covariance, and which cells are trusted."""

    weights: Array  # (classes,): records in trusted cells
    means: Array  # (classes, k); zero where no client has a trusted cell
    covariance: Array  # (k, k)
    trusted: NDArray[np.bool_]  # (clients, classes)


def trusted_cells(digest: MomentDigest) -> NDArray[np.bool_]:
    """Classes whose noisy count is at least max(20, 2 sigma/kappa): below, the mean would be mostly noise."""
    return np.asarray(digest.counts >= max(20.0, 2 * digest.sigma_counts))


def pool(digests: Sequence[MomentDigest]) -> Pooled:
    """Class means over clients and W = (S2 - sum_c n_c m_c m_c') / n, with a floor under its eigenvalues.

    m_c m_c' of a noisy mean is too large by its noise variance, which is added back. Noise alone would have a largest
    eigenvalue of w = sqrt(2 k clients) sigma / n (Wigner). The floor is w/3: on Fashion-MNIST that gave the best LDA at
    epsilon 3 and 1 (79.6, 76.4 %), w itself a point less; and a thousandth of the mean eigenvalue at least.
    """
    if not digests:
        raise HoldfastError("moment digests: there are none to pool.")
    shapes = {digest.sums.shape for digest in digests}
    if len(shapes) > 1:
        raise HoldfastError(f"moment digests: clients disagree about (classes, features): {sorted(shapes)}.")
    trusted = np.stack([trusted_cells(digest) for digest in digests])
    counts = np.stack([digest.counts for digest in digests])
    sums = np.stack([digest.sums for digest in digests])
    weights = (counts * trusted).sum(0)
    if not trusted.any():
        raise HoldfastError("moment digests: no client has a class with enough records for its noise; raise epsilon.")
    safe = np.maximum(weights, 1.0)
    means = (sums * trusted[:, :, None]).sum(0) / safe[:, None]
    noise = np.array([digest.sigma**2 for digest in digests])
    k = sums.shape[2]
    everywhere = np.maximum(counts.sum(0), 0.0) * (weights > 0)  # also what lies in cells too small to be trusted
    total = max(float(np.maximum(counts.sum(0), 0.0).sum()), 1.0)
    scatter = sum((digest.second for digest in digests), np.zeros((k, k)))
    scatter = scatter - np.einsum("c,ci,cj->ij", everywhere, means, means)
    scatter += np.eye(k) * float((everywhere / safe**2 * (noise[:, None] * trusted).sum(0)).sum())
    values, vectors = np.linalg.eigh(scatter / total)
    wigner = math.sqrt(2 * k * float(noise.sum())) / total
    floor = max(wigner / 3, 1e-3 * float(values.mean()), 1e-9)
    return Pooled(weights, means, (vectors * np.maximum(values, floor)) @ vectors.T, trusted)


def lda(digests: Sequence[MomentDigest]) -> tuple[torch.Tensor, torch.Tensor]:
    """Linear discriminant analysis from the moments alone: (weight, bias); score = features @ weight.T + bias.

    weight_c = W^-1 m_c, bias_c = -m_c' W^-1 m_c / 2 + log n_c; a class nobody holds has bias -inf.
    """
    pooled = pool(digests)
    weight = np.linalg.solve(pooled.covariance, pooled.means.T).T
    held = pooled.weights > 0
    bias = np.where(held, -0.5 * (weight * pooled.means).sum(1) + np.log(np.where(held, pooled.weights, 1.0)), -np.inf)
    return torch.from_numpy(weight).float(), torch.from_numpy(bias).float()


def shrunk_means(digests: Sequence[MomentDigest], pooled: Pooled) -> list[Array]:
    """Each client's class means, shrunk to the class mean by as much as noise, not difference, explains.

    A cell's own mean differs from the class mean by a true difference of variance b and noise of variance v =
    (sigma/n)^2; its best linear estimate keeps b / (b + v) of the difference. b is estimated from all trusted cells.
    """
    excess: list[float] = []
    own = []
    for digest, trusted in zip(digests, pooled.trusted, strict=True):
        counts = np.where(trusted, digest.counts, np.inf)
        difference = np.where(trusted[:, None], digest.sums / counts[:, None] - pooled.means, 0.0)
        variance = (digest.sigma / counts) ** 2
        own.append((difference, variance))
        excess += list(((difference**2).mean(1) - variance)[trusted])
    between = max(0.0, float(np.mean(excess)))
    return [
        pooled.means + difference * (between / np.maximum(between + variance, 1e-300))[:, None]
        for difference, variance in own
    ]


def sample(
    digests: Sequence[MomentDigest], generator: torch.Generator, count: int | None = None
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each client (features, labels) drawn from its noisy moments; none where no cell is trusted."""
    pooled = pool(digests)
    means = shrunk_means(digests, pooled)
    return [draw(digest, own, pooled, generator, count) for digest, own in zip(digests, means, strict=True)]


def draw(
    digest: MomentDigest, means: Array, pooled: Pooled, generator: torch.Generator, count: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of unit norm and labels of one client, drawn around its shrunk means with the pooled covariance.

    count: records, dealt to its trusted classes in proportion to their counts; None: as many as it has.
    """
    weights = np.where(trusted_cells(digest), digest.counts, 0.0)
    numbers = np.rint(weights).astype(np.int64) if count is None else shares(weights, count)
    labels = torch.from_numpy(np.repeat(np.arange(len(weights)), numbers))
    root = torch.from_numpy(np.linalg.cholesky(pooled.covariance))
    spread = torch.randn((len(labels), len(root)), generator=generator, dtype=torch.float64) @ root.T
    features = torch.from_numpy(means)[labels] + spread
    return torch.nn.functional.normalize(features, dim=1).float(), labels


def shares(weights: Array, count: int) -> NDArray[np.int64]:
    """Whole numbers in proportion to the weights that add up to count (largest remainders); zeros if all weights are.

    >>> shares(np.array([3.0, 0.0, 1.0]), 6).tolist()
    [5, 0, 1]
    """
    if weights.sum() <= 0:
        return np.zeros(len(weights), dtype=np.int64)
    ideal = weights / weights.sum() * count
    whole: NDArray[np.int64] = np.floor(ideal).astype(np.int64)
    most = np.argsort(-(ideal - whole), kind="stable")[: count - int(whole.sum())]
    whole[most] += 1
    return whole
