"""kernel: ridge regression of the classes' indicators with a Gaussian kernel; distance is measured by classes' spread.

    s_c(z) = t (b_c + sum_j B_jc exp(-|M z - u_j|^2)),    M'M = (2 / d) W^-1,    d the median of |x_i - x_k|^2 in W^-1

    B = (A'A + l Q)^-1 A'(Y - 1 b'),    A: bells around the u_j at the rows x_i,    Q: at the u_j themselves

W is the covariance within classes, shrunken; x_i are the stretched rows (or records drawn from moments), Y their soft
labels, b the classes' shares. The centres u_j are drawn from the classes' Gaussians, so that no row stays in the model,
as it would if the bells stood around the rows; on held-out images they were as good. l is chosen by rows left out, the
other constants on validation seeds (docs/RESULTS.md).
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.core.randomness import rng
from holdfast.core.types import Tensors
from holdfast.data.task import Samples
from holdfast.heads.evidence import Evidence
from holdfast.heads.solved import NEVER, shrunken
from holdfast.heads.trained import drawn
from holdfast.models.heads import CENTRES, bells

SHRINK = 0.3  # of W
NARROW = 2.0  # d over the square of a bell's width
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0)  # l: the one with the least squared error of rows left out
JUDGES = 1_000  # rows, by chance, that choose it
FOR_EACH = 4  # centres for each row, where rows are few
SHARP = 8.0  # t: indicators are too near to each other for a softmax
JITTER = 1e-6


def kernel(evidence: Evidence, samples: Samples, seed: int = 0) -> Tensors:
    """The weights of `head:form=kernel`."""
    x, labels = samples.inputs[0].flatten(1).double(), soft(samples.labels, len(evidence.counts))
    values, vectors = torch.linalg.eigh(shrunken(evidence.within, SHRINK))
    metric = torch.diag(values.clamp(min=1e-12).rsqrt()) @ vectors.T
    metric = metric * (NARROW / (median_square(x @ metric.T) or 1.0)) ** 0.5  # 0: all rows are alike
    records = drawn(evidence, rng(seed, -1, -1, "centres")).inputs[0].double()
    order = torch.randperm(len(records), generator=rng(seed, -1, -1, "which centres"))
    centres = records[order[: min(CENTRES, FOR_EACH * len(x))]] @ metric.T
    at_rows, at_centres = bells(x @ metric.T, centres), bells(centres, centres)
    shares = labels.mean(0)
    some = torch.randperm(len(x), generator=rng(seed, -1, -1, "judges"))[:JUDGES]
    penalty = least_error(bells(x[some] @ metric.T, x[some] @ metric.T), labels[some] - shares)
    gram = at_rows.T @ at_rows + penalty * at_centres + JITTER * torch.eye(len(centres), dtype=torch.float64)
    weight = torch.cholesky_solve(at_rows.T @ (labels - shares), torch.linalg.cholesky(gram)).T
    none = CENTRES - len(centres)  # bells of no height
    return {
        "weight": torch.nn.functional.pad(SHARP * weight, (0, none)).float(),
        "bias": torch.where(evidence.held, SHARP * shares, NEVER).float(),
        "metric": metric.float(),
        "centres": torch.nn.functional.pad(centres, (0, 0, 0, none)).float(),
    }


def least_error(bells_at_rows: Tensor, values: Tensor) -> float:
    """The penalty with the least squared error where each row is left out in turn, which needs no fit of its own: with
    R = (K + l I)^-1 the row i is missed by (R Y)_i / R_ii.
    """

    def error(penalty: float) -> float:
        inverse = torch.linalg.inv(bells_at_rows + penalty * torch.eye(len(values), dtype=values.dtype))
        return float((inverse @ values / inverse.diagonal()[:, None]).square().mean())

    return min(PENALTIES, key=error)


def median_square(u: Tensor) -> float:
    """The median of |u_i - u_k|^2 over pairs of rows that are half of all rows apart in their order.

    >>> median_square(torch.tensor([[0.0], [1.0], [2.0], [4.0]]))
    4.0
    """
    return float((u - u.roll(len(u) // 2, 0)).square().sum(1).median())


def soft(labels: Tensor, classes: int) -> Tensor:
    return labels.double() if labels.is_floating_point() else torch.nn.functional.one_hot(labels, classes).double()
