"""Counts with exact discrete Gaussian noise: how many records a model classifies as they are, and sums like that.

Replacing one record changes a vector of such sums by at most its sensitivity D in L2 norm; how many records there are
stays the same, as the promise is for replacing a record, not for adding one. The sums are put on a grid of 1/1024
(whole counts lie on it), D is rounded up to whole steps plus what rounding can add, and noise is added to the whole
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast.privacy.calibration import calibrate_gaussian, check_delta, check_epsilon
from holdfast.privacy.claim import REPLACE_ONE, Claim
from holdfast.privacy.noise import Source, gaussian

COUNTS = "counts"  # the mode, in policies and ledgers
FINE = 1024  # grid steps in one count


def noised_counts(
    sums: Sequence[float], sensitivity: float, epsilon: float, delta: float, source: Source
) -> tuple[list[float], Claim]:
    """The sums with noise, and what they promise."""
    check_epsilon(epsilon, "epsilon")
    check_delta(delta)
    on_grid = np.rint(np.asarray(sums, dtype=np.float64) * FINE)
    exact = bool((on_grid == np.asarray(sums, dtype=np.float64) * FINE).all())
    steps = math.ceil(round(sensitivity * FINE, 9) + (0.0 if exact else math.sqrt(len(sums))))
    scale, said = calibrate_gaussian(steps, len(sums), epsilon, delta)
    noised = on_grid.astype(np.int64) + gaussian(len(sums), scale, source)
    claim = claim_of_counts(epsilon, delta, sensitivity, steps, said, source)
    return [float(value) / FINE for value in noised], claim


def claim_of_counts(
    epsilon: float, delta: float, sensitivity: float, steps: int, said: dict[str, Any], source: Source
) -> Claim:
    return Claim(
        mode=COUNTS,
        adjacency=REPLACE_ONE,
        epsilon_nominal=epsilon,
        epsilon_labels=0.0,
        epsilon_total=said["epsilon_features"],
        delta=delta,
        sensitivity=float(steps),
        grid=f"{FINE} steps in one count",
        clip=sensitivity,
        entropy=source.guarantee,
        **said,
    )
