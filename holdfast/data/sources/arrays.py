"""From arrays to a task: everything that can be wrong with data is refused here, before anything is learnt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.core.errors import HoldfastError, nearest
from holdfast.data.sources.npz import names_in, read_arrays
from holdfast.data.task import Samples, Task

KEYS = ("x_train", "y_train", "x_test", "y_test")
MEDMNIST = tuple(f"{part}_{name}" for part in ("train", "val", "test") for name in ("images", "labels"))


@dataclass(frozen=True)
class Array:
    """Values, and the file and key they came from for the user to find them by."""

    values: NDArray[Any]
    where: str


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an npz file: x_train, y_train, x_test, y_test and, if there, class_names; or MedMNIST's."""
    found = read_arrays(path, (*KEYS, "class_names", *MEDMNIST), f"the keys {', '.join(KEYS)}")
    if all(key in found for key in MEDMNIST):
        found |= {f"{xy}_test": found[f"test_{name}"] for xy, name in (("x", "images"), ("y", "labels"))}
        for xy, name in (("x", "images"), ("y", "labels")):  # each client splits off a validation part of its own
            found[f"{xy}_train"] = np.concatenate([found[f"train_{name}"], found[f"val_{name}"]])
    for key in KEYS:
        if key not in found:
            there = names_in(path)
            hint = nearest(key, there) if there else "it is empty"
            raise HoldfastError(f"{path} has no key {key!r}; {hint}")
    return {key: Array(values, f"{path}, key {key}") for key, values in found.items() if key not in MEDMNIST}


def task_from(name: str, arrays: dict[str, Array], class_names: tuple[str, ...] | None = None) -> Task:
    """The task made of four arrays; without class names they are the file's own, or the numbers 0 to k-1."""
    x_train, x_test = inputs(arrays["x_train"]), inputs(arrays["x_test"])
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise HoldfastError(
            f"{arrays['x_test'].where}: its samples are {_kind(x_test)} but those of "
            f"{arrays['x_train'].where} are {_kind(x_train)}; both must be alike."
        )
    y_train, y_test = labels(arrays["y_train"]), labels(arrays["y_test"])
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if len(x) != len(y):
            raise HoldfastError(
                f"{arrays[f'y_{part}'].where}: {len(y)} labels for {len(x)} samples in "
                f"{arrays[f'x_{part}'].where}; there must be one for each."
            )
    if class_names is None:
        class_names = _own_names(arrays, y_train)
    for key, y in (("y_train", y_train), ("y_test", y_test)):
        if int(y.max()) >= len(class_names):
            raise HoldfastError(
                f"{arrays[key].where}: label {int(y.max())} is out of range; "
                f"{name} has {len(class_names)} classes, 0 to {len(class_names) - 1}."
            )
    return Task(name, Samples((x_train,), y_train), Samples((x_test,), y_test), class_names)


def inputs(array: Array) -> Tensor:
    """Images (N, H, W) or (N, H, W, C), bytes or floats in [0, 1], to (N, C, H, W); float vectors (N, D) unchanged."""
    values, where = array.values, array.where
    if values.ndim not in (2, 3, 4):
        raise HoldfastError(
            f"{where}: has shape {values.shape}; expected images (N, H, W) or (N, H, W, C), or vectors (N, D)."
        )
    if values.size == 0:
        raise HoldfastError(f"{where}: is empty (shape {values.shape}); at least one sample is needed.")
    if values.ndim == 4 and values.shape[3] > 4 >= values.shape[1]:
        raise HoldfastError(f"{where}: shape {values.shape} looks like (N, C, H, W); store images as (N, H, W, C).")
    if values.dtype == np.uint8 and values.ndim > 2:
        return _channels_first(values)
    if values.dtype.kind != "f":
        raise HoldfastError(
            f"{where}: holds {values.dtype}; images must be uint8 or floats in [0, 1], and vectors must be floats."
        )
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)  # checked after this: what float32 cannot hold has become infinite
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))[0])
        raise HoldfastError(f"{where}: sample {row} holds NaN or infinite values; mend or drop it.")
    if values.ndim == 2:
        return torch.from_numpy(values)
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        raise HoldfastError(
            f"{where}: images as floats must lie in [0, 1], these span {low:g} to {high:g}; rescale them."
        )
    return _channels_first(values)


def labels(array: Array) -> Tensor:
    """Whole numbers from 0 as int64 (N,); a column (N, 1) is read as (N,)."""
    values, where = array.values, array.where
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise HoldfastError(
            f"{where}: expected whole numbers of shape (N,), got {values.dtype} of shape {values.shape}."
        )
    if len(values) == 0:
        raise HoldfastError(f"{where}: is empty; at least one label is needed.")
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.floor(values))).all():
        raise HoldfastError(f"{where}: labels must be whole numbers 0 to k-1, some are not.")
    if values.min() < 0 or values.max() >= 2**31:
        wrong = values.min() if values.min() < 0 else values.max()
        raise HoldfastError(f"{where}: label {wrong} is out of range; number the classes 0 to k-1.")
    return torch.from_numpy(values.astype(np.int64))


def _channels_first(images: NDArray[Any]) -> Tensor:
    if images.ndim == 3:
        images = images[:, None]
    else:
        images = images.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.array(images, order="C"))  # a copy: what came from a file's bytes is read-only


def _own_names(arrays: dict[str, Array], y_train: Tensor) -> tuple[str, ...]:
    """The names in the file, or the numbers 0 to k-1 when every one of them is seen in training."""
    if "class_names" in arrays:
        values, where = arrays["class_names"].values, arrays["class_names"].where
        names = tuple(str(value) for value in values.tolist()) if values.ndim == 1 and values.dtype.kind == "U" else ()
        if len(names) < 2 or len(set(names)) < len(names):
            raise HoldfastError(f"{where}: expected a list of two or more different texts, one for each class.")
        return names
    where = arrays["y_train"].where
    seen = torch.unique(y_train)
    classes = int(seen[-1]) + 1
    if classes < 2:
        raise HoldfastError(f"{where}: there is only one class; at least two are needed to learn anything.")
    if len(seen) < classes:
        gap = next(c for c, label in enumerate(seen.tolist()) if c != label)
        raise HoldfastError(
            f"{where}: no sample has label {gap}; number the classes 0 to k-1 without gaps, or add the key class_names."
        )
    return tuple(map(str, range(classes)))


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape[1:])}"
