"""Robust rules of aggregation on stacked updates (n, d): coordinate-wise, clipping, the geometric median, FLTrust.

Each returns the aggregate and the weight each row kept. f is the number of hostile rows to withstand. The rules that
choose among rows by their distances are in krum.py, what comes before a rule in preparing.py; all can be had from here.
"""

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
    dots,
    inner_products,
    norms_of,
    say,
    through,
)
from holdfast.trust.robust.krum import bulyan, krum, multi_krum, nearest_neighbour_mixing
from holdfast.trust.robust.preparing import adaptive_clipping, bucketing, clip_factors, clip_norms

__all__ = [
    "Aggregate",
    "Prepared",
    "adaptive_clipping",
    "bucketing",
    "bulyan",
    "centred_clipping",
    "clip_norms",
    "fltrust",
    "geometric_median",
    "krum",
    "median",
    "multi_krum",
    "nearest_neighbour_mixing",
    "norm_clipping",
    "through",
    "trimmed_mean",
]


def median(updates: Tensor) -> Aggregate:
    """The median of each coordinate; of an even number of rows, the middle between the two in the middle.

    The weights say in which share of the coordinates a row was (one of) the middle.

    >>> median(torch.tensor([[1.0, 5.0], [2.0, 0.0], [90.0, 4.0]])).vector
    tensor([2., 4.])

    Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018.
    """
    checked(updates, "median")
    return _trimmed(updates, (len(updates) - 1) // 2)


def trimmed_mean(updates: Tensor, f: int) -> Aggregate:
    """The mean of each coordinate without its f largest and f smallest values; 2f < n.

    The weights say how much of the coordinates' means came from a row.

    >>> trimmed_mean(torch.tensor([[-50.0], [1.0], [2.0], [3.0], [90.0]]), f=1).vector
    tensor([2.])

    Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018.
    """
    n = len(checked(updates, "trimmed mean"))
    return _trimmed(updates, checked_hostile(f, n, 2, 1, "trimmed mean"))


def _trimmed(updates: Tensor, f: int) -> Aggregate:
    n, d = updates.shape
    vector, shares = torch.empty(d, dtype=updates.dtype), np.zeros(n)
    for columns in blocks(d):
        block = updates[:, columns].detach().numpy()
        kept = np.sort(block, axis=0)[f : n - f]
        vector[columns] = torch.from_numpy(kept.mean(0, dtype=np.float64)).to(updates.dtype)
        shares += say(block, kept[0], kept[-1])
    return Aggregate(vector, torch.from_numpy(shares / shares.sum()))


def geometric_median(
    updates: Tensor, smoothing: float = 1e-6, tolerance: float = 1e-7, iterations: int = 1000
) -> Aggregate:
    """The point with the least sum of distances to the rows, by smoothed Weiszfeld steps from the mean.

        z <- sum_i w_i x_i,    w_i proportional to 1 / max(smoothing, |z - x_i|)

    It stops once a step is shorter than tolerance x the median distance. Each step lowers the (smoothed) sum, so the
    last z is a sound answer even where `iterations` ends it. z stays in the rows' span, so all steps are taken on the
    n x n inner products.

    >>> geometric_median(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.5]])).vector
    tensor([0.5000, 0.5000])

    Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning, IEEE TSP 2022.
    """
    n = len(checked(updates, "geometric median"))
    if smoothing <= 0 or tolerance <= 0 or iterations < 1:
        raise HoldfastError("geometric median: smoothing, tolerance and iterations must be above zero.")
    order = canonical_order(updates)
    gram = inner_products(updates, order)
    weights = torch.full((n,), 1 / n, dtype=torch.float64)
    for _ in range(iterations):
        pull = gram @ weights
        distances = (gram.diagonal() - 2 * pull + weights @ pull).clamp_min(0).sqrt()
        closeness = 1 / distances.clamp_min(smoothing)
        step = closeness / closeness.sum() - weights
        weights = weights + step
        # The median, not the mean: one far row must not make the test easy.
        if (step @ gram @ step).clamp_min(0).sqrt() <= tolerance * distances.median().clamp_min(smoothing):
            break
    return Aggregate(combined(updates, weights, order), as_given(weights, order))


def centred_clipping(updates: Tensor, tau: float, iterations: int = 1, start: Tensor | None = None) -> Aggregate:
    """Steps from a start (zeros, or the last aggregate) by the mean of the differences, each clipped to length tau.

        v <- v + (1/n) sum_i (x_i - v) min(1, tau / |x_i - v|)

    A row's weight is its coefficient in v; what is missing to one is the start's.

    >>> centred_clipping(torch.tensor([[1.0], [-1.0], [30.0]]), tau=3.0)
    Aggregate(vector=tensor([1.]), weights=tensor([0.3333, 0.3333, 0.0333], dtype=torch.float64))

    Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021.
    """
    n, d = checked(updates, "centred clipping").shape
    if not tau > 0 or iterations < 1:
        raise HoldfastError(f"centred clipping: tau and iterations must be above zero, got {tau} and {iterations}.")
    start = torch.zeros(d, dtype=updates.dtype) if start is None else start
    if start.shape != (d,) or not bool(start.isfinite().all()):
        raise HoldfastError(f"centred clipping: the start must be a finite vector of {d} values.")
    order = canonical_order(updates)
    gram, to_start = inner_products(updates, order), dots(updates, start, order)
    start_square = start.double() @ start.double()
    weights = torch.zeros(n, dtype=torch.float64)
    for _ in range(iterations):
        rest = 1 - weights.sum()  # v = rest * start + sum_i weights_i x_i
        to_rows = gram @ weights + rest * to_start
        v_square = weights @ gram @ weights + 2 * rest * (weights @ to_start) + rest**2 * start_square
        distances = (gram.diagonal() - 2 * to_rows + v_square).clamp_min(0).sqrt()
        pulls = (tau / distances).clamp_max(1) / n
        weights = (1 - pulls.sum()) * weights + pulls
    vector = combined(updates, weights, order) + (1 - weights.sum()).to(updates.dtype) * start.to(updates.dtype)
    return Aggregate(vector, as_given(weights, order))


def norm_clipping(updates: Tensor, bound: float | None = None) -> Aggregate:
    """The mean of the rows, each shortened to the bound where it is longer (default: the median length).

    A row's weight is its coefficient, min(1, bound / |x_i|) / n: what is missing to one was clipped away.

    >>> norm_clipping(torch.tensor([[1.0, 0.0], [0.0, 2.0], [30.0, 40.0]]), bound=5.0)
    Aggregate(vector=tensor([1.3333, 2.0000]), weights=tensor([0.3333, 0.3333, 0.0333], dtype=torch.float64))

    Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, 2019.
    """
    weights = clip_factors(updates, bound) / len(updates)
    order = canonical_order(updates)
    return Aggregate(combined(updates, weights[order], order), weights)


def fltrust(updates: Tensor, server: Tensor) -> Aggregate:
    """The mean of the rows, brought to the length of the server's own update g_0, weighted by their cosine with it.

        trust_i = max(0, cos(g_i, g_0)),    g = sum_i trust_i (|g_0| / |g_i|) g_i / sum_i trust_i

    A row's weight is trust_i / sum trust. If no row is trusted the aggregate is zero, and so are all weights.

    >>> fltrust(torch.tensor([[10.0, 0.0], [3.0, 4.0], [-1.0, 0.0]]), server=torch.tensor([2.0, 0.0]))
    Aggregate(vector=tensor([1.7000, 0.6000]), weights=tensor([0.6250, 0.3750, 0.0000], dtype=torch.float64))

    Cao, Fang, Liu, Gong: FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, NDSS 2021.
    """
    n, d = checked(updates, "FLTrust").shape
    if server.shape != (d,) or not bool(server.isfinite().all()) or not bool(server.any()):
        raise HoldfastError(f"FLTrust: the server's update must be a finite vector of {d} values, not all zero.")
    order = canonical_order(updates)
    length = torch.linalg.vector_norm(server, dtype=torch.float64)
    norms = norms_of(updates)[order].clamp_min(torch.finfo(torch.float64).tiny)
    trust = (dots(updates, server, order) / (norms * length)).clamp_min(0)
    if not bool(trust.any()):
        return Aggregate(torch.zeros(d, dtype=updates.dtype), torch.zeros(n, dtype=torch.float64))
    weights = trust / trust.sum()
    return Aggregate(combined(updates, weights * length / norms, order), as_given(weights, order))
