"""Lists: a CSV file with one record in each line, columns by name."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from holdfast.core.errors import HoldfastError, nearest, plain

MOST_CELL = 1 << 20  # characters
MOST_BYTES = 1 << 31


def read_list(path: Path, needed: Sequence[str]) -> dict[str, list[str]]:
    """The columns of a CSV file, as text; those that are needed must be there, and filled in every line."""
    if not path.is_file():
        raise HoldfastError(f"{path} does not exist; give a CSV file with the columns {', '.join(needed)}.")
    if path.stat().st_size > MOST_BYTES:
        raise HoldfastError(f"{path} is larger than {MOST_BYTES >> 30} GB; split it.")
    csv.field_size_limit(MOST_CELL)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            separator = max(",;\t", key=first.count)
            return _columns(csv.reader(file, delimiter=separator, strict=True), path, needed)
    except UnicodeDecodeError:
        raise HoldfastError(f"{path} is not text in UTF-8; save it as CSV in UTF-8.") from None
    except csv.Error as error:
        raise HoldfastError(f"{path} cannot be read as CSV ({plain(str(error), 100)}).") from None


def _columns(lines: object, path: Path, needed: Sequence[str]) -> dict[str, list[str]]:
    rows = iter(lines)  # type: ignore[call-overload]
    names = [name.strip() for name in next(rows, [])]
    for name in needed:
        if name not in names:
            there = [known for known in names if known]
            raise HoldfastError(f"{path} has no column {name!r}; {nearest(name, there) if there else 'it is empty'}")
    if len({*names}) < len(names):
        raise HoldfastError(f"{path}: two columns have one name.")
    columns: dict[str, list[str]] = {name: [] for name in names}
    for number, row in enumerate(rows, start=2):
        if not row:
            continue
        if len(row) != len(names):
            raise HoldfastError(f"{path}, line {number}: {len(row)} cells for {len(names)} columns.")
        for name, cell in zip(names, row, strict=True):
            if name in needed and not cell.strip():
                raise HoldfastError(f"{path}, line {number}: column {name!r} is empty; fill it in or drop the line.")
            columns[name].append(cell)
    if not any(columns.values()):
        raise HoldfastError(f"{path} has no records below its column names.")
    return columns
