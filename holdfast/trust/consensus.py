"""Evidence for the jury: how far each update helps what each witness holds, and what the witnesses make of it together.

A witness is a client that tests on its held-out samples, or a client's digest at the moderator (FedDig). The evidence
is a matrix V, witnesses x clients, of values in [-1, 1]; NaN where a witness says nothing (of itself, above all).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


def matrix_of(told: Mapping[int, Mapping[int, float]], witnesses: Sequence[int], clients: Sequence[int]) -> Values:
    """Reports in [0, 1] as a matrix in [-1, 1].

    >>> matrix_of({7: {0: 1.0, 1: 0.25}}, [7], [0, 1, 7])
    array([[ 1. , -0.5,  nan]])
    """
    return np.array([[2 * told[w].get(client, np.nan) - 1 for client in clients] for w in witnesses])


def weighted_median(values: Values, weights: Values) -> Values:
    """The lower weighted median of each column, NaN left out; 0 where nobody with weight says anything.

    >>> weighted_median(np.array([[1.0], [2.0], [9.0]]), np.array([1.0, 1.0, 1.5]))
    array([2.])
    """
    if not values.size:
        return np.zeros(values.shape[1])
    order = values.argsort(axis=0, kind="stable")  # NaN last
    said = np.where(np.isnan(values), 0.0, np.maximum(weights, 0.0)[:, None])
    sums = np.take_along_axis(said, order, 0).cumsum(0)
    place = (sums < (0.5 - 1e-12) * sums[-1]).sum(0)
    found: Values = np.take_along_axis(values, np.take_along_axis(order, place[None], 0), 0)[0]
    return np.where(sums[-1] > 0, found, 0.0)


def middle_of(values: Values, weights: Values) -> Values:
    """The weighted median of each column, half way between the lower and the upper one.

    >>> middle_of(np.array([[1.0], [2.0], [4.0], [9.0]]), np.ones(4))
    array([3.])
    """
    return np.asarray((weighted_median(values, weights) - weighted_median(-values, weights)) / 2)


def consensus(values: Values, credibility: Values) -> Values:
    """The credibility-weighted mean of each column, each value brought within three deviations of its column's median;
    0 where nobody says anything.

    A deviation is 1.48 x the median distance from the columns' medians, the same for all columns.
    """
    middle = weighted_median(values, credibility)
    said = ~np.isnan(values)
    distances = np.abs(values - middle)[said]
    reach = 3 * 1.4826 * float(np.median(distances)) if distances.size else 0.0
    kept = np.where(said, np.clip(np.nan_to_num(values), middle - reach, middle + reach), 0.0)
    weights = said * credibility[:, None]
    total = weights.sum(0)
    mean: Values = (kept * weights).sum(0) / np.where(total > 0, total, 1.0)
    return mean


def agreement(values: Values, credibility: Values) -> Values:
    """How each witness agrees with the others: the correlation of its row with the median of all, at least 0.

    A row of fewer than three values tells nothing of its witness, who is then believed.

    >>> v = np.array([[0.1, 0.2, -0.3], [0.2, 0.3, -0.2], [-1.0, -1.0, 1.0], [0.0, 0.3, -0.4]])
    >>> agreement(v, np.ones(4)).round(1).tolist()  # the third one lies
    [1.0, 1.0, 0.0, 1.0]
    """
    said = ~np.isnan(values)
    count = said.sum(1)

    def centred(rows: Values) -> Values:
        heard = np.where(said, rows, 0.0)
        return np.where(said, heard - heard.sum(1, keepdims=True) / np.maximum(count, 1)[:, None], 0.0)

    a, b = centred(values), centred(np.broadcast_to(weighted_median(values, credibility), values.shape))
    lengths = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    found = np.maximum(0.0, (a * b).sum(1) / np.where(lengths > 0, lengths, 1.0))
    return np.where(count >= 3, found, 1.0)


def concordance(values: Values) -> Values:
    """How far each witness's row is what the others say: the concordance of two rows, over what both tell, is

        2 <v, w> / (|v|^2 + |w|^2), at least 0

    less where one turns things round, and where one makes them larger or smaller (Lin 1989, about zero). First each
    counts the median of its concordances with the others, so that less than half, however much alike, believe only
    each other; then the concordance with the median of all so weighed.

    >>> v = np.array([[1.0, 1.0, np.nan], [1.0, 1.0, 1.0], [1.0, np.nan, 1.0], [-1.0, -1.0, -1.0], [0.0, 0.0, 0.0]])
    >>> concordance(v).round(1).tolist()  # of the last column's four words two are lies
    [1.0, 1.0, 1.0, 0.0, 0.0]
    """
    said, rows = ~np.isnan(values), np.nan_to_num(values)
    squares = rows * rows @ said.T
    between = ratio(rows @ rows.T, squares + squares.T)
    between[(said.astype(int) @ said.T == 0) | np.eye(len(rows), dtype=bool)] = np.nan
    first = middle_of(between, np.ones(len(rows)))
    own = np.where(said, middle_of(values, first if first.any() else np.ones(len(rows))), 0.0)
    return ratio((rows * own).sum(1), (rows * rows + own * own).sum(1))


def ratio(products: Values, squares: Values) -> Values:
    """Twice the products by the sums of squares, at least 0; 1 where nothing is told to be other than zero."""
    return np.where(squares > 0, 2 * np.maximum(0.0, products) / np.where(squares > 0, squares, 1.0), 1.0)


def near_duplicates(products: Tensor, twin: float) -> Flags:
    """Of updates' inner products: which are nearly the same, 1 - cosine below `twin` times the usual of two updates.

    >>> rows = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> near_duplicates(rows @ rows.T, 0.1).sum(1).tolist()
    [2, 2, 1, 1]
    """
    lengths = products.diagonal().sqrt()
    away = 1 - (products / (lengths[:, None] * lengths).clamp_min(torch.finfo(products.dtype).tiny)).numpy()
    others = ~np.eye(len(away), dtype=bool)
    usual = float(np.median(away[others])) if len(away) > 1 else 1.0
    near: Flags = (away < twin * usual) & others
    silent = (lengths == 0).numpy()
    near[silent] = near[:, silent] = False  # an update of zeros is like no other
    return near | ~others
