"""How sure a metric is: an interval from samples drawn again and again with replacement."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast.data.metrics import Metric, value_of, weighted_sums

DRAWS = 200
MOST = 2000  # samples in a draw: ranks of more take long
TAIL = 0.025  # on each side: 95 of 100 lie within


def interval_of(
    metric: Metric, output: Tensor, labels: Tensor, generator: torch.Generator, weights: Tensor | None = None
) -> list[float] | None:
    """The percentile interval of a metric over bootstrap draws; none where most draws come to nothing.

    Of n > 2,000 samples each draw has m = 2,000, and distances from the value shrink by sqrt(m / n).
    Efron, Bootstrap Methods: Another Look at the Jackknife, 1979.
    """
    samples, found = len(labels), []
    value = value_of(metric, weighted_sums(metric, output, labels, weights)) if samples else None
    if value is None:
        return None
    drawn = min(samples, MOST)
    for _ in range(DRAWS):
        index = torch.randint(samples, (drawn,), generator=generator)
        own = None if weights is None else weights[index]
        one = value_of(metric, weighted_sums(metric, output[index], labels[index], own))
        found += [] if one is None else [one]
    if 2 * len(found) <= DRAWS:
        return None
    tails = torch.tensor([TAIL, 1 - TAIL], dtype=torch.float64)
    bounds = torch.tensor(found, dtype=torch.float64).quantile(tails)
    return [float(one) for one in value + (bounds - value) * math.sqrt(drawn / samples)]
