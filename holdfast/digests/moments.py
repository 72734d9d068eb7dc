"""The moment digest as it leaves a client: the two noisy stages (moments.py) in a few kilobytes.

Class counts and means join both stages, each by its noise. Of a class's second moment only the strongest directions
that stand out of the noise are kept; the shared second moment leaves whole, as only the moderator, who adds up those of
all clients, can see what stands out there. All of it is computed from what is already noisy: it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.privacy import moment_noise as moments
from holdfast.privacy.calibration import grid_cost
from holdfast.privacy.claim import Claim, of_sums
from holdfast.privacy.grid import Floats, check_features, check_labels, quantise
from holdfast.privacy.moment_noise import STEPS, Array, Centres, Deviations, First, Scales, Second
from holdfast.privacy.noise import Source

FEWEST = 20.0  # records of a class below which its mean is not trusted
MOST_SPIKES = 8  # directions kept of a class
MOST_IN_ALL = 64
COUNT_STEP = 0.25


@dataclass(frozen=True)
class MomentDigest:
    """What a client releases once, in the features' units, and its claim."""

    counts: Array  # (classes,)
    means: Array  # (classes, k); zero where the class is not trusted
    radii: Array  # (classes,): what a residual of length 1 stands for
    owner: NDArray[np.int64]  # (directions,): the class of each strong direction
    strong: Array  # (directions, k): sum of s s' over a class's: its second moment of u, divided by its count
    shared: Array  # (k, k): the sum of uu' over all records
    scales: Deviations
    claim: Claim
    clipped: int = 0  # records the bound shortened: the client's to know, never sent
    basis: Array | None = None  # (features, k): of which features these are the directions; none: they are the features

    @property
    def trusted(self) -> NDArray[np.bool_]:
        """Classes whose noisy count is at least max(20, twice its noise): below, the mean would be mostly noise."""
        return np.asarray(self.counts >= fewest(self.scales))

    @property
    def mean_noise(self) -> Array:
        """Deviation of the noise in each coordinate of a class's mean."""
        return np.asarray(self.scales.of_sum(self.radii) / np.maximum(self.counts, 1.0))


def fewest(scales: Deviations) -> float:
    return max(FEWEST, 2 * scales.of_count())


def make(
    features: Floats, labels: NDArray[Any], classes: int, *, epsilon: float, delta: float, source: Source
) -> MomentDigest:
    """A client's moment digest; features longer than 1 are shortened and counted, anything not finite is refused."""
    k = max(1, features.shape[-1])
    scales, _, _ = moments.scales_for(epsilon, delta, k)
    first, centres, second, clipped = stages(features, labels, classes, scales, source)
    claim = moments_claim(epsilon, delta, k, source)
    return summarise(first, centres, second, scales, claim, clipped)


def moments_claim(epsilon: float, delta: float, k: int, source: Source) -> Claim:
    """What a moment digest of k features promises, whatever its records are."""
    scales, ratio, spent = moments.scales_for(epsilon, delta, k)
    return of_sums(
        "moments",
        (epsilon, delta),
        spent,
        ratio,
        grid_cost(scales.parts(k), ratio),
        scale=float(scales.sums),
        sensitivity=moments.D1 * STEPS,
        grid=f"{STEPS} steps within an l2 norm of 1; second moments in steps^2",
        entropy=source.guarantee,
        notes=(
            "Features and labels are released together: one epsilon covers both.",
            f"Two stages, the second around the first's means, with noise of {float(scales.sums_2):.4g} steps; "
            "epsilon is that of both.",
        ),
    )


def stages(
    features: Floats, labels: NDArray[Any], classes: int, scales: Scales, source: Source
) -> tuple[First, Centres, Second, int]:
    """Both noisy stages of these records: all that a digest is made from; and how many records were shortened."""
    check_features(features)
    check_labels(labels, len(features), classes)
    if classes < 1 or features.shape[1] < 1:
        raise HoldfastError(
            f"moments: expected at least one class and one feature, got {classes} and {features.shape[1]}."
        )
    z = quantise(features, moments.GRID)
    first = moments.stage_one(z.values, labels, classes, scales, source)
    centres = moments.centres_of(first, scales)
    return first, centres, moments.stage_two(z.values, labels, centres, scales, source), z.clipped


def summarise(
    first: First, centres: Centres, second: Second, scales: Deviations, claim: Claim, clipped: int = 0
) -> MomentDigest:
    """Counts and means of both stages weighed by their noise, strong directions, and the shared second moment.

    Stage 2 says of a mean m_c + R_c U_c / n_c, U_c being the sum of residuals: short by what the radius cut off.
    """
    early, late = 1 / scales.first**2, (moments.WEIGHT / 2 / scales.second) ** 2
    counts = (early * first.counts + late * second.counts) / (early + late) / STEPS
    counts = np.rint(counts / COUNT_STEP) * COUNT_STEP  # as they are sent: both sides trust the same classes
    safe, away = np.maximum(counts, 1.0)[:, None], moments.distance(centres.radii)[:, None]
    of_mean = moments.WEIGHT / (away * scales.second) ** 2
    refined = centres.means + away * (second.sums / STEPS) / safe
    means = (early * (first.sums / STEPS) / safe + of_mean * refined) / (early + of_mean)
    trusted = counts >= fewest(scales)
    k = first.sums.shape[1]
    owner, strong = strong_directions(moments.square(second.classwise / STEPS**2, k), counts, trusted, scales)
    shared = moments.square(second.shared / STEPS**2, k)
    means = np.where(trusted[:, None], means, 0.0)
    return MomentDigest(counts, means, centres.radii, owner, strong, shared, scales, claim, clipped)


def strong_directions(
    second: Array, counts: Array, trusted: NDArray[np.bool_], scales: Deviations
) -> tuple[NDArray[np.int64], Array]:
    """Directions of each trusted class that stand out of the noise, the strongest 64 in all, and whose they are."""
    found = []
    for c in np.flatnonzero(trusted):
        directions, strength = spikes(torch.from_numpy(second[c]), scales.of_classwise, MOST_SPIKES)
        rows = (directions * strength.sqrt()).T / math.sqrt(counts[c])
        found += [(float(s), int(c), row.numpy()) for s, row in zip(strength, rows, strict=True)]
    found = sorted(found, key=lambda one: -one[0])[:MOST_IN_ALL]
    k = second.shape[1]
    return (
        np.array([c for _, c, _ in found], dtype=np.int64),
        np.array([row for _, _, row in found], dtype=np.float64).reshape(-1, k),
    )


def spikes(matrix: torch.Tensor, sigma: float, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Directions (k, r) and strengths (r,) of a positive matrix that was seen through symmetric noise.

    Noise of deviation sigma on the diagonal and sigma/sqrt(2) off it has eigenvalues within 2 tau, tau = sigma
    sqrt(k/2) (Wigner). A true y of strength theta > tau is seen as theta + tau^2/theta, turned away from its direction
    by cos^2 = 1 - (tau/theta)^2; the best strength for the direction seen is theta cos^2 = sqrt(y^2 - 4 tau^2)
    (Benaych-Georges and Nadakuditi 2011; Gavish and Donoho 2017). y counts from the mean of the other eigenvalues, and
    stands out beyond 2 tau (1 + k^(-2/3)), which the largest eigenvalue of noise exceeds once in 100 (Tracy and Widom).

    >>> spikes(torch.diag(torch.tensor([13.0, 1.0, 0.0, -1.0])), 1.0, 3)[1]  # tau^2 = 2; 13 above a mean of 0
    tensor([12.6886])
    """
    values, vectors = torch.linalg.eigh(matrix)
    values, vectors = values.flip(0), vectors.flip(1)
    tau = sigma * math.sqrt(len(values) / 2)
    edge = 2 * tau * (1 + len(values) ** (-2 / 3))
    base = max(0.0, float(values.mean()))
    for _ in range(3):  # what stands out depends on the mean of the rest, and the other way round
        count = min(most, int((values - base > edge).sum()), len(values) - 1)
        base = max(0.0, float(values[count:].mean()))
    strength = ((values[:count] - base) ** 2 - 4 * tau**2).clamp(min=0).sqrt()
    return vectors[:, :count], strength
