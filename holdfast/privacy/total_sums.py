"""The joint sums of all members' features and targets, for secure sums of kinds without classes: noise in shares.

The mechanism is that of sum_noise.py. One record is one member's, and replacing it changes the total as it would change
the member's own sums: the promise is the same, with noise once for the federation instead of once a member. What it
costs that the noise comes in shares (noise_shares.py) is taken off epsilon and delta first.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from holdfast.privacy.claim import Claim
from holdfast.privacy.grid import Floats
from holdfast.privacy.ledger import SECURE_SUM
from holdfast.privacy.moment_noise import STEPS, square
from holdfast.privacy.noise import Source, Whole
from holdfast.privacy.noise_shares import COARSE, MOST_MEMBERS, share_cost
from holdfast.privacy.sum_noise import Bounds, Sums, exact_whole, scales_for, sums_claim
from holdfast.privacy.total_moments import Part, promise_of_total, rounding

UNIT = float(STEPS**2)


def shares_cost(k: int, bounds: Bounds) -> float:
    """What it costs that noise comes in shares, for any number of members up to MOST_MEMBERS."""
    changed = bounds.targets * (1 + k) + k * (k + 1) // 2 + bounds.with_squares
    return share_cost(float(COARSE), MOST_MEMBERS, changed)


def scales_of(epsilon: float, delta: float, k: int, bounds: Bounds) -> tuple[Fraction, Fraction]:
    """The noise that the total needs."""
    shares = shares_cost(k, bounds)
    return scales_for(epsilon - shares, delta * math.exp(-shares / 2), k, bounds)[0]


def parts(epsilon: float, delta: float, k: int, bounds: Bounds) -> list[Part]:
    """The vector: cells, the second moment on and off its diagonal, and y^2 where it leaves."""
    on, off = scales_of(epsilon, delta, k, bounds)
    found = [
        Part(bounds.targets * (1 + k), on, UNIT),
        Part(k, on, UNIT),
        Part(k * (k - 1) // 2, off, UNIT / 2),
        Part(int(bounds.with_squares), on, UNIT),
    ]
    return [part for part in found if part.count]


def exact(z: Floats, targets: Floats, bounds: Bounds) -> Whole:
    """A member's numbers before noise."""
    cells, second, squares = exact_whole(z, targets, bounds)
    whole = square(second, z.shape[1]).astype(np.int64)
    return np.concatenate([cells.reshape(-1), np.diagonal(whole), whole[np.triu_indices(z.shape[1], 1)], squares])


def sums_of(total: Whole, k: int, bounds: Bounds) -> Sums:
    """What a total says, in the features' and targets' own units."""
    cells, on, off, squares = np.split(total / UNIT, np.cumsum([bounds.targets * (1 + k), k, k * (k - 1) // 2]))
    second = np.zeros((k, k))
    second[np.triu_indices(k, 1)] = off
    second += second.T + np.diag(on)
    return Sums(cells.reshape(bounds.targets, 1 + k), second, float(squares.sum()))


def deviation(epsilon: float, delta: float, k: int, bounds: Bounds, present: int, honest: int) -> float:
    """The noise that is in a cell of the total: of all who are in it, not only of those that the promise counts on."""
    return float(scales_of(epsilon, delta, k, bounds)[0]) / UNIT * math.sqrt(present / honest * rounding())


def total_claim(epsilon: float, delta: float, k: int, bounds: Bounds, colluding: int, source: Source) -> Claim:
    """What the total promises, whatever the records are."""
    shares = shares_cost(k, bounds)
    own = sums_claim(epsilon - shares, delta * math.exp(-shares / 2), k, bounds, source)
    spent = own.epsilon_total + shares
    return replace(
        own,
        mode=SECURE_SUM,
        epsilon_nominal=epsilon,
        delta=delta,
        epsilon_features=spent,
        epsilon_labels=spent,
        epsilon_total=spent,
        epsilon_grid=own.epsilon_grid + shares,
        noise="discrete gaussian, in shares",
        notes=(*own.notes, *promise_of_total(colluding)),
    )
