"""The moderator's side of the moment digest: what all digests say together, and samples that stand in for a client.

All of it is post-processing of what the clients released: it costs no privacy. It is computed with torch, whose threads
a run counts; numpy's would get in the way of the workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.digests.moments import MomentDigest

LEAST = 0.3  # of the usual variance: no direction has less where noise could explain it
LEAST_SPREAD = 0.05  # of a record's squared distance from its class's mean
OWN_MOST = 0.9  # of a class's variance that its own strong directions may take


@dataclass(frozen=True)
class Pooled:
    """What all digests say together of every client's classes."""

    counts: Tensor  # (clients, classes): records in trusted cells, else 0
    means: Tensor  # (clients, classes, k)
    classes: Tensor  # (classes, k): the means of all clients together
    covariances: Tensor  # (classes, k, k), with what is not known of the mean; zero where nobody holds the class
    roots: Tensor  # (classes, k, k): their Cholesky factors


def pool(digests: Sequence[MomentDigest]) -> Pooled:
    """Means shrunk by their noise, and each class's covariance: its strong directions, and the shared shape beyond."""
    if not digests:
        raise HoldfastError("moment digests: there are none to pool.")
    shapes = {digest.means.shape for digest in digests}
    if len(shapes) > 1:
        raise HoldfastError(f"moment digests: clients disagree about (classes, features): {sorted(shapes)}.")
    counts = _stack([digest.counts * digest.trusted for digest in digests])
    total = counts.sum(0)
    if not bool((total > 0).any()):
        raise HoldfastError("moment digests: no client has a class with enough records for its noise; raise epsilon.")
    second = _stack([digest.shared for digest in digests]).sum(0)
    shape = shared_shape(second, math.sqrt(sum(digest.scales.of_shared**2 for digest in digests)))
    noise = _stack([digest.mean_noise**2 for digest in digests])
    means, classes, unsure = shrunk_means(counts, _stack([digest.means for digest in digests]), noise, shape)
    # Records of unit length lie 1 - |mean|^2 from their mean, squared; shorter ones nearer, as their trace shows.
    # Of few records noise, or a liar, can make it less than nothing, which no covariance is.
    length = min(1.0, max(LEAST_SPREAD, float(second.trace() / total.sum())))
    traces = (1 - classes.square().sum(1)).clamp(min=LEAST_SPREAD) * length
    covariances = torch.zeros(len(total), *shape.shape, dtype=shape.dtype)
    roots = covariances.clone()
    for c in (total > 0).nonzero().flatten().tolist():
        parts = [
            math.sqrt(float(own[c] / total[c])) * torch.from_numpy(digest.strong[digest.owner == c])
            for own, digest in zip(counts, digests, strict=True)
        ]
        covariances[c] = class_shape(torch.cat(parts), shape) * traces[c] + unsure[c]
        roots[c] = torch.linalg.cholesky(covariances[c])
    return Pooled(counts, means, classes, covariances, roots)


def shrunk_means(counts: Tensor, means: Tensor, noise: Tensor, shape: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each client's class means (clients, classes, k), those of all clients together (classes, k), and the covariance
    of what is not known of these (classes, k, k).

    A class's mean weighs those of its clients by their noise v and sampling error. Around the mean of all classes it is
    taken as N(0, b S), S the shape within classes, with noise v: along a direction of S with variance s it keeps
    b s/(b s + v) of its difference, and b s v/(b s + v) of it stays unknown. A client's mean keeps d/(d + v) of its
    difference from its class's, d the variance of true differences, estimated where a class has several clients.
    """
    total, k = counts.sum(0), means.shape[2]
    held = total > 0
    weights = torch.where(counts > 0, 1 / (noise + 0.5 / k / counts.clamp(min=1.0)), torch.zeros_like(noise))
    share = weights / weights.sum(0).clamp(min=1e-30)
    classes = (share[:, :, None] * means).sum(0)
    away = torch.where(counts[:, :, None] > 0, means - classes, torch.zeros_like(means))
    several = (counts > 0) & ((counts > 0).sum(0) > 1)
    between = 0.0
    if bool(several.any()):
        excess = away.square().mean(2) - noise * (1 - share) ** 2
        between = max(0.0, float((excess * counts)[several].sum() / counts[several].sum()))
    own = away * (between / (between + noise).clamp(min=1e-30))[:, :, None]
    spread = (share**2 * noise).sum(0)
    middle = total @ classes / total.sum()
    values, axes = torch.linalg.eigh(shape)
    off = torch.where(held[:, None], classes - middle, torch.zeros_like(classes)) @ axes
    true = max(1e-6, float((off.square().sum(1) - k * spread)[held].mean())) * values.clamp(min=1e-12)
    keep = true / (true + spread[:, None])
    classes = torch.where(held[:, None], middle + (off * keep) @ axes.T, torch.zeros_like(classes))
    unsure = torch.einsum("ki,ci,li->ckl", axes, keep * spread[:, None], axes)
    return classes + own, classes, unsure


def shared_shape(second: Tensor, sigma: float) -> Tensor:
    """The shared second moment cleaned of its noise, with trace 1; what noise could hide is not taken for nothing."""
    values, axes = denoised(second, sigma)
    usual = float(values.clamp(min=0).mean())
    floor = max(min(LEAST * usual, sigma * math.sqrt(len(values) / 2)), 1e-6 * max(usual, 1.0))
    whole: Tensor = (axes * values.clamp(min=floor)) @ axes.T
    return whole / whole.trace()


def denoised(matrix: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
    """The variance that a matrix seen through symmetric noise truly has along each of its eigenvectors, and these.

    With noise of deviation sigma on the diagonal and sigma/sqrt(2) off it, the eigenvector of an eigenvalue y has the
    true variance y - 2 (sigma^2/2) sum_j 1/(y - y_j) on the average, the best estimate that any function of the noisy
    matrix's spectrum has (Bun, Allez, Bouchaud, Potters 2016); 1/x is smoothed to x/(x^2 + sigma^2/2).

    >>> denoised(torch.diag(torch.tensor([1.0, 13.0])), 2.0)[0]  # 13 - 4 x 12/(144 + 2)
    tensor([ 1.3288, 12.6712])
    """
    values, vectors = torch.linalg.eigh(matrix)
    apart = values[:, None] - values
    pull = (apart / (apart.square() + sigma**2 / 2 + 1e-30)).sum(1)
    return values - sigma**2 * pull, vectors


def class_shape(strong: Tensor, shape: Tensor) -> Tensor:
    """A class's second moment with trace 1: its own strong directions (r, k), and at right angles to them the shape."""
    if not bool(strong.any()):  # none, or all rounded to nothing on the way
        return shape
    own: Tensor = strong.T @ strong
    _, size, axes = torch.linalg.svd(strong, full_matrices=False)
    axes = axes[size > 1e-6 * size.max().clamp(min=1e-12)]
    beyond = torch.eye(len(shape), dtype=shape.dtype) - axes.T @ axes
    rest = beyond @ shape @ beyond
    left = float(rest.trace())
    share = min(float(own.trace()), OWN_MOST) if left > 1e-6 else 1.0  # few features: nothing is left beyond
    whole: Tensor = own * (share / float(own.trace())) + rest * ((1 - share) / max(left, 1e-6))
    return whole + 1e-6 * torch.eye(len(shape), dtype=shape.dtype) / len(shape)


def draw(pooled: Pooled, client: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Features of unit norm and labels that stand in for one client (by its place): as many as it has in each class."""
    numbers = pooled.counts[client].round().long()
    labels = torch.arange(len(numbers)).repeat_interleave(numbers)
    noise = torch.randn((len(labels), pooled.means.shape[2]), generator=generator, dtype=torch.float64)
    spread = torch.cat([part @ root.T for part, root in zip(noise.split(numbers.tolist()), pooled.roots, strict=True)])
    features = pooled.means[client][labels] + spread
    return torch.nn.functional.normalize(features, dim=1).float(), labels


def _stack(arrays: Sequence[np.typing.NDArray[np.float64]]) -> Tensor:
    return torch.from_numpy(np.stack(arrays)).double()
