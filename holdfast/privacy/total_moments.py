"""The moments of all members' records together, for secure sums: two stages of whole numbers, noise added in shares.

The mechanism is that of moment_noise.py without classwise second moments (s = 0 there, so D1 and D2 stay), as linear
discriminants need none; what is public between the stages are the centres that follow from the first stage's total.
One record is one member's, and replacing it changes the total as it would change the member's own sums: the promise
is the same, with noise once for the federation instead of once a member.

A record lies on a grid of 64 steps, coarser than a single member's: the total's noise is far above it, and every number
is sent with its bits. It is shortened by 1 % first, since rounding would lengthen records of length 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.privacy import moment_noise as moments
from holdfast.privacy.calibration import discrete_epsilon, grid_cost, least_noise
from holdfast.privacy.claim import Claim, of_sums
from holdfast.privacy.grid import Floats, Grid, quantise
from holdfast.privacy.ledger import SECURE_SUM
from holdfast.privacy.moment_noise import D1, D2, WEIGHT, Centres, Deviations, First, Second
from holdfast.privacy.noise import Source, Whole, gaussian, scale_at_least
from holdfast.privacy.noise_shares import share_cost, share_scale

STEPS = 1 << 6
GRID = Grid("l2", 1.0, STEPS)
SHORTENED = 0.99
FIRST = 0.2  # share of the budget that the first stage takes
MOST_MEMBERS = 1000
BEYOND = 12.0  # deviations of the noise that the numbers of a total have room for


@dataclass(frozen=True)
class Part:
    """Numbers of one kind in a stage's vector: how many, the scale of the total's noise, and the most a record adds."""

    count: int
    scale: Fraction
    most: float


@lru_cache(maxsize=64)
def scales_for(epsilon: float, delta: float, k: int) -> tuple[float, float, float, float]:
    """The deviations s1 and s2 of both stages' noise in the features' units, their ratio, and the epsilon spent."""

    def made(ratio: float) -> tuple[float, float]:
        return D1 / (ratio * math.sqrt(FIRST)), D2 / (ratio * math.sqrt(1 - FIRST))

    def cost(scales: tuple[float, float], ratio: float) -> float:
        return discrete_epsilon(ratio, delta, changed(*scales, k)) + shares_cost(*scales, k)

    (first, second), ratio, spent = least_noise(epsilon, delta, made, cost)
    return first, second, ratio, spent


def parts(stage: int, first: float, second: float, classes: int, k: int) -> list[Part]:
    """A stage's vector: counts and sums of classes; in the second, the second moment on and off the diagonal too."""
    if stage == 1:
        return [Part(classes * (1 + k), _up(first * STEPS), STEPS)]
    return [
        Part(classes, _up(second / (WEIGHT / 2) * STEPS), STEPS),
        Part(classes * k, _up(second / math.sqrt(WEIGHT) * STEPS), STEPS),
        Part(k, _up(second * STEPS**2), STEPS**2),
        Part(k * (k - 1) // 2, _up(second / math.sqrt(2) * STEPS**2), STEPS**2 / 2),
    ]


def changed(first: float, second: float, k: int) -> list[tuple[int, float]]:
    """How many coordinates of each scale one record can change: of classes two."""
    return [
        (part.count, float(part.scale)) for stage in (1, 2) for part in parts(stage, first, second, 2, k) if part.count
    ]


def shares_cost(first: float, second: float, k: int) -> float:
    """What it costs that noise comes in shares, for any number of members up to MOST_MEMBERS."""
    return sum(
        share_cost(scale / math.sqrt(MOST_MEMBERS), MOST_MEMBERS, count) for count, scale in changed(first, second, k)
    )


def layout_of(stage_parts: Sequence[Part], records: int) -> list[tuple[int, int]]:
    """Bits for each number of a total over so many records, with its noise."""
    found = []
    for part in stage_parts:
        most = records * part.most + 2 * BEYOND * float(part.scale)
        found.append((part.count, math.ceil(most).bit_length() + 1))
    return found


def exact_stage(z: Floats, labels: NDArray[Any], classes: int, centres: Centres | None) -> Whole:
    """A member's numbers of a stage before noise; the second stage measures from centres that are public."""
    values = quantise(z * SHORTENED, GRID).values
    if centres is not None:
        away = values / (SHORTENED * STEPS) - centres.means[labels]
        length = np.sqrt((away**2).sum(1))
        values = quantise(SHORTENED * away / np.maximum(length, centres.radii[labels])[:, None], GRID).values
    sums = np.zeros((classes, z.shape[1]), dtype=np.int64)
    np.add.at(sums, labels, values)
    counts = np.bincount(labels, minlength=classes).astype(np.int64) * STEPS
    if centres is None:
        return np.concatenate([counts, sums.reshape(-1)])
    whole = values.T @ values
    off = np.triu_indices(z.shape[1], 1)
    return np.concatenate([counts, sums.reshape(-1), np.diagonal(whole), whole[off]])


def with_share(exact: Whole, stage_parts: Sequence[Part], honest: int, source: Source) -> Whole:
    """A member's numbers with its share of the noise."""
    drawn = [gaussian(part.count, share_scale(part.scale, honest), source) for part in stage_parts]
    noisy: Whole = exact + np.concatenate(drawn)
    return noisy


def first_of(total: Whole, classes: int) -> First:
    """The first stage's total, as moment_noise has it."""
    up = moments.STEPS // STEPS
    return First(
        total[:classes] * up, np.rint(total[classes:] * (up / SHORTENED)).astype(np.int64).reshape(classes, -1)
    )


def second_of(total: Whole, classes: int, k: int) -> Second:
    """The second stage's total, as moment_noise has it; there are no classwise second moments."""
    up = moments.STEPS // STEPS
    counts, sums, on, off = np.split(total, np.cumsum([classes, classes * k, k]))
    square = np.zeros((k, k))
    square[np.diag_indices(k)], square[np.triu_indices(k, 1)] = on, off
    shared = square[np.triu_indices(k)] * (up / SHORTENED) ** 2
    scaled = np.rint(sums * (up / SHORTENED)).astype(np.int64).reshape(classes, k)
    none = np.zeros((classes, k * (k + 1) // 2), dtype=np.int64)
    return Second(counts * up, scaled, none, np.rint(shared).astype(np.int64))


def deviations(first: float, second: float, present: int, honest: int) -> Deviations:
    """The noise that is in the total: of all who are in it, not only of those that the promise counts on."""
    more = math.sqrt(present / honest)
    return Deviations(first * more, second * more / SHORTENED, own=0.0)


def total_claim(epsilon: float, delta: float, k: int, colluding: int, source: Source) -> Claim:
    """What the total of both stages promises, whatever the records are."""
    first, second, ratio, spent = scales_for(epsilon, delta, k)
    extra, factor, tail = grid_cost(changed(first, second, k), ratio)
    return of_sums(
        SECURE_SUM,
        (epsilon, delta),
        spent,
        ratio,
        (extra + shares_cost(first, second, k), factor, tail),
        scale=float(parts(1, first, second, 1, k)[0].scale),
        sensitivity=D1 * STEPS,
        grid=f"{STEPS} steps within an l2 norm of 1; second moments in steps^2",
        entropy=source.guarantee,
        noise="discrete gaussian, in shares",
        notes=promise_of_total(colluding),
    )


def promise_of_total(colluding: int) -> tuple[str, str]:
    return (
        "The promise is for the members' total, which is all that the moderator learns.",
        f"It holds while at most {colluding} of the sum's members are in league with the moderator or add no noise; "
        "whom the moderator says to have dropped out, rightly or not, is counted in.",
    )


def _up(scale: float) -> Fraction:
    return scale_at_least(scale * (1 + 1e-14))
