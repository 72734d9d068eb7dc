"""What digests say together of each class: how many records, their mean and their covariance.

Mixed digests: a row is the mean of s records, so its covariance is sum_k w_k^2 (usually 1/s) of theirs. Class means are
the least-squares fit of the rows to their soft labels; what is left over, divided by sum_k w_k^2 and with the noise's
variance taken off, is the covariance within classes. Where rows mix one class only, each class has its own.

Moments: as moment_sampling.py pools them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.digests.digest import Digest
from holdfast.digests.moment_sampling import pool
from holdfast.digests.moments import MomentDigest
from holdfast.digests.stretching import class_means, spread_of

LEAST = 1e-9  # of the usual variance: below, a covariance cannot be inverted


@dataclass(frozen=True)
class Evidence:
    """Records of each class, in float64; a class that nobody holds has count 0, and mean and covariance 0."""

    counts: Tensor  # (classes,)
    means: Tensor  # (classes, k)
    covariances: Tensor  # (classes, k, k)

    @property
    def held(self) -> Tensor:
        """Which classes somebody holds."""
        return self.counts > 0

    @property
    def within(self) -> Tensor:
        """The covariance within classes, W = sum_c n_c S_c / n."""
        return torch.einsum("c,ckl->kl", self.counts / self.counts.sum(), self.covariances)

    @property
    def total(self) -> Tensor:
        """The covariance of all records, T = W + sum_c n_c (m_c - m)(m_c - m)' / n."""
        shares = self.counts / self.counts.sum()
        away = self.means - shares @ self.means
        return self.within + torch.einsum("c,ck,cl->kl", shares, away, away)

    @property
    def gram(self) -> Tensor:
        """sum z z' over all records."""
        squares = torch.einsum("c,ck,cl->kl", self.counts, self.means, self.means)
        return self.counts.sum() * self.within + squares


def mixed_evidence(digests: Sequence[Digest], noise: float = 0.0) -> Evidence:
    """What mixed digests say; `noise` is the variance of the noise in each number of a row.

    >>> rows = Digest(torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [1.0]]), "", "", 2, "within", "balanced",
    ...     "none", 4, 4)
    >>> found = mixed_evidence([rows])  # rows of two records, 1 and 3: mean 2, variance 2 x 2
    >>> [round(float(part), 6) for part in (found.counts, found.means, found.covariances)]
    [4.0, 2.0, 4.0]
    """
    if not digests:
        raise HoldfastError("digests: there are none to learn from.")
    x = torch.cat([digest.features.flatten(1) for digest in digests]).double()
    y = torch.cat([digest.labels for digest in digests]).double()
    records = torch.cat([torch.full((len(d),), d.used / len(d)) for d in digests]).double()
    kept = torch.cat([torch.full((len(d),), spread_of(d)) for d in digests]).double()
    counts = records @ y
    held = counts > 0
    scale = records.sqrt()[:, None]  # a row of more records lies nearer to its mean
    means = class_means(scale * x, scale * y)
    rest = (x - y @ means) / kept.sqrt()[:, None]
    taken = noise * float((1 / kept).mean())
    within = cleaned(rest.T @ rest / max(1, len(x) - int(held.sum())), taken)
    if all(digest.strategy == "within" for digest in digests):
        found = [cleaned((y[:, c, None] * rest).T @ rest / max(1.0, float(y[:, c].sum()) - 1), taken) if held[c]
                 else torch.zeros_like(within) for c in range(len(counts))]  # fmt: skip
        return Evidence(counts, means, torch.stack(found))
    return Evidence(counts, means, held[:, None, None] * within)


def cleaned(covariance: Tensor, noise: float) -> Tensor:
    """A covariance without the noise's part: no eigenvalue falls below a tenth of the mean, where there is noise."""
    if not noise:
        return covariance
    values, vectors = torch.linalg.eigh(covariance)
    values = values - noise
    floor = max(float(values.mean()) / 10, LEAST)
    found: Tensor = (vectors * values.clamp(min=floor)) @ vectors.T
    return found


def moment_evidence(digests: Sequence[MomentDigest]) -> Evidence:
    """What noisy moments say, all clients of a class together, of all features."""
    pooled = pool(digests)
    found = Evidence(pooled.counts.sum(0), pooled.classes, pooled.covariances)
    basis = digests[0].basis
    return found if basis is None else lifted(found, torch.from_numpy(basis))


def lifted(evidence: Evidence, basis: Tensor) -> Evidence:
    """What is known in some directions (k, d), of all k features: beyond them all classes are alike.

    >>> flat = Evidence(torch.ones(1).double(), torch.tensor([[3.0]]).double(), torch.tensor([[[2.0]]]).double())
    >>> found = lifted(flat, torch.tensor([[0.0], [1.0]]).double())
    >>> found.means.tolist(), found.covariances.tolist()
    ([[0.0, 3.0]], [[[2.0, 0.0], [0.0, 2.0]]])
    """
    usual = evidence.within.diagonal().mean()
    beyond = torch.eye(len(basis), dtype=basis.dtype) - basis @ basis.T
    covariances = basis @ evidence.covariances @ basis.T + evidence.held[:, None, None] * usual * beyond
    return Evidence(evidence.counts, evidence.means @ basis.T, covariances)
