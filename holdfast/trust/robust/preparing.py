"""What is done to the rows before a robust rule sees them: mixing, clipping, buckets. Each can be traced back.

NNM is in krum.py, because it goes by the same distances.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.rows import Prepared, blocks, checked, checked_hostile, combined, norms_of


def clip_norms(updates: Tensor, bound: float | None = None) -> Prepared:
    """Each row shortened to the bound where it is longer; without a bound, to the median of the rows' lengths.

    >>> clip_norms(torch.tensor([[1.0, 0.0], [0.0, 2.0], [30.0, 40.0]])).updates
    tensor([[1.0000, 0.0000],
            [0.0000, 2.0000],
            [1.2000, 1.6000]])

    Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, 2019.
    """
    return scaled(updates, clip_factors(updates, bound))


def adaptive_clipping(updates: Tensor, f: int) -> Prepared:
    """ARC: the k longest rows are shortened to the length of the next one, k = floor(2 f (n - f) / n); 2f < n.

    So no bound has to be chosen, and a rule that withstands f rows still does: one that is (f, kappa)-robust is
    (f, kappa + 2f / (n - 2f))-robust after it.

    >>> adaptive_clipping(torch.tensor([[3.0, 4.0], [0.0, 2.0], [60.0, 80.0]]), f=1).updates  # k = floor(4 / 3)
    tensor([[3., 4.],
            [0., 2.],
            [3., 4.]])

    Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan: Adaptive Gradient Clipping for Robust Federated Learning, 2025.
    """
    n = len(checked(updates, "ARC"))
    checked_hostile(f, n, 2, 1, "ARC")
    norms = norms_of(updates)
    bound = norms.sort(descending=True).values[2 * f * (n - f) // n]
    return scaled(updates, shortening(norms, float(bound)))


def bucketing(updates: Tensor, size: int, order: Tensor) -> Prepared:
    """The means of buckets of `size` rows, filled in the given order; the last one may hold fewer.

    Of n rows ceil(n / size) are left, of which at most f are touched by f hostile ones. What is unusual about an honest
    row is diluted before a rule that looks for outliers sees it.

    >>> bucketing(torch.tensor([[0.0], [1.0], [2.0], [9.0], [5.0]]), 2, torch.tensor([3, 0, 1, 2, 4])).updates
    tensor([[4.5000],
            [1.5000],
            [5.0000]])

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022.
    """
    n = len(checked(updates, "bucketing"))
    if size < 1 or sorted(order.tolist()) != list(range(n)):
        raise HoldfastError(f"bucketing: it needs a size from 1 on and an order of all {n} rows, got size {size}.")
    mixing = torch.zeros(-(-n // size), n, dtype=torch.float64)
    means = torch.empty(len(mixing), updates.shape[1], dtype=updates.dtype)
    for bucket, rows in enumerate(order.split(size)):
        mixing[bucket, rows] = 1 / len(rows)
        means[bucket] = combined(updates, mixing[bucket, rows], rows)
    return Prepared(means, mixing)


def scaled(updates: Tensor, factors: Tensor) -> Prepared:
    """Each row times its factor, in float64: a factor may be below what float32 holds."""
    found = torch.empty_like(updates)
    for columns in blocks(updates.shape[1]):
        found[:, columns] = updates[:, columns] * factors[:, None]
    return Prepared(found, factors.diag())


def clip_factors(updates: Tensor, bound: float | None) -> Tensor:
    norms = norms_of(checked(updates, "norm clipping"))
    if bound is None:
        bound = float(norms.quantile(0.5))
    elif not 0 < bound < float("inf"):
        raise HoldfastError(f"norm clipping: the bound must be a number above zero, got {bound}.")
    return shortening(norms, bound)


def shortening(norms: Tensor, bound: float) -> Tensor:
    """The factor that brings each length down to the bound; 1 for those below it."""
    return torch.where(norms > bound, bound / norms.clamp_min(torch.finfo(torch.float64).tiny), 1.0)
