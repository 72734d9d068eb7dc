"""Where too few witnesses can tell who helps: the jury says so, and a rule with a proof weighs (step 10 of jury.py)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from holdfast.trust.consensus import Flags, Values
from holdfast.trust.reputation import Told, who_tell
from holdfast.trust.robust.aggregates import geometric_median, nearest_neighbour_mixing, through


def lacks_quorum(told: Told) -> list[str]:
    """Step 10: what is said where too few witnesses can tell.

    >>> lacks_quorum({0: {1: 0.5, 2: 0.5}, 1: {0: 0.9, 2: 0.2}, 2: {0: 0.5, 1: 0.5}})
    ['no quorum: 1 of 3 witnesses can tell who helps; the updates are weighed by nnm:geomedian']
    >>> lacks_quorum({i: {5: 0.4} for i in range(3)})
    []
    """
    tell = len(who_tell(told))
    if tell >= 3 and 2 * tell > len(told):
        return []
    return [f"no quorum: {tell} of {len(told)} witnesses can tell who helps; the updates are weighed by nnm:geomedian"]


def mixed_weights(rows: Tensor, heard: Flags) -> Values:
    """Step 10: what each update that is heard at all counts under nearest-neighbour mixing and the geometric median."""
    hostile = min((len(rows) - 1) // 3, (int(heard.sum()) - 1) // 2)  # who is not heard need not be among them
    mixed = nearest_neighbour_mixing(rows[torch.from_numpy(heard)], hostile)
    found = through(mixed, geometric_median(mixed.updates)).weights
    weights = np.zeros(len(rows))
    weights[heard] = np.asarray(found / found.sum())
    return weights
