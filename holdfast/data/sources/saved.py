"""Data sets that the library `datasets` saved to disk, for those who installed the extra `hub`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.core.errors import HoldfastError, nearest, plain
from holdfast.data.sources.arrays import Array, inputs
from holdfast.data.sources.described import TEST, TRAIN, Description, Records
from holdfast.data.sources.hub import columns, installed
from holdfast.data.sources.texts import records_of_texts


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by save_to_disk."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def saved_records(about: Description, folder: Path) -> Records:
    """The records of a saved data set; a part called test is the moderator's."""
    if not installed():
        raise HoldfastError(f"{folder} was saved by the library datasets; pip install holdfast[hub] to read it.")
    from datasets import DatasetDict, load_from_disk

    try:
        found = load_from_disk(str(folder))
    except Exception as error:  # a stranger's files
        raise HoldfastError(f"{folder} cannot be read as a data set ({plain(str(error), 100)}).") from None
    parts = dict(found) if isinstance(found, DatasetDict) else {TRAIN: found}
    values: list[Any] = []
    labels: list[str] = []
    facts: dict[str, list[str]] = {about.split: []} if TEST in parts else {}
    for name, part in parts.items():
        where = f"{folder}, part {plain(name, 40)}"
        column = about.column if about.what == "text" else image_column(part, where)
        for needed in (column, about.label):
            if needed not in part.column_names:
                raise HoldfastError(f"{where}: has no column {needed!r}; {nearest(needed, part.column_names)}")
        values.append(list(part[column]) if about.what == "text" else columns(part, column, about.label, where)[0])
        labels += label_words(part, about.label)
        for fact in (about.site, about.person):
            if fact in part.column_names:
                facts.setdefault(fact, []).extend(str(value) for value in part[fact])
        if TEST in parts:
            facts[about.split] += [TEST if name == TEST else TRAIN] * len(part)
    if about.what == "text":
        return records_of_texts([text for part in values for text in part], labels, facts, str(folder))
    if len({part.shape[1:] for part in values}) > 1:
        raise HoldfastError(f"{folder}: the images of its parts differ in size.")
    images = inputs(Array(np.concatenate(values), str(folder)))
    return Records(labels, facts, lambda rows: images[torch.tensor(rows)], str(folder))


def image_column(part: Any, where: str) -> str:
    """The column of images."""
    found = [name for name, kind in part.features.items() if type(kind).__name__ == "Image"]
    if len(found) != 1:
        raise HoldfastError(f"{where}: has {len(found)} columns of images; one is expected.")
    return str(found[0])


def label_words(part: Any, column: str) -> list[str]:
    """Labels by name, where the data set has names for them."""
    names = getattr(part.features[column], "names", None)
    return [names[value] if names else str(value) for value in part[column]]
