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
from holdfast.digests.moments import MomentDigest, spikes

MOST_SHARED = 40  # directions of the shared second moment
LEAST = 0.1  # of the usual variance: no direction and no class has less


@dataclass(frozen=True)
class Pooled:
    """What all digests say together of every client's classes."""

    counts: Tensor  # (clients, classes): records in trusted cells, else 0
    means: Tensor  # (clients, classes, k)
    covariances: Tensor  # (classes, k, k); zero where nobody holds the class
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
    means, classes = shrunk_means(
        counts, _stack([digest.means for digest in digests]), _stack([digest.mean_noise**2 for digest in digests])
    )
    second = _stack([digest.shared for digest in digests]).sum(0)
    shape = shared_shape(second, math.sqrt(sum(digest.scales.of_shared**2 for digest in digests)))
    covariances = torch.zeros(len(total), *shape.shape, dtype=shape.dtype)
    roots = covariances.clone()
    for c in (total > 0).nonzero().flatten().tolist():
        parts = [
            math.sqrt(float(own[c] / total[c])) * torch.from_numpy(digest.strong[digest.owner == c])
            for own, digest in zip(counts, digests, strict=True)
        ]
        # Records of unit length lie 1 - |mean|^2 from their mean, squared: the covariance's trace is known.
        covariances[c] = class_shape(torch.cat(parts), shape) * max(0.05, 1 - float(classes[c].square().sum()))
        roots[c] = torch.linalg.cholesky(covariances[c])
    return Pooled(counts, means, covariances, roots)


def shrunk_means(counts: Tensor, means: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Each client's class means (clients, classes, k), and those of all clients together (classes, k).

    A client's mean keeps b/(b + v) of its difference from its class's, v being its noise's variance and b that of true
    differences, estimated where a class has several clients. A class's mean keeps as much of its difference from the
    mean of all, coordinate by coordinate: half of b is the coordinate's own, half is common to all.
    """
    total = counts.sum(0)
    held, share = total > 0, counts / total.clamp(min=1.0)
    classes = (share[:, :, None] * means).sum(0)
    away = torch.where(counts[:, :, None] > 0, means - classes, torch.zeros_like(means))
    several = (counts > 0) & ((counts > 0).sum(0) > 1)
    between = 0.0
    if bool(several.any()):
        excess = away.square().mean(2) - noise * (1 - share) ** 2
        between = max(0.0, float((excess * counts)[several].sum() / counts[several].sum()))
    own = away * (between / (between + noise).clamp(min=1e-30))[:, :, None]
    spread = (share**2 * noise).sum(0)
    middle = (total[:, None] * classes).sum(0) / total.sum()
    off = torch.where(held[:, None], classes - middle, torch.zeros_like(classes))
    true = (off[held].square().mean(0) - spread[held].mean()).clamp(min=0)
    true = (true + true.mean()) / 2
    classes = middle + off * true / (true + spread[:, None]).clamp(min=1e-30)
    return classes + own, classes


def shared_shape(second: Tensor, sigma: float) -> Tensor:
    """The shared second moment cleaned of its noise, with trace 1: what stands out of it, and a diagonal rest.

    The rest's diagonal keeps as much of its own profile as noise does not explain.
    """
    directions, strength = spikes(second, sigma, MOST_SHARED)
    strong = (directions * strength) @ directions.T
    rest = second.diagonal() - strong.diagonal()
    base = max(float(rest.mean()), 1e-3 * float(second.trace().clamp(min=1.0)) / len(second))
    profile = max(0.0, float((rest - base).square().mean()) - sigma**2)
    rest = base + (rest - base) * profile / max(profile + sigma**2, 1e-30)
    whole: Tensor = strong + torch.diag(rest.clamp(min=LEAST * base))
    return whole / whole.trace()


def class_shape(strong: Tensor, shape: Tensor) -> Tensor:
    """A class's second moment with trace 1: its own strong directions (r, k), and at right angles to them the shape."""
    if not len(strong):
        return shape
    own: Tensor = strong.T @ strong
    _, size, axes = torch.linalg.svd(strong, full_matrices=False)
    axes = axes[size > 1e-6 * size.max().clamp(min=1e-12)]
    beyond = torch.eye(len(shape), dtype=shape.dtype) - axes.T @ axes
    rest = beyond @ shape @ beyond
    left = float(rest.trace())
    share = min(float(own.trace()), 1 - LEAST) if left > 1e-6 else 1.0  # few features: nothing is left beyond
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
