"""Robust rules that look at how far the updates are from each other: Krum, Multi-Krum, Bulyan, NNM."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.rows import (
    Aggregate,
    Prepared,
    as_given,
    blocks,
    canonical_order,
    checked,
    checked_hostile,
    combined,
    inner_products,
    say,
    squared_distances,
)


def krum(updates: Tensor, f: int) -> Aggregate:
    """The row that is closest to its n - f - 2 nearest neighbours (itself not counted); 2f + 2 < n.

        score_i = sum of |x_i - x_j|^2 over the n - f - 2 rows j != i nearest to i;    the least score wins

    Of rows with the same score the lexicographically smallest wins, in whatever order they were given.

    >>> krum(torch.tensor([[0.0], [1.0], [3.0], [4.5], [90.0]]), f=1)  # scores 10, 5, 6.25, 14.5, ...
    Aggregate(vector=tensor([1.]), weights=tensor([0., 1., 0., 0., 0.], dtype=torch.float64))

    Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries, NeurIPS 2017.
    """
    return _best(updates, f, 1, "Krum")


def multi_krum(updates: Tensor, f: int, m: int | None = None) -> Aggregate:
    """The mean of the m rows with the least Krum scores; m is n - f - 2 unless told, and at most n - f.

    >>> multi_krum(torch.tensor([[0.0], [1.0], [3.0], [4.5], [90.0]]), f=1, m=2).vector
    tensor([2.])

    Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries, NeurIPS 2017.
    """
    return _best(updates, f, m, "Multi-Krum")


def _best(updates: Tensor, f: int, m: int | None, rule: str) -> Aggregate:
    n = len(checked(updates, rule))
    checked_hostile(f, n, 2, 3, rule)
    m = n - f - 2 if m is None else m
    if not 1 <= m <= n - f:
        raise HoldfastError(f"{rule}: m, the rows to keep, must be from 1 to n - f = {n - f}, got {m}.")
    order = canonical_order(updates)
    scores = _scores(squared_distances(inner_products(updates, order)), n - f - 2)
    weights = torch.zeros(n, dtype=torch.float64)
    weights[scores.argsort(stable=True)[:m]] = 1 / m
    return Aggregate(combined(updates, weights, order), as_given(weights, order))


def _scores(distances: Tensor, neighbours: int) -> Tensor:
    others = distances.clone().fill_diagonal_(torch.inf)
    return others.sort(dim=1).values[:, :neighbours].sum(1)


def bulyan(updates: Tensor, f: int) -> Aggregate:
    """Krum chooses n - 2f rows one after the other; then, in each coordinate, those nearest to the median are averaged.

        theta = n - 2f rows, each the winner of Krum among the rows not yet chosen;    4f + 3 <= n
        beta = theta - 2f values of each coordinate, the nearest to its median among the chosen

    Once few rows are left Krum counts at least one neighbour. Of two values equally far from the median the smaller
    is kept. The weights say how much of the coordinates' means came from a row.

    >>> bulyan(torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [90.0]]), f=1).vector
    tensor([2.])

    El Mhamdi, Guerraoui, Rouault: The Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018.
    """
    n, d = checked(updates, "Bulyan").shape
    checked_hostile(f, n, 4, 3, "Bulyan")
    order = canonical_order(updates)
    chosen = order[_winners(squared_distances(inner_products(updates, order)), f)]
    vector, shares = torch.empty(d, dtype=updates.dtype), np.zeros(len(chosen))
    for columns in blocks(d):
        block = updates[:, columns][chosen].detach().numpy()
        mean, low, high = _around_median(block, len(chosen) - 2 * f)
        vector[columns] = torch.from_numpy(mean).to(updates.dtype)
        shares += say(block, low, high)
    weights = torch.zeros(n, dtype=torch.float64)
    weights[chosen] = torch.from_numpy(shares / shares.sum())
    return Aggregate(vector, weights)


def _winners(distances: Tensor, f: int) -> Tensor:
    left = torch.arange(len(distances))
    winners = []
    for _ in range(len(distances) - 2 * f):
        scores = _scores(distances[left][:, left], min(len(left) - 1, max(1, len(left) - f - 2)))
        best = int(scores.argmin())  # the first of equal ones
        winners.append(int(left[best]))
        left = torch.cat([left[:best], left[best + 1 :]])
    return torch.tensor(sorted(winners))


def _around_median(block: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean, least and greatest of the `count` values nearest to the median, in each column.

    >>> _around_median(np.array([[0.0], [3.0], [4.0], [9.0], [5.0]]), 3)[0]
    array([4.])
    """
    ranked = np.sort(block, axis=0)
    n = len(ranked)
    middle = ranked[[(n - 1) // 2, n // 2]].mean(0, dtype=np.float64)
    # Sorted, they stand side by side: the lowest value goes as long as the one that would come in at the top is nearer.
    first = ((middle - ranked[: n - count]) > (ranked[count:] - middle)).sum(0, keepdims=True)
    last = first + count - 1
    rank = np.arange(n)[:, None]
    mean = np.where((rank >= first) & (rank <= last), ranked, 0).sum(0, dtype=np.float64) / count
    return mean, np.take_along_axis(ranked, first, 0)[0], np.take_along_axis(ranked, last, 0)[0]


def nearest_neighbour_mixing(updates: Tensor, f: int) -> Prepared:
    """NNM: each row becomes the mean of the n - f rows nearest to it, itself among them; 2f < n.

    Put it before another rule, and trace that rule's weights back with through().

    >>> prepared = nearest_neighbour_mixing(torch.tensor([[0.0], [2.0], [90.0]]), f=1)
    >>> prepared.updates.flatten()
    tensor([ 1.,  1., 46.])

    Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: Fixing by Mixing, AISTATS 2023.
    """
    n = len(checked(updates, "NNM"))
    checked_hostile(f, n, 2, 1, "NNM")
    order = canonical_order(updates)
    distances = squared_distances(inner_products(updates, order)).fill_diagonal_(-1)  # itself before a twin
    mixing = torch.zeros(n, n, dtype=torch.float64)
    mixing.scatter_(1, distances.argsort(dim=1, stable=True)[:, : n - f], 1 / (n - f))
    mixed = torch.empty_like(updates)
    for columns in blocks(updates.shape[1]):
        mixed[order, columns] = (mixing @ updates[:, columns][order].double()).to(updates.dtype)
    given = torch.empty_like(mixing)
    given[order[:, None], order[None, :]] = mixing
    return Prepared(mixed, given)
