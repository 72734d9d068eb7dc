"""Where witnesses cannot tell who helps, the jury says so (step 10 of jury.py): a rule with a proof weighs, or no
update is longer than the median one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.trust.consensus import Flags, Values, consensus, matrix_of
from holdfast.trust.reputation import Told, is_quorum, who_tell
from holdfast.trust.robust.aggregates import geometric_median, nearest_neighbour_mixing, through


def lacks_quorum(told: Told) -> list[str]:
    """Step 10: what is said where too few witnesses can tell.

    >>> lacks_quorum({0: {1: 0.5, 2: 0.5}, 1: {0: 0.9, 2: 0.2}, 2: {0: 0.5, 1: 0.5}})
    ['no quorum: 1 of 3 witnesses can tell who helps; the updates are weighed by nnm:geomedian']
    >>> lacks_quorum({i: {5: 0.4} for i in range(3)})
    []
    """
    tell = len(who_tell(told))
    if is_quorum(tell, len(told)):
        return []
    return [f"no quorum: {tell} of {len(told)} witnesses can tell who helps; the updates are weighed by nnm:geomedian"]


def most_harm(told: Told, clients: Sequence[int], credibility: Values) -> bool:
    """Step 10: whether the median member harms, by what the witnesses say.

    Training on records moves away from noised digests, and by these sign flips then help.

    >>> told = {w: {0: 0.6, 1: 0.4, 2: 0.3} for w in range(3)}
    >>> most_harm(told, [0, 1, 2], np.ones(3)), most_harm(told, [0, 1], np.ones(3)), most_harm({}, [0], np.ones(3))
    (True, False, False)
    """
    witnesses = who_tell(told)
    if not witnesses:
        return False
    return float(np.median(consensus(matrix_of(told, witnesses, clients), credibility[witnesses]))) < 0


def mixed_weights(rows: Tensor, heard: Flags) -> Values:
    """Step 10: what each update that is heard at all counts under nearest-neighbour mixing and the geometric median."""
    hostile = min((len(rows) - 1) // 3, (int(heard.sum()) - 1) // 2)  # who is not heard need not be among them
    mixed = nearest_neighbour_mixing(rows[torch.from_numpy(heard)], hostile)
    found = through(mixed, geometric_median(mixed.updates)).weights
    weights = np.zeros(len(rows))
    weights[heard] = np.asarray(found / found.sum())
    return weights
