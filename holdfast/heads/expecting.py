"""What accuracy to expect of a linear head that was fitted to moments: a range, from the moments alone.

Two things make a fit look better than it is.

1. The head knows the errors of the very numbers that it would be judged by. So these are split in two (data fission,
   Leiner et al. 2023): of a number x with a known error N(0, s^2) and a draw e ~ N(0, s^2),

       x + a e    and    x - e / a    have independent errors, of variance (1 + a^2) s^2 and (1 + 1/a^2) s^2.

   The head is fitted to the first half and judged by the second. Errors are the noise for privacy, and where there is
   none that of a mean of n records, S / n. The judge's means have an error of covariance V, so records are drawn
   around them with covariance S - V: over errors and records together that is S again. What a covariance of n records
   with k features hides of its own error widens scores by n / (n - k).

2. Records are no Gaussians with one covariance, and moments do not say how far from it they are. On ten public sets
   (docs/results-leaving.md) the head was right as often as if the spread of Gaussian records were 0.96 to 1.77 times
   what it is: the upper end of the range takes it as it is, the lower end WIDE times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from holdfast.core.randomness import rng
from holdfast.digests.moments import MomentDigest
from holdfast.digests.sums import SumDigest
from holdfast.heads.evidence import Evidence
from holdfast.heads.from_sums import class_evidence
from holdfast.privacy.moment_noise import Array, Deviations

WIDE = 1.8
SPLIT = 0.8  # a: the head sees most of what there is
DRAWN = 2_000  # records of each class
LEAST_SPREAD = 0.05  # of records of unit length around their class's mean


@dataclass(frozen=True)
class Judge:
    """What the second half says of each class: records, mean, its error's covariance, and the records' covariance."""

    counts: Tensor  # (classes,)
    means: Tensor  # (classes, k)
    errors: Tensor  # (classes, k, k): V
    covariances: Tensor  # (classes, k, k): S


def halves_of_moments(digests: Sequence[MomentDigest], seed: int) -> tuple[list[MomentDigest], list[MomentDigest]]:
    """Each digest twice, with independent noise in its means and in its shared second moment."""
    ones, others = [], []
    for place, digest in enumerate(digests):
        chance = rng(seed, -1, place, "halves of moments")
        errors = normal(digest.means.shape, chance) * (digest.mean_noise * digest.trusted)[:, None]
        noise = normal(digest.shared.shape, chance)
        noise = digest.scales.of_shared * (noise + noise.T) / 2  # on the diagonal 1, off it 1/sqrt(2)
        ones.append(part_of(digest, errors, noise, SPLIT))
        others.append(part_of(digest, errors, noise, -1 / SPLIT))
    return ones, others


def part_of(digest: MomentDigest, errors: Array, noise: Array, weight: float) -> MomentDigest:
    scales, more = digest.scales, math.sqrt(1 + weight**2)
    return replace(
        digest,
        means=digest.means + weight * errors,
        shared=digest.shared + weight * noise,
        scales=Deviations(more * scales.first, more * scales.second, own=scales.own),
    )


def judge_of_moments(halves: Sequence[MomentDigest]) -> Judge:
    """All clients of a class together; the shared second moment as it is, since what it errs by has mean zero."""
    counts = torch.from_numpy(np.stack([half.counts * half.trusted for half in halves]))
    total = counts.sum(0)
    shares = counts / total.clamp(min=1.0)
    means = torch.einsum("jc,jck->ck", shares, torch.from_numpy(np.stack([half.means for half in halves])))
    errors = (shares * torch.from_numpy(np.stack([half.mean_noise for half in halves]))).square().sum(0)
    width = means.shape[1]
    second = torch.from_numpy(np.sum([half.shared for half in halves], axis=0))
    # As in moment_sampling.pool: records of unit length lie 1 - |mean|^2 from their mean, squared, and shorter ones
    # nearer. |mean|^2 is the larger by its error.
    spread = (1 - means.square().sum(1) + width * errors).clamp(LEAST_SPREAD, 1.0)
    spread = spread * min(1.0, float(second.trace() / total.sum()))
    return Judge(
        total,
        means,
        errors[:, None, None] * torch.eye(width, dtype=means.dtype),
        spread[:, None, None] * second / second.trace(),
    )


def halves_of_sums(digests: Sequence[SumDigest], seed: int) -> tuple[Evidence, Judge]:
    """Exact sums: class means err as means of records do."""
    whole = class_evidence(digests)
    within, held = whole.within, whole.held
    values, axes = torch.linalg.eigh(within)
    root = axes * values.clamp(min=0).sqrt()
    chance = rng(seed, -1, -1, "halves of sums")
    scale = whole.counts.clamp(min=1.0).rsqrt()[:, None] * held[:, None]
    errors = scale * (torch.randn(whole.means.shape, generator=chance, dtype=torch.float64) @ root.T)
    more = (1 + 1 / SPLIT**2) / whole.counts.clamp(min=1.0)
    judge = Judge(
        whole.counts, whole.means - errors / SPLIT, more[:, None, None] * within, within.expand_as(whole.covariances)
    )
    return replace(whole, means=whole.means + SPLIT * errors), judge


def expected(weight: Tensor, bias: Tensor, judge: Judge, seed: int) -> tuple[float, float]:
    """The range of the accuracy of scores W z + b: with records WIDE times as wide as Gaussian ones, and with these."""
    weight, bias = weight.double(), bias.double()
    records, width = float(judge.counts.sum()), judge.means.shape[1]
    hidden = (records / max(records - width, 1.0)) ** 2
    chance = rng(seed, -1, -1, "scores")
    low = high = 0.0
    for c in (judge.counts > 0).nonzero().flatten().tolist():
        middle = weight @ judge.means[c] + bias
        error, spread = (weight @ part[c] @ weight.T for part in (judge.errors, judge.covariances))
        noise = torch.randn(DRAWN, len(bias), generator=chance, dtype=torch.float64)
        share = float(judge.counts[c]) / records
        low, high = (
            sofar + share * right(middle, wide**2 * hidden * spread - error, noise, c)
            for sofar, wide in ((low, WIDE), (high, 1.0))
        )
    return low, high


def right(middle: Tensor, covariance: Tensor, noise: Tensor, c: int) -> float:
    """How often class c has the highest score, with scores of this mean and covariance."""
    values, axes = torch.linalg.eigh(covariance)
    scores = middle + noise @ (axes * values.clamp(min=0).sqrt()).T
    return float((scores.argmax(1) == c).double().mean())


def normal(shape: tuple[int, ...], chance: torch.Generator) -> Array:
    return np.asarray(torch.randn(shape, generator=chance, dtype=torch.float64).numpy())
