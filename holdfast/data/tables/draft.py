"""A first schema from one site's file, with a mark at everything that was taken from the data and must be agreed on."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError, nearest
from holdfast.data.tables.encode import NUMBER
from holdfast.data.tables.reader import column_names, read_cells
from holdfast.data.tables.schema import MISSING

UNIT = '# unit = "..."  # agree on this'
AGREE = "# agree on this: taken from your data"
ROLES = {
    "site": ("site", "hospital", "center", "centre", "institution", "clinic"),
    "patient": ("patient", "patient_id", "patientid", "pid", "subject", "subject_id", "id"),
    "split": ("split", "fold", "part"),
}
FORMATS = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d")
FEW = 20  # different values that a category may have
RARE = 5  # records


def draft_schema(path: Path, target: str | None = None, roles: dict[str, str | None] | None = None) -> str:
    """The text of a schema for the file; without `target` its last column is taken."""
    names = column_names(path)
    for given in (target, *(roles or {}).values()):
        if given is not None and given not in names:
            raise HoldfastError(f"{path} has no column {given!r}; {nearest(given, names)}")
    cells = read_cells(path, list(dict.fromkeys(names)))
    told = {role: (roles or {}).get(role) or guess(names, words) for role, words in ROLES.items()}
    if told["split"] and not {*present(cells[told["split"]])} <= {"train", "validation", "test"}:
        told["split"] = None
    if target is None:
        target = next(name for name in reversed(names) if name not in told.values())
        mark = "  # agree on this: the last column was taken; name another with --target"
    else:
        mark = ""
    decimal = "," if decimal_comma(cells) else "."
    lines = [
        f"# Drafted from {path.name}. What a line marks with 'agree on this' is from one site's data: replace it",
        "# by what all members know to be plausible or have agreed on, before this file leaves the house.",
        f"name = {json.dumps(path.stem)}",
        'version = "1"',
        f"missing_values = {json.dumps(list(MISSING))}",
        *(['decimal = ","'] if decimal == "," else []),
        *(f"{role} = {json.dumps(name)}" for role, name in told.items() if name),
        "",
        *target_lines(target, cells[target], decimal, mark),
    ]
    for name in names:
        if name != target and name not in told.values():
            lines += ["", *column_lines(name, cells[name], decimal)]
    return "\n".join(lines) + "\n"


def guess(names: Sequence[str], words: Sequence[str]) -> str | None:
    return next((name for name in names if name.lower() in words), None)


def present(cells: Any) -> list[str]:
    """The cells that say something."""
    return [cell for cell in cells.to_pylist() if cell is not None and cell not in MISSING]


def decimal_comma(cells: dict[str, Any]) -> bool:
    """Whether some column has numbers with a decimal comma, and none with a point."""
    texts = [cell for column in cells.values() for cell in present(column)[:1000]]
    fraction = {mark: any(re.fullmatch(rf"[+-]?\d+{re.escape(mark)}\d+", text) for text in texts) for mark in ".,"}
    return fraction[","] and not fraction["."]


def target_lines(name: str, cells: Any, decimal: str, mark: str) -> list[str]:
    values = present(cells)
    distinct = sorted({*values})
    lines = ["[target]", f"column = {json.dumps(name)}{mark}"]
    if len(distinct) <= FEW or not all_numbers(values, decimal):
        pairs = ", ".join(f"{json.dumps(value)} = {json.dumps(value)}" for value in distinct[:FEW])
        return [*lines, 'kind = "classes"', f"values = {{{pairs}}}  {AGREE}; right of = is the class it means"]
    low, high = round_range([as_number(value, decimal) for value in values])
    return [*lines, 'kind = "regression"', f"range = [{low:g}, {high:g}]  {AGREE}", UNIT]


def column_lines(name: str, cells: Any, decimal: str) -> list[str]:
    """One column's table, or why it is left out."""
    values = present(cells)
    distinct = sorted({*values})
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
    head = [f"[columns.{key}]"]
    tail = ['missing = "indicator"'] if len(values) < len(cells) else []
    if not values:
        return [f"# [columns.{key}] is left out: no record of this file has a value"]
    if all_numbers(values, decimal) and len(distinct) > FEW // 2:
        numbers = [as_number(value, decimal) for value in values]
        low, high = round_range(numbers)
        return [*head, 'kind = "number"', f"range = [{low:g}, {high:g}]  {AGREE}", UNIT, *tail, *zeros(numbers)]
    form = next((form for form in FORMATS if all(is_date(value, form) for value in distinct)), None)
    if form:
        years = [datetime.strptime(value, form).year for value in distinct]
        span = f'["{min(years) // 10 * 10}-01-01", "{max(years) // 10 * 10 + 10}-01-01"]'
        return [*head, 'kind = "date"', f"range = {span}  {AGREE}", f'format = "{form}"', *tail]
    if len(distinct) > FEW:
        return [f"# [columns.{key}] is left out: it holds {len(distinct)} different texts"]
    if len(distinct) == 1:
        return [f"# [columns.{key}] is left out: all records of this file have one value"]
    rare = [value for value in distinct if values.count(value) < RARE]
    also = f"; {len(rare)} of them in fewer than {RARE} records" if rare else ""
    return [*head, 'kind = "category"', f"values = {json.dumps(distinct, ensure_ascii=False)}  {AGREE}{also}", *tail]


def zeros(numbers: Sequence[float]) -> list[str]:
    """A hint where 0 seems to stand for a value that was not measured: it is far below all others."""
    others = [number for number in numbers if number]
    count = len(numbers) - len(others)
    if not count or min(others) <= 0 or min(others) < (max(others) - min(others)) / 10:
        return []
    question = f"0 stands in {count} records, the next value is {min(others):g}: was it not measured?"
    return [f'# missing_values = ["0"]  # agree on this: {question} Then also missing = "indicator"']


def all_numbers(values: Sequence[str], decimal: str) -> bool:
    return bool(values) and all(re.match(NUMBER[decimal], value) for value in values)


def as_number(value: str, decimal: str) -> float:
    return float(value.replace(decimal, "."))


def is_date(value: str, form: str) -> bool:
    try:
        datetime.strptime(value, form)
    except ValueError:
        return False
    return True


def round_range(values: Sequence[float]) -> tuple[float, float]:
    """Round numbers around the values: each end moved outward to half a power of ten.

    >>> round_range([28.0, 77.0]), round_range([0.2, 6.2]), round_range([5.0])
    ((25.0, 80.0), (0.0, 6.5), (4.0, 6.0))
    """
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 1, high + 1
    step = 10 ** math.floor(math.log10(high - low)) / 2
    return math.floor(low / step) * step, math.ceil(high / step) * step
