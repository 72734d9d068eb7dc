"""Downloads for those who installed the extra: ``pip install holdfast[hub]``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.data.sources.arrays import Array

HOST = "huggingface.co"
# name -> repository, column of the images, column of the labels
TABLES = {
    "mnist": ("ylecun/mnist", "image", "label"),
    "fashion-mnist": ("zalando-datasets/fashion_mnist", "image", "label"),
    "cifar10": ("uoft-cs/cifar10", "img", "label"),
    "cifar100": ("uoft-cs/cifar100", "img", "fine_label"),
}
# EMNIST lies there as the official idx files, which are fetched and then read like a user's own
FILES = {"emnist": "Royc30ne/emnist-byclass", "emnist-balanced": "Royc30ne/emnist-balanced"}


def installed() -> bool:
    """Whether the extra is here; a mere folder called datasets has no origin."""
    found = importlib.util.find_spec("datasets")
    return found is not None and found.origin is not None


def download_table(name: str, missing: str) -> dict[str, Array]:
    """The four arrays of a data set that the hub keeps as a table; `missing` says why a download was needed."""
    from datasets import load_dataset

    repository, image, label = TABLES[name]
    try:
        table = load_dataset(repository)
    except Exception as error:  # whatever the transport below raises
        raise _failed(missing, repository, error) from None
    arrays = {}
    for part in ("train", "test"):
        where = f"{repository}, part {part}"
        x, y = columns(table[part], image, label, where)
        arrays[f"x_{part}"] = Array(x, f"{where}, column {image}")
        arrays[f"y_{part}"] = Array(y, f"{where}, column {label}")
    return arrays


def download_files(name: str, files: list[str], missing: str) -> list[Path]:
    """The hub's compressed files of these names, as they lie in its cache."""
    from huggingface_hub import hf_hub_download

    repository = FILES[name]
    try:
        return [Path(hf_hub_download(repository, f"{file}.gz", repo_type="dataset")) for file in files]
    except Exception as error:
        raise _failed(missing, repository, error) from None


def columns(table: Any, image: str, label: str, where: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N, H, W) or (N, H, W, C) and labels (N,) of one part of a data set."""
    for column in (image, label):
        if column not in table.column_names:
            raise HoldfastError(f"{where}: has no column {column!r}, only {', '.join(table.column_names)}.")
    if len(table) == 0:
        raise HoldfastError(f"{where}: is empty.")
    parts = []
    for start in range(0, len(table), 1000):  # decoded pictures of all samples at once would fill the memory
        pictures = [np.asarray(picture, np.uint8) for picture in table[start : start + 1000][image]]
        if len({picture.shape for picture in pictures}) > 1:
            raise HoldfastError(f"{where}, column {image}: the images differ in size.")
        parts.append(np.stack(pictures))
    return np.concatenate(parts), np.asarray(table[label][:], np.int64)


def _failed(missing: str, repository: str, error: Exception) -> HoldfastError:
    reason = str(error).split("\n")[0].split(". ")[0].rstrip(".") or type(error).__name__
    return HoldfastError(f"{missing}, and the download of {repository} failed ({reason}); fetch the files yourself.")
