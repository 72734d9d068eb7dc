"""Time series, or images, from an npz file: x (N, steps, channels), y (N,), and facts such as subject (N,)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.data.sources.arrays import Array, inputs
from holdfast.data.sources.described import TEST, TRAIN, Description, Records
from holdfast.data.sources.npz import names_in, read_arrays


def array_records(about: Description, path: Path) -> Records:
    """The records of an npz file with keys x and y.

    `test` (0 or 1) or `fold` (0 is the test) says what is the moderator's, unless the description says `split = ""`;
    any other key is a fact of its records.
    """
    arrays = read_arrays(path, names_in(path) if path.is_file() else (), "the keys x and y")
    for key in ("x", "y"):
        if key not in arrays:
            raise HoldfastError(f"{path} has no key {key!r}; series are x (N, steps, channels) with labels y (N,).")
    x = arrays.pop("x")
    if about.what == "images" and x.dtype == np.uint8 and x.size and x.max() == 1:
        x = x * np.uint8(255)  # black and white
    samples = channels_first(x, f"{path}, key x") if about.what == "series" else inputs(Array(x, f"{path}, key x"))
    labels = as_words(arrays.pop("y"), len(samples), f"{path}, key y")
    facts: dict[str, Sequence[str]] = {}
    for key, values in arrays.items():
        words = as_words(values, len(samples), f"{path}, key {key}")
        if key not in ("test", "fold"):
            facts[key] = words
        elif about.split:
            zero = {word for word in words if word.strip("0") in ("", "False")}
            facts[about.split] = [TEST if (word in zero) == (key == "fold") else TRAIN for word in words]
    if about.classes and all(label.isdecimal() for label in labels):
        labels = [named(int(label), about.classes, f"{path}, key y") for label in labels]
    return Records(labels, facts, lambda rows: samples[torch.tensor(rows)], str(path))


def named(number: int, classes: Sequence[str], where: str) -> str:
    """What a class's number stands for."""
    if number >= len(classes):
        raise HoldfastError(f"{where}: label {number} is out of range; there are {len(classes)} classes, from 0.")
    return classes[number]


def channels_first(values: NDArray[Any], where: str) -> Tensor:
    """Series (N, steps, channels) or (N, steps) as (N, channels, steps); NaN behind an end repeats the last step.

    >>> channels_first(np.array([[1.0, 2.0, np.nan]]), "x").tolist()
    [[[1.0, 2.0, 2.0]]]
    """
    if values.ndim == 2:
        values = values[:, :, None]
    if values.ndim != 3 or values.dtype.kind not in "fiu" or values.size == 0:
        raise HoldfastError(
            f"{where}: expected series (N, steps, channels), got {values.dtype} of shape {values.shape}."
        )
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)  # a copy; what float32 cannot hold has become infinite
    infinite = np.isinf(values).any((1, 2))
    if infinite.any():
        raise HoldfastError(f"{where}: series {int(infinite.argmax())} holds infinite values; mend or drop it.")
    nothing = np.isnan(values)
    lengths = (~nothing.all(2)).sum(1)
    behind = np.arange(values.shape[1]) >= lengths[:, None]  # where a shorter series is filled up, in all channels
    odd = (nothing != behind[:, :, None]).any((1, 2)) | (lengths == 0)
    if odd.any():
        first = int(odd.argmax())
        why = "is empty" if lengths[first] == 0 else "holds NaN before its end"
        raise HoldfastError(f"{where}: series {first} {why}; mend or drop it (NaN may only fill up a shorter series).")
    last = np.minimum(np.arange(values.shape[1]), lengths[:, None] - 1)
    held = np.take_along_axis(values, last[:, :, None], axis=1)
    return torch.from_numpy(np.ascontiguousarray(held.transpose(0, 2, 1)))


def as_words(values: NDArray[Any], count: int, where: str) -> list[str]:
    """Whole numbers or texts (N,) as texts; numbers with leading zeros, so that their order stays."""
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim != 1 or values.dtype.kind not in "iubU" or len(values) != count:
        raise HoldfastError(f"{where}: expected {count} whole numbers or texts, got {values.dtype} {values.shape}.")
    if values.dtype.kind in "Ub":
        return [str(value) for value in values.tolist()]
    width = max(len(str(value)) for value in np.unique(values).tolist())
    return [str(value).zfill(width) for value in values.tolist()]
