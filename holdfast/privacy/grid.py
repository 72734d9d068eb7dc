"""From features to whole numbers on a public grid, inside a public norm bound that is checked on the whole numbers.

Rounding first and bounding afterwards leaves no rounding margin to argue about: the bound |v| <= steps is a fact about
the very numbers the noise is added to, verified in whole-number arithmetic, whatever floating point did before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.privacy.noise import Whole

Norm = Literal["l1", "l2"]
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Grid:
    """The public bound on one record's features, and how many grid steps lie within it."""

    norm: Norm
    clip: float
    steps: int = 1 << 16

    def __post_init__(self) -> None:
        if self.norm not in ("l1", "l2"):
            raise HoldfastError(f"grid: norm must be 'l1' or 'l2', got {self.norm!r}.")
        if not (np.isfinite(self.clip) and self.clip > 0):
            raise HoldfastError(f"grid: the clip bound must be a positive number, got {self.clip!r}.")
        if not 1 <= self.steps <= 1 << 24:
            raise HoldfastError(f"grid: steps must lie between 1 and 2^24, got {self.steps!r}.")

    @property
    def step(self) -> float:
        return self.clip / self.steps

    @property
    def sensitivity(self) -> int:
        """Replace one record by another: |v - v'| <= |v| + |v'| <= 2 steps, in the grid's norm."""
        return 2 * self.steps


@dataclass(frozen=True)
class Quantised:
    """Features as whole numbers of grid steps, and how many records the bound had to shorten."""

    values: Whole
    clipped: int


def quantise(features: Floats, grid: Grid) -> Quantised:
    """Shorten each record to the clip bound, round to the grid, and make sure of |v| <= steps on the whole numbers.

    Rounding can lengthen a record past the bound; such a record is rounded towards zero instead, and where floating
    point still left it too long, every coordinate moves one step towards zero until the bound holds.

    >>> quantise(np.array([[3.0, 4.0], [0.3, 0.4]]), Grid("l2", 1.0, 100))
    Quantised(values=array([[60, 80],
           [30, 40]]), clipped=1)
    """
    check_features(features)
    x = features.astype(np.float64)
    largest = np.abs(x).max(axis=1, initial=0.0, keepdims=True)
    unit = x / np.where(largest > 0, largest, 1.0)  # first to |x| <= 1, so that huge features cannot overflow
    size = np.abs(unit).sum(1, keepdims=True) if grid.norm == "l1" else np.sqrt((unit**2).sum(1, keepdims=True))
    size = np.maximum(size, 1.0)
    with np.errstate(over="ignore"):
        scaled = unit * np.minimum(largest / grid.clip, 1 / size) * grid.steps
    values = np.rint(scaled).astype(np.int64)
    long = _too_long(values, grid)
    values[long] = np.trunc(scaled[long]).astype(np.int64)
    while (long := _too_long(values, grid)).any():
        values[long] -= np.sign(values[long])
    clipped = int((largest > grid.clip / size * (1 + 1e-6)).sum())  # not for a unit vector's last bit
    return Quantised(values, clipped)


def _too_long(values: Whole, grid: Grid) -> NDArray[np.bool_]:
    if grid.norm == "l1":
        return np.asarray(np.abs(values).sum(1) > grid.steps)
    return np.asarray((values * values).sum(1) > grid.steps**2)


def check_features(features: Floats) -> None:
    """Refuse features that are not a table of finite numbers, naming the first bad one."""
    if features.ndim != 2 or not np.issubdtype(features.dtype, np.floating):
        raise HoldfastError(
            f"features: expected a table (records, features) of floats, got shape {features.shape} of {features.dtype}."
        )
    bad = np.argwhere(~np.isfinite(features))
    if len(bad):
        row, column = (int(i) for i in bad[0])
        raise HoldfastError(
            f"features: record {row}, feature {column} is {features[row, column]} ({len(bad)} such values in all); "
            "nothing was released: repair or leave out the record."
        )


def check_labels(labels: NDArray[Any], records: int, classes: int) -> None:
    """Refuse labels that do not fit the records or the classes."""
    if labels.shape != (records,) or not np.issubdtype(labels.dtype, np.integer):
        raise HoldfastError(
            f"labels: expected {records} whole numbers, one for each record, "
            f"got shape {labels.shape} of {labels.dtype}."
        )
    if records and not (labels.min() >= 0 and labels.max() < classes):
        raise HoldfastError(
            f"labels: expected classes 0 to {classes - 1}, got {int(labels.min())} to {int(labels.max())}."
        )
