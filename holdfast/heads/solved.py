"""Heads in closed form: from counts n_c, means m_c and covariances S_c of classes to scores of each class.

nearest-mean   s_c(z) = (m_c' z - |m_c|^2 / 2) / v,   v = tr W / k                  FedNCM, by distance for angle
lda            s_c(z) = m_c' W^-1 z - m_c' W^-1 m_c / 2 + log p_c                   W: the covariance within classes
fedcgs         the same with T, the covariance of all records, in place of W        FedCGS (AAAI 2025)
qda            s_c(z) = -(z - m_c)' C_c^-1 (z - m_c) / 2 - log |C_c| / 2 + log p_c, C_c = (1 - a) W + a S_c
ridge          W = (sum z z' + l I)^-1 sum z y'                                     Fed3R (ICML 2024), AFL (CVPR 2025)

p_c = n_c / n. Covariances are shrunken first, S <- (1 - b) S + b (tr S / k) I; ridge has l = b tr(sum z z') / k. All of
them are the same however the records are dealt out: who leaves after its digest is missed by nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast.core.types import Tensors
from holdfast.heads.evidence import Evidence

SHRINK = 0.02  # b
OWN = 0.3  # a of qda: a class's own covariance against that within all classes
OWN_SHRINK = 0.1  # b of qda
NEVER = -1e4  # the score of a class that nobody holds


def nearest_mean(evidence: Evidence) -> Tensors:
    """The class whose mean is nearest.

    >>> two = Evidence(torch.ones(2).double(), torch.tensor([[0.0], [4.0]]).double(), torch.ones(2, 1, 1).double())
    >>> found = nearest_mean(two)  # equal at 2
    >>> found["weight"].flatten().tolist(), found["bias"][1].item()
    ([0.0, 4.0], -8.0)
    """
    means, variance = evidence.means, float(evidence.within.diagonal().mean())
    return linear(evidence, means / variance, -means.square().sum(1) / 2 / variance)


def lda(evidence: Evidence) -> Tensors:
    """Linear discriminant analysis."""
    return discriminant(evidence, shrunken(evidence.within, SHRINK))


def fedcgs(evidence: Evidence) -> Tensors:
    """Linear discriminants with the covariance of all records."""
    return discriminant(evidence, shrunken(evidence.total, SHRINK))


def discriminant(evidence: Evidence, covariance: Tensor) -> Tensors:
    weight = torch.linalg.solve(covariance, evidence.means.T).T
    return linear(evidence, weight, log_shares(evidence) - (weight * evidence.means).sum(1) / 2)


def qda(evidence: Evidence) -> Tensors:
    """Quadratic discriminants, each class's covariance shrunken towards that within all classes."""
    within, squares, weights, biases = evidence.within, [], [], []
    for mean, own in zip(evidence.means, evidence.covariances, strict=True):
        covariance = shrunken((1 - OWN) * within + OWN * own, OWN_SHRINK)
        inverse = torch.linalg.inv(covariance)
        squares.append(-inverse / 2)
        weights.append(inverse @ mean)
        biases.append(-mean @ inverse @ mean / 2 - torch.linalg.slogdet(covariance).logabsdet / 2)
    found = linear(evidence, torch.stack(weights), log_shares(evidence) + torch.stack(biases))
    return {**found, "square": (torch.stack(squares) * evidence.held[:, None, None]).float()}


def ridge(evidence: Evidence, shrink: float = SHRINK) -> Tensors:
    """Least squares to the classes' indicators, times a factor that makes scores of them."""
    gram = evidence.gram
    width = len(gram)
    gram = gram + shrink * gram.trace() / width * torch.eye(width, dtype=gram.dtype)
    weight = torch.linalg.solve(gram, (evidence.counts[:, None] * evidence.means).T).T
    sharp = sharpness(evidence, weight)
    return linear(evidence, sharp * weight, torch.zeros_like(evidence.counts))


def sharpness(evidence: Evidence, weight: Tensor) -> float:
    """Indicators lie between 0 and 1, far too near to each other for a softmax: the factor with which the scores of two
    classes differ by as much as Fisher's discriminant says they do, on the average over classes: d^2 = |m_c - m|^2 in
    W's metric against the difference that these scores make of it.
    """
    shares = evidence.counts / evidence.counts.sum()
    away = evidence.means - shares @ evidence.means
    apart = (torch.linalg.solve(shrunken(evidence.within, SHRINK), away.T).T * away).sum(1)
    made = (weight * away).sum(1)
    return float(shares @ apart) / max(float(shares @ made), 1e-12)


def linear(evidence: Evidence, weight: Tensor, bias: Tensor) -> Tensors:
    """The weights of a linear head; nobody's class is never the answer."""
    held = evidence.held
    return {
        "weight": (weight * held[:, None]).float(),
        "bias": torch.where(held, bias, torch.full_like(bias, NEVER)).float(),
    }


def log_shares(evidence: Evidence) -> Tensor:
    return (evidence.counts / evidence.counts.sum()).clamp(min=math.exp(-30)).log()


def shrunken(covariance: Tensor, share: float) -> Tensor:
    """(1 - b) S + b (tr S / k) I.

    >>> shrunken(torch.tensor([[2.0, 1.0], [1.0, 0.0]]), 0.5)
    tensor([[1.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    width = len(covariance)
    return (1 - share) * covariance + share * covariance.trace() / width * torch.eye(width, dtype=covariance.dtype)
