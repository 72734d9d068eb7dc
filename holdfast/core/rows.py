"""What the robust rules share: checked rows, an order of their own, inner products, weighted sums.

A rule must not depend on the order in which clients happen to stand. So every rule works on the rows in
*canonical order* (lexicographic in their values): the arithmetic, and therefore each rounding and each tie, is the
same whatever order they came in. Rows that are equal in every value are interchangeable; the first goes first.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError

COLUMNS = 4096  # a block of 100 rows, in float64, stays in the cache: measured twice as fast as 8192


class Aggregate(NamedTuple):
    """The aggregate (d,), and how much say each row kept in it (n,), float64."""

    vector: Tensor
    weights: Tensor


class Prepared(NamedTuple):
    """Rows made ready for a rule, and the matrix that made them: updates = mixing @ what was given."""

    updates: Tensor
    mixing: Tensor


def through(prepared: Prepared, aggregate: Aggregate) -> Aggregate:
    """The aggregate of prepared rows with its weights traced back to the rows that were given.

    >>> prepared = Prepared(torch.tensor([[3.0], [3.0]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
    >>> through(prepared, Aggregate(torch.tensor([3.0]), torch.tensor([1.0, 0.0]))).weights
    tensor([0.5000, 0.5000])
    """
    return Aggregate(aggregate.vector, aggregate.weights @ prepared.mixing.to(aggregate.weights.dtype))


def checked(updates: Tensor, rule: str) -> Tensor:
    """The updates, if they are a matrix of finite float32: no rule lets NaN or infinity through."""
    if updates.dim() != 2 or updates.dtype != torch.float32 or 0 in updates.shape:
        raise HoldfastError(
            f"{rule}: expected a matrix of float32 with a row for each client, got {updates.dtype} "
            f"of shape {tuple(updates.shape)}."
        )
    low, high = updates.aminmax(dim=1)  # NaN goes through to both
    bad = (~(low.isfinite() & high.isfinite())).nonzero().flatten().tolist()
    if bad:
        raise HoldfastError(f"{rule}: row {bad[0]} holds NaN or infinity; leave such an update out beforehand.")
    return updates


def checked_hostile(f: int, n: int, slope: int, offset: int, rule: str) -> int:
    """The number f of hostile rows to withstand, if there are the slope x f + offset rows that the rule needs."""
    if not isinstance(f, int) or isinstance(f, bool) or f < 0:
        raise HoldfastError(
            f"{rule}: f, the hostile clients to withstand, must be a whole number from 0 on, got {f!r}."
        )
    if n < slope * f + offset:
        raise HoldfastError(
            f"{rule}: to withstand f = {f} hostile clients it needs {slope * f + offset} updates, got {n}; "
            "lower f or ask more clients."
        )
    return f


def canonical_order(updates: Tensor) -> Tensor:
    """The rows' numbers in lexicographic order of their values.

    >>> canonical_order(torch.tensor([[2.0, 0.0], [1.0, 9.0], [1.0, 3.0]])).tolist()
    [2, 1, 0]
    """
    heads = updates[:, :64].tolist()  # nearly always enough to tell two rows apart

    def compare(a: int, b: int) -> int:
        if heads[a] != heads[b]:
            return -1 if heads[a] < heads[b] else 1
        differ = updates[a] != updates[b]
        first = int(differ.to(torch.uint8).argmax())
        return int(torch.sign(updates[a, first].double() - updates[b, first].double()))

    return torch.tensor(sorted(range(len(updates)), key=functools.cmp_to_key(compare)))


def blocks(width: int) -> Iterator[slice]:
    """The columns, a block at a time: no rule needs a second copy of all updates."""
    return (slice(start, min(start + COLUMNS, width)) for start in range(0, width, COLUMNS))


def inner_products(updates: Tensor, order: Tensor | None = None) -> Tensor:
    """G_ij = <x_i, x_j> in float64, rows in the given order, if any. Float64 holds the square of any float32."""
    gram = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for columns in blocks(updates.shape[1]):
        block = (updates[:, columns] if order is None else updates[:, columns][order]).double()
        gram.addmm_(block, block.T)
    return gram


def squared_distances(gram: Tensor) -> Tensor:
    """|x_i - x_j|^2 = G_ii + G_jj - 2 G_ij, never below zero.

    >>> squared_distances(torch.tensor([[1.0, 2.0], [2.0, 4.0]]))
    tensor([[0., 1.],
            [1., 0.]])
    """
    norms = gram.diagonal()
    return (norms[:, None] + norms[None, :] - 2 * gram).clamp_min(0).fill_diagonal_(0)


def dots(updates: Tensor, vector: Tensor, order: Tensor) -> Tensor:
    """<x_i, v> in float64, rows in the given order."""
    total = torch.zeros(len(order), dtype=torch.float64)
    for columns in blocks(updates.shape[1]):
        total += updates[:, columns][order].double() @ vector[columns].double()
    return total


def norms_of(updates: Tensor) -> Tensor:
    """The length of each row, in float64."""
    total = torch.zeros(len(updates), dtype=torch.float64)
    for columns in blocks(updates.shape[1]):
        total += updates[:, columns].double().square_().sum(1)
    return total.sqrt()


def combined(updates: Tensor, weights: Tensor, order: Tensor) -> Tensor:
    """sum_i weights_i x_i, the weights in the given order; rows without weight are not read."""
    kept = weights != 0
    rows, weights = order[kept], weights[kept].double()
    total = torch.zeros(updates.shape[1], dtype=updates.dtype)
    for columns in blocks(updates.shape[1]):
        total[columns] = (weights @ updates[:, columns][rows].double()).to(updates.dtype)
    return total


def as_given(weights: Tensor, order: Tensor) -> Tensor:
    """Weights that are in canonical order, in the order in which the rows were given."""
    given = torch.empty_like(weights)
    given[order] = weights
    return given


def say(block: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """How many columns each row speaks for: those where it lies in [low, high], shared with all others that do."""
    inside = ((block >= low) & (block <= high)).astype(np.float32)
    shares: np.ndarray = inside @ (1.0 / inside.sum(0, dtype=np.float32))
    return shares.astype(np.float64)
