"""Texts from one column of a CSV file, as their UTF-8 bytes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.data.sources.described import LONGEST, Description, Records
from holdfast.data.sources.listed import read_list

log = logging.getLogger("holdfast")


def text_records(about: Description, path: Path) -> Records:
    """The texts of a file and their labels; every further column is a fact of its record."""
    columns = read_list(path, (about.column, about.label))
    texts, labels = columns.pop(about.column), columns.pop(about.label)
    return records_of_texts(texts, labels, columns, str(path))


def records_of_texts(texts: Sequence[str], labels: Sequence[str], facts: dict[str, list[str]], where: str) -> Records:
    """Records of texts, none of them empty."""
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise HoldfastError(f"{where}: the text of record {number} is empty; drop it.")
    long = sum(len(text.encode()) > LONGEST for text in texts)
    if long:
        log.warning("%s: of %d texts only the first %d bytes are read.", where, long, LONGEST)
    return Records(labels, facts, lambda rows: as_bytes([texts[row] for row in rows]), where)


def as_bytes(texts: Sequence[str]) -> Tensor:
    """UTF-8 bytes (n, 4096), filled up with 0: of one shape everywhere, whoever has the longest text.

    >>> as_bytes(["Hi"])[0, :3].tolist()
    [72, 105, 0]
    """
    found = torch.zeros(len(texts), LONGEST, dtype=torch.uint8)
    for row, text in enumerate(texts):
        data = text.replace("\0", " ").encode()[:LONGEST]
        found[row, : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return found
