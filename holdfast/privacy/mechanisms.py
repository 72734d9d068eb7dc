"""Mixed digests: sums of SpD quantised records with exact noise, and labels that are public or randomised.

Strict modes, in the order in which things happen:
1. labels: `dp-label-public` treats them as public; `dp-full` first puts each through randomised response.
2. groups: formed from the labels *after* step 1 and a public generator, never from features. Given the labels,
   each record sits in one group, whoever else is there. Incomplete groups are filled with empty records.
3. features: clipped and rounded to |v| <= steps (grid.py), summed over each group, plus exact noise.

One record is in one sum, so replacing it changes one sum by v' - v: sensitivity 2 steps (in units of one
grid step of the *sum*; on the mean that is 2 clip / SpD). Step 3 reads only step 1's output and the features, so
for `dp-full` the two steps compose: epsilon_total = epsilon_labels + epsilon_features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.privacy import claim as claims
from holdfast.privacy.calibration import calibrate_gaussian, check_epsilon
from holdfast.privacy.claim import Claim
from holdfast.privacy.grid import Floats, Grid, check_features, check_labels, quantise
from holdfast.privacy.noise import Source, Whole, gaussian, laplace, scale_at_least

RESPONSE_BITS = 32  # randomised response chooses among 2^32 equally likely tickets


@dataclass(frozen=True)
class MixedDigests:
    """What leaves the house: noised sums of features in grid steps, label counts of each group, and the claim."""

    sums: Whole  # (digests, features)
    counts: Whole  # (digests, classes): of public or randomised labels
    claim: Claim
    grid: Grid
    keep: float  # probability that a label is the true one
    clipped: int  # records the clip bound shortened: the client's to know, never sent

    @property
    def features(self) -> NDArray[np.float64]:
        """Noised means of the groups' features, in the features' own units."""
        means: NDArray[np.float64] = self.sums * self.grid.step / self.counts.sum(1, keepdims=True)
        return means

    @property
    def labels(self) -> NDArray[np.float64]:
        """Soft labels: what a randomised label says about the true one, all classes being equally likely before."""
        share = self.counts / self.counts.sum(1, keepdims=True)
        classes = self.counts.shape[1]
        other = (1 - self.keep) / max(1, classes - 1)
        soft: NDArray[np.float64] = share * (self.keep - other) + other
        return soft


def dp_label_public(
    features: Floats,
    labels: NDArray[Any],
    classes: int,
    *,
    spd: int,
    grid: Grid,
    epsilon: float,
    delta: float,
    by_class: bool,
    generator: torch.Generator,
    source: Source,
) -> MixedDigests:
    """Digests with private features and public labels: Laplace noise on an l1 grid, Gaussian on an l2 grid."""
    _check(features, labels, classes, spd)
    scale, features_claim = _calibrate(grid, features.shape[1], epsilon, delta)
    values = quantise(features, grid)
    rows = groups(labels, spd, by_class, generator)
    sums = _noised(_mix(values.values, rows), grid, scale, source)
    claim = Claim(
        mode="dp-label-public",
        adjacency=claims.REPLACE_FEATURES,
        epsilon_labels=math.inf,
        epsilon_total=features_claim["epsilon_features"],
        entropy=source.guarantee,
        spd=spd,
        notes=("Labels, their mixture and the number of records are released exactly and are not protected.",),
        **features_claim,
    )
    return MixedDigests(sums, _count(labels, rows, classes), claim, grid, 1.0, values.clipped)


def dp_full(
    features: Floats,
    labels: NDArray[Any],
    classes: int,
    *,
    spd: int,
    grid: Grid,
    epsilon_features: float,
    epsilon_labels: float,
    delta: float,
    by_class: bool,
    generator: torch.Generator,
    source: Source,
) -> MixedDigests:
    """Digests whose features and labels are both private; the number of records is public."""
    _check(features, labels, classes, spd)
    scale, features_claim = _calibrate(grid, features.shape[1], epsilon_features, delta)
    keep, other = response_tickets(classes, epsilon_labels)
    values = quantise(features, grid)
    answers = randomised_response(labels, classes, epsilon_labels, source)
    rows = groups(answers, spd, by_class, generator)
    sums = _noised(_mix(values.values, rows), grid, scale, source)
    labels_cost = _up(abs(math.log(keep / other))) if classes > 1 else 0.0
    features_claim["epsilon_nominal"] = epsilon_features + epsilon_labels
    features_claim["epsilon_pure"] += labels_cost
    claim = Claim(
        mode="dp-full",
        adjacency=claims.REPLACE_ONE,
        epsilon_labels=labels_cost,
        epsilon_total=_up(features_claim["epsilon_features"] + labels_cost),
        entropy=source.guarantee,
        spd=spd,
        notes=("The number of records is public; groups are formed from randomised labels.",),
        **features_claim,
    )
    share = keep / 2**RESPONSE_BITS
    return MixedDigests(sums, _count(answers, rows, classes), claim, grid, share, values.clipped)


def groups(labels: NDArray[Any], spd: int, by_class: bool, generator: torch.Generator) -> Whole:
    """Records of each digest (digests, spd), shuffled; -1 marks an empty place. Each record sits in exactly one.

    >>> groups(np.array([0, 1, 0]), 2, True, torch.Generator().manual_seed(0)).tolist()
    [[2, 0], [1, -1]]
    """
    order = torch.randperm(len(labels), generator=generator).numpy()
    parts = [order[labels[order] == c] for c in np.unique(labels)] if by_class else [order]
    rows = []
    for part in parts:
        padded = np.full(-(-len(part) // spd) * spd, -1, dtype=np.int64)
        padded[: len(part)] = part
        rows.append(padded.reshape(-1, spd))
    return np.concatenate(rows)


def response_tickets(classes: int, epsilon: float) -> tuple[int, int]:
    """Of 2^32 tickets, how many keep the label and how many lead to each other class: keep/other <= e^epsilon.

    other >= 2^32 / (e^epsilon + classes - 1) gives keep = 2^32 - (classes - 1) other <= other e^epsilon.

    >>> response_tickets(2, math.log(3))
    (3221225471, 1073741825)
    """
    check_epsilon(epsilon, "epsilon_labels")
    tickets = 2**RESPONSE_BITS
    other = math.ceil(tickets / (math.exp(min(epsilon, 700.0)) + classes - 1) * (1 + 1e-12) + 1e-9)
    return tickets - (classes - 1) * other, other


def randomised_response(labels: NDArray[Any], classes: int, epsilon: float, source: Source) -> Whole:
    """Each label kept with probability keep/2^32, else one of the other classes, all equally likely (Warner 1965)."""
    keep, other = response_tickets(classes, epsilon)
    ticket = source.halves(len(labels)).astype(np.int64)
    away = np.where(ticket < keep, 0, 1 + (ticket - keep) // other)
    answers: Whole = (labels.astype(np.int64) + away) % classes
    return answers


def _check(features: Floats, labels: NDArray[Any], classes: int, spd: int) -> None:
    check_features(features)
    check_labels(labels, len(features), classes)
    if spd < 1:
        raise HoldfastError(f"spd: a digest mixes at least one record, got {spd!r}.")
    if not len(features):
        raise HoldfastError("features: there are no records, so there is nothing to release.")


def _calibrate(grid: Grid, width: int, epsilon: float, delta: float) -> tuple[Fraction, dict[str, Any]]:
    """The scale for a grid's noise, in steps, and what the claim says of it."""
    check_epsilon(epsilon, "epsilon")
    said: dict[str, Any] = {
        "epsilon_nominal": epsilon,
        "delta": delta,
        "sensitivity": float(grid.sensitivity),
        "clip": grid.clip,
        "grid": f"{grid.steps} steps within an {grid.norm} norm of {grid.clip:g}",
    }
    if grid.norm == "l1":
        if delta != 0.0:
            raise HoldfastError(f"delta: Laplace noise on an l1 grid needs none; set delta = 0 (got {delta!r}).")
        scale = scale_at_least(Fraction(grid.sensitivity) / Fraction(epsilon))
        spent = min(epsilon, _up(float(grid.sensitivity / scale)))
        return scale, said | {"noise": "discrete laplace", "scale": float(scale), "epsilon_features": spent} | {
            "epsilon_pure": spent
        }
    scale, gaussian_said = calibrate_gaussian(grid.sensitivity, width, epsilon, delta)
    return scale, said | gaussian_said


def _noised(sums: Whole, grid: Grid, scale: Fraction, source: Source) -> Whole:
    draw = laplace if grid.norm == "l1" else gaussian
    return sums + draw(sums.size, scale, source).reshape(sums.shape)


def _mix(values: Whole, rows: Whole) -> Whole:
    """Sum of the records of each group; an empty place adds nothing."""
    total = np.zeros((len(rows), values.shape[1]), dtype=np.int64)
    for place in rows.T:
        filled = place >= 0
        total[filled] += values[place[filled]]
    return total


def _count(labels: NDArray[Any], rows: Whole, classes: int) -> Whole:
    counts = np.zeros((len(rows), classes), dtype=np.int64)
    for place in rows.T:
        filled = np.flatnonzero(place >= 0)
        counts[filled, labels[place[filled]]] += 1
    return counts


def _up(value: float) -> float:
    """A little above the value: stated costs are rounded up."""
    return value * (1 + 1e-12)
