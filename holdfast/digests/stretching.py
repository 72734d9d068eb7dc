"""Undoes, at the moderator, what mixing does to the spread of a class: no byte more, no privacy less.

A row d = sum_k w_k r_k + noise mixes records of a class with mean m and covariance S. Its mean is m, but its covariance
is s S + v I, with s = sum_k w_k^2 (1/SpD for equal weights) and v the noise's variance in each coordinate: a model that
is trained on rows sees classes that are too tight, or, with much noise, too wide. Stretching gives them their spread
back, each client's rows around its own class means:

    x = m + a (d - m),    a^2 = max(0, t - v) / (s t),    t: the mean square of what d - m leaves in a coordinate

so that without noise a^2 = 1/s and x has the covariance S; with noise it has the trace of S, since t = s tr(S)/k + v.

- m is not known. E[d | y] = M' y holds for the soft label y, so M is the least-squares fit of the rows to their soft
  labels: class means where a row is of one class, and solved for where rows mix classes. A row of several classes is
  stretched around M' y, and spreads as its records do on the average, sum_k w_k^2 S_(c_k) / s.
- Where rows are few, M follows them: of n rows of a class, x spreads by (1 - (1 - s)/n) S around the true mean. A
  single row stays where it is. For the same reason t is a sum over n - 1; it is a class's, drawn towards the client's.
- No record is longer than the encoder's bound, nor negative where its features cannot be; neither is x.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from holdfast.digests.digest import Digest
from holdfast.encoders.contract import shortened


def stretched(digest: Digest, bound: float | None = None, noise: float = 0.0) -> Digest:
    """The digest with rows that spread as records do: as if it mixed nothing. `noise` is v, `bound` that of a record.

    Two rows of a class, each the mean of four records, are twice as far apart:

    >>> rows, labels = torch.tensor([[-1.0], [1.0]]), torch.tensor([[1.0], [1.0]])
    >>> digest = Digest(rows, labels, "", "", 4, "within", "balanced", "none", 8, 8)
    >>> stretched(digest).features.flatten().tolist(), stretched(digest).spd
    ([-2.0, 2.0], 1)
    """
    flat, labels = digest.features.flatten(1).double(), digest.labels.double()
    middle = labels @ class_means(flat, labels)
    rest = flat - middle
    factor = 1 - noise / labels.mv(mean_squares(rest, labels)).clamp(min=1e-30) if noise else torch.ones(len(flat))
    features = middle + (factor.clamp(min=0) / spread_of(digest)).sqrt()[:, None] * rest
    features = features.float().reshape(digest.features.shape)
    if not digest.signed:
        features = features.clamp(min=0)
    if bound is not None:
        features = shortened(features, bound)
    return replace(digest, features=features, spd=1, weights="balanced")


def mean_squares(rest: Tensor, labels: Tensor) -> Tensor:
    """t of each class (classes,), where the client's own t counts as one row more: of few rows it says most."""
    counts, squares = labels.sum(0), rest.square().mean(1)
    whole = squares.sum() / max(1.0, float(len(rest) - (counts > 0).sum()))
    by_class: Tensor = (whole + labels.T @ squares) / (1 + (counts - 1).clamp(min=0))
    return by_class


def class_means(rows: Tensor, labels: Tensor) -> Tensor:
    """M (classes, k), the least-squares fit of rows (n, k) to soft labels (n, classes); zero for classes not there."""
    held = labels.sum(0) > 0
    means = torch.zeros(labels.shape[1], rows.shape[1], dtype=rows.dtype)
    means[held] = torch.linalg.lstsq(labels[:, held], rows, driver="gelsd").solution
    return means


def spread_of(digest: Digest) -> float:
    """s = sum_k w_k^2, or its mean: 1/SpD for balanced weights, 2/(SpD + 1) for weights uniform on the simplex."""
    if digest.weights == "balanced":
        return 1.0 / digest.spd
    if digest.weights == "random":
        return 2.0 / (digest.spd + 1)
    return sum(float(weight) ** 2 for weight in digest.weights.split("/"))
