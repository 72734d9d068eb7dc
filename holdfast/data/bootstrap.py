"""How sure a metric is: an interval from samples drawn again and again with replacement."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.data.metrics import Metric, value_of

DRAWS = 200
TAIL = 0.025  # on each side: 95 of 100 lie within


def interval_of(metric: Metric, output: Tensor, labels: Tensor, generator: torch.Generator) -> list[float] | None:
    """The percentile interval of a metric over bootstrap draws; none where most draws come to nothing.

    Efron, Bootstrap Methods: Another Look at the Jackknife, 1979.
    """
    found = []
    for _ in range(DRAWS if len(labels) else 0):
        index = torch.randint(len(labels), (len(labels),), generator=generator)
        value = value_of(metric, metric.sums(output[index], labels[index]))
        found += [] if value is None else [value]
    if 2 * len(found) <= DRAWS:
        return None
    tails = torch.tensor([TAIL, 1 - TAIL], dtype=torch.float64)
    bounds: list[float] = torch.tensor(found, dtype=torch.float64).quantile(tails).tolist()
    return bounds
