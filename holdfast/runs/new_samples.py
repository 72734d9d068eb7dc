"""New samples for a trained model: an npz file, a table, a CSV file of texts, a picture or a folder of pictures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.data.kinds import Classes
from holdfast.data.sources.arrays import Array, inputs, labels
from holdfast.data.sources.described import LONGEST
from holdfast.data.sources.images import ENDINGS, fill, look_at
from holdfast.data.sources.listed import read_list
from holdfast.data.sources.npz import read_arrays
from holdfast.data.sources.series import channels_first
from holdfast.data.sources.texts import as_bytes
from holdfast.data.tables.new_records import is_table, read_records
from holdfast.data.tables.schema import Schema
from holdfast.data.task import Kind

log = logging.getLogger("holdfast")


class New(NamedTuple):
    """New samples as a model reads them."""

    x: NDArray[Any] | Sequence[str]
    labels: NDArray[Any] | None = None  # if they are known
    names: Sequence[str] = ()  # of files, where each sample is one


def holds_texts(inputs: Tensor) -> bool:
    return inputs.dtype == torch.uint8 and tuple(inputs.shape[1:]) == (LONGEST,)


def samples_of(x: NDArray[Any] | Sequence[str], shape: tuple[int, ...], texts: bool, where: str) -> Tensor:
    """New samples as those were that a model of this shape was trained on."""
    if texts:
        if isinstance(x, np.ndarray) and x.dtype.kind != "U":
            raise HoldfastError(f"{where}: the model was trained on texts; give them as a list, or as a CSV file.")
        return as_bytes([str(text) for text in x])
    values = np.asarray(x)
    return channels_first(values, where) if len(shape) == 2 else inputs(Array(values, where))


def read_new(
    path: Path, shape: tuple[int, ...], kind: Kind, classes: tuple[str, ...], schema: Schema | None, texts: bool
) -> New:
    """What a path holds for a model: samples of this shape and, if there are any, labels."""
    if path.is_dir() or path.suffix.lower() in ENDINGS:
        return read_pictures(path, shape, classes if kind.has_classes else ())
    if not is_table(path):
        return New(*read_samples(path, kind, len(classes)))
    if texts:
        return read_texts(path, classes)
    if schema is None:
        raise HoldfastError(f"{path} is a table, and the model was trained on arrays; give its samples as an npz file.")
    records, targets = read_records(schema, path)
    return New(
        records, None if targets is None else kind.read(torch.from_numpy(targets), len(classes), str(path)).numpy()
    )


def read_pictures(path: Path, shape: tuple[int, ...], classes: tuple[str, ...]) -> New:
    """A picture, or those of a folder; where all lie in folders that are called like classes, these are the labels."""
    if len(shape) != 3:
        raise HoldfastError(f"{path} holds pictures, and the model was trained on samples of shape {shape}.")
    paths = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.suffix.lower() in ENDINGS)
    if not paths or not path.exists():
        raise HoldfastError(f"{path} holds no picture; a picture ends in {', '.join(ENDINGS)}.")
    channels, height, width = shape
    looks = [look_at(one) for one in paths]
    if other := sum((look.height, look.width) != (height, width) for look in looks):
        log.warning("%s: %d of %d pictures were brought to %d x %d pixels.", path, other, len(paths), width, height)
    deep = any(look.deep for look in looks)
    pictures = np.empty((len(paths), channels, height, width), np.float32 if deep else np.uint8)
    fill(pictures, paths, deep)
    held = [one.parent.name for one in paths]
    known = np.array([classes.index(name) for name in held]) if path.is_dir() and {*held} <= {*classes} else None
    names = [one.name if one == path else str(one.relative_to(path)) for one in paths]
    return New(pictures.transpose(0, 2, 3, 1), known, names)


def read_texts(path: Path, classes: tuple[str, ...]) -> New:
    """The column `text` of a CSV file, or its only one; the labels in `label`, if it is there."""
    columns = read_list(path, ())
    column = next(iter(columns)) if len(columns) == 1 else "text"
    columns = read_list(path, (column,))
    if "label" not in columns:
        return New(columns[column])
    for number, label in enumerate(columns["label"], start=2):
        if label not in classes:
            raise HoldfastError(f"{path}, line {number}: {label!r} is no class of the model ({', '.join(classes)}).")
    return New(columns[column], np.array([classes.index(label) for label in columns["label"]]))


def read_samples(path: Path, kind: Kind | None = None, classes: int = 0) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Samples, and labels if there are any, of an npz file: keys x and y, or else x_test and y_test."""
    found = read_arrays(path, ("x", "y", "x_test", "y_test"), "the key x (and y, if labels are known)")
    x, y = ("x", "y") if "x" in found else ("x_test", "y_test")
    if x not in found:
        raise HoldfastError(f"{path} has neither the key x nor x_test; name the samples x and their labels, if any, y.")
    if y not in found:
        return found[x], None
    known = read_labels(Array(found[y], f"{path}, key {y}"), kind or Classes(), classes).numpy()
    if len(known) != len(found[x]):
        raise HoldfastError(f"{path}: {len(known)} labels in {y} for {len(found[x])} samples in {x}.")
    return found[x], known


def read_labels(array: Array, kind: Kind, classes: int) -> Tensor:
    """Labels as the kind reads them."""
    if kind.has_classes:
        return labels(array)
    if array.values.dtype.kind not in "iuf":
        raise HoldfastError(f"{array.where}: expected numbers, got {array.values.dtype}.")
    return kind.read(torch.from_numpy(array.values.astype(np.float32)), classes, array.where)
