"""The moments of all members' records together, for secure sums: two stages of whole numbers, noise added in shares.

The mechanism is that of moment_noise.py without classwise second moments (s = 0 there, so D1 and D2 stay), as linear
discriminants need none; what is public between the stages are the centres that follow from the first stage's total.
One record is one member's, and replacing it changes the total as it would change the member's own sums: the promise
is the same, with noise once for the federation instead of once a member.

A record lies on a grid of 64 steps, coarser than a single member's. It is shortened by 1 % first, since rounding would
lengthen records of length 1. What is sent is rounded once more, after its share of the noise (noise_shares.py).

Of many features the second stage takes fewer directions: the first ones, and of the others those along which the
classes' means differ most by the first stage's total. All of that is public; u is made no longer than 1 after it, so
that the promise holds for any directions. A second moment of 88 directions has half the numbers of one of 128.
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
from holdfast.privacy.moment_noise import D1, D2, WEIGHT, Array, Centres, Deviations, First, Second
from holdfast.privacy.noise import Source, Whole, gaussian, scale_at_least
from holdfast.privacy.noise_shares import COARSE, MOST_MEMBERS, coarse_step, share_cost, share_scale

STEPS = 1 << 6
GRID = Grid("l2", 1.0, STEPS)
SHORTENED = 0.99
FIRST = 0.3  # share of the budget that the first stage takes
BEYOND = 12.0  # deviations of the noise that the numbers of a total have room for
ALL_UP_TO = 64  # features of which the second stage takes all directions; of more, 11/16 and no fewer than these


@dataclass(frozen=True)
class Part:
    """Numbers of one kind in a stage's vector: how many, the scale of the total's noise, and the most a record adds."""

    count: int
    scale: Fraction
    most: float


@dataclass(frozen=True)
class Around(Centres):
    """What the second stage measures from, and in which directions: it follows from the first one's total."""

    basis: Array  # (k, directions), orthonormal


def directions(k: int) -> int:
    """How many directions the second stage takes.

    >>> directions(40), directions(128)
    (40, 88)
    """
    return k if k <= ALL_UP_TO else max(ALL_UP_TO, 11 * k // 16)


def tail_shape(classes: int, k: int) -> tuple[int, int]:
    """Directions among the last features, and how many features these are; none where all directions are taken."""
    taken = directions(k)
    beyond = min(classes - 1, taken // 4) if taken < k else 0
    return beyond, k - taken + beyond if beyond else 0


def basis_of(tail: Array, k: int) -> Array:
    """The first directions as they are, and those of the tail."""
    found = np.zeros((k, directions(k)))
    first = found.shape[1] - len(tail)
    found[:first, :first] = np.eye(first)
    if len(tail):
        found[first:, first:] = tail.T
    return found


def around(centres: Centres, counts: Array) -> tuple[Around, Array]:
    """Around the centres of the first stage, with its class counts; and the tail, from which members know the basis.

    Of a record's variance the directions hold their share, as far as anybody knows: the radii shrink by its root.
    """
    classes, k = centres.means.shape
    beyond, last = tail_shape(classes, k)
    weights = np.maximum(counts, 0.0) / max(float(counts.sum()), 1.0)
    away = np.sqrt(weights)[:, None] * (centres.means - weights @ centres.means)[:, k - last :]
    tail = np.linalg.svd(away, full_matrices=False)[2][:beyond] if beyond else np.zeros((0, 0))
    radii = np.clip(centres.radii * math.sqrt(directions(k) / k), moments.LEAST_RADIUS, 1.0)
    return Around(centres.means, radii, basis_of(tail, k)), tail


@lru_cache(maxsize=64)
def scales_for(epsilon: float, delta: float, k: int) -> tuple[float, float, float, float]:
    """The deviations s1 and s2 of both stages' noise in the features' units, their ratio, and the epsilon spent."""

    def made(ratio: float) -> tuple[float, float]:
        return D1 / (ratio * math.sqrt(FIRST)), D2 / (ratio * math.sqrt(1 - FIRST))

    def cost(scales: tuple[float, float], ratio: float) -> float:
        shares = shares_cost(*scales, k)
        return discrete_epsilon(ratio, delta * math.exp(-shares / 2), changed(*scales, k)) + shares

    (first, second), ratio, spent = least_noise(epsilon, delta, made, cost)
    return first, second, ratio, spent


def parts(stage: int, first: float, second: float, classes: int, k: int) -> list[Part]:
    """A stage's vector: counts and sums of classes; in the second, the second moment on and off the diagonal too.

    k: how many directions the stage has.
    """
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
    both = [*parts(1, first, second, 2, k), *parts(2, first, second, 2, directions(k))]
    return [(part.count, float(part.scale)) for part in both if part.count]


def shares_cost(first: float, second: float, k: int) -> float:
    """What it costs that noise comes in shares, for any number of members up to MOST_MEMBERS."""
    return share_cost(float(COARSE), MOST_MEMBERS, sum(count for count, _ in changed(first, second, k)))


def layout_of(stage_parts: Sequence[Part], records: int, members: int, honest: int) -> list[tuple[int, int]]:
    """Bits for each number of a total over so many records of so many members, with their noise, as it is sent."""
    found = []
    for part in stage_parts:
        most = records * part.most + BEYOND * math.sqrt(members / honest) * float(part.scale)
        sent = math.ceil(most / coarse_step(part.scale, honest)) + members
        found.append((part.count, sent.bit_length() + 1))
    return found


def exact_stage(z: Floats, labels: NDArray[Any], classes: int, centres: Around | None) -> Whole:
    """A member's numbers of a stage before noise; the second stage measures from centres that are public."""
    values = quantise(z * SHORTENED, GRID).values
    if centres is not None:
        away = (values / (SHORTENED * STEPS) - centres.means[labels]) @ centres.basis
        length = np.sqrt((away**2).sum(1))
        values = quantise(SHORTENED * away / np.maximum(length, centres.radii[labels])[:, None], GRID).values
    sums = np.zeros((classes, values.shape[1]), dtype=np.int64)
    np.add.at(sums, labels, values)
    counts = np.bincount(labels, minlength=classes).astype(np.int64) * STEPS
    if centres is None:
        return np.concatenate([counts, sums.reshape(-1)])
    whole = values.T @ values
    off = np.triu_indices(values.shape[1], 1)
    return np.concatenate([counts, sums.reshape(-1), np.diagonal(whole), whole[off]])


def with_share(exact: Whole, stage_parts: Sequence[Part], honest: int, source: Source) -> Whole:
    """A member's numbers with its share of the noise, rounded to what is sent."""
    drawn = [gaussian(part.count, share_scale(part.scale, honest), source) for part in stage_parts]
    steps = sent_steps(stage_parts, honest)
    rounded: Whole = (exact + np.concatenate(drawn) + steps // 2) // steps
    return rounded


def sent_steps(stage_parts: Sequence[Part], honest: int) -> Whole:
    """Of each number of a stage's vector how many steps of the grid are one of what is sent."""
    steps = [coarse_step(part.scale, honest) for part in stage_parts]
    return np.repeat(np.array(steps, dtype=np.int64), [part.count for part in stage_parts])


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
    more = math.sqrt(present / honest * rounding())
    return Deviations(first * more, second * more / SHORTENED, own=0.0)


def rounding() -> float:
    """The variance of noise and rounding together, as a multiple of the noise's, at most."""
    return 1 + 1 / (12 * float(COARSE) ** 2)


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
