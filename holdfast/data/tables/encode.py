"""From cells to numbers, by the schema alone: one-hot, scaling to the public range, indicators.

A number becomes (v - middle) / half of its range, in [-1, 1]; a category a one-hot group; a missing cell zeros and a 1
in the column's indicator. So each column is a group of length at most 1, and a record is at most sqrt(columns) long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.data.tables.reader import Cells
from holdfast.data.tables.schema import Column, Schema, Target, as_days

NUMBER = {
    ".": r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?$",
    ",": r"^[+-]?(\d+,?\d*|,\d+)([eE][+-]?\d{1,3})?$",
}
PARTS = ("train", "validation", "test")
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Problem:
    """What does not fit in a column, and in which records; a cell's content is not in it."""

    column: str
    what: str
    records: NDArray[np.int64]

    def sentence(self, where: object) -> str:
        more = f" (and in {len(self.records) - 1} more rows)" if len(self.records) > 1 else ""
        return f"{where}, row {int(self.records[0]) + 2}, column {self.column!r}: {self.what}{more}."


@dataclass
class Found:
    """What does not fit, as it is found."""

    problems: list[Problem] = field(default_factory=list)

    def note(self, column: str, what: str, wrong: Mask) -> None:
        if wrong.any():
            self.problems.append(Problem(column, what, np.flatnonzero(wrong)))


@dataclass(frozen=True)
class Encoded:
    """Records as numbers, and what did not fit; numbers of records that did not fit mean nothing."""

    inputs: NDArray[np.float32]
    targets: NDArray[Any]
    facts: dict[str, tuple[NDArray[np.int64], tuple[str, ...]]]  # role -> numbers, and what they mean
    problems: list[Problem]
    weights: NDArray[np.float32] | None = None


def encode(schema: Schema, cells: Cells, decimal: str, site: str | None = None) -> Encoded:
    """All records of one file; `site` is whose they are where no column says it."""
    found = Found()
    blocks = [encode_column(column, schema, cells[column.name], decimal, found) for column in schema.columns]
    targets = encode_target(schema.target, schema, cells, decimal, found)
    facts = {}
    for role, column in (("site", schema.site), ("patient", schema.patient), ("split", schema.split)):
        if column is not None and column in cells:
            facts[role] = encode_fact(role, column, schema, cells[column], found)
    if site is not None and "site" not in facts:
        facts["site"] = (np.zeros(len(targets), np.int64), (site,))
    weights = None if schema.weight is None else encode_weight(schema, cells[schema.weight], decimal, found)
    return Encoded(np.concatenate(blocks, 1), targets, facts, found.problems, weights)


def missing_in(cells: Any, words: tuple[str, ...]) -> Mask:
    """Which cells say nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    none = pc.or_(pc.is_null(cells), pc.is_in(cells, pa.array(words, pa.string())))
    mask: Mask = none.to_numpy(zero_copy_only=False).astype(bool)
    return mask


def encode_column(column: Column, schema: Schema, cells: Any, decimal: str, found: Found) -> NDArray[np.float32]:
    """One column's group of numbers, (N, len(column.encoded))."""
    missing = missing_in(cells, (*schema.missing_values, *column.missing_values))
    if column.missing == "refuse":
        found.note(column.name, "has no value, and its schema says missing = 'refuse'", missing)
    if column.kind == "category":
        codes = codes_of(cells, column.values)
        found.note(column.name, "is none of the values that the schema names", (codes < 0) & ~missing)
        block = np.zeros((len(codes), len(column.values)), np.float32)
        block[np.flatnonzero(~missing & (codes >= 0)), codes[~missing & (codes >= 0)]] = 1
    else:
        if column.kind == "date":
            values = dates(column, cells, missing, found)
        else:
            values = numbers(column.name, cells, missing, decimal, found)
        values = within(column, column.name, values, found)
        middle, half = (column.high + column.low) / 2, (column.high - column.low) / 2
        block = np.where(missing, 0.0, (values - middle) / half).astype(np.float32)[:, None]
    if column.missing == "indicator":
        block = np.concatenate([block, missing.astype(np.float32)[:, None]], 1)
    return block


def encode_target(target: Target, schema: Schema, cells: Cells, decimal: str, found: Found) -> NDArray[Any]:
    """Classes (N,), whole numbers; labels (N, k) of 0 and 1; numbers (N, 1); survival (N, 2): time, event."""
    gone = {name: missing_in(cells[name], schema.missing_values) for name in target.columns}
    for name, missing in gone.items():
        found.note(name, "the target has no value", missing)
    if target.kind == "classes":
        (name,) = target.columns
        codes = codes_of(cells[name], tuple(cell for cell, _ in target.values))
        found.note(name, "is none of the classes that the schema names", (codes < 0) & ~gone[name])
        classes = np.array([target.class_names.index(label) for _, label in target.values])
        return classes[np.maximum(codes, 0)]
    if target.kind == "labels":
        return np.stack([yes_no(name, cells[name], gone[name], found) for name in target.columns], 1)
    name = target.columns[-1]  # of survival: the time
    values = within(target, name, numbers(name, cells[name], gone[name], decimal, found), found)
    if target.kind == "count":
        found.note(name, "is no whole number", ~gone[name] & (values != np.floor(values)))
    if target.kind == "survival":
        event = target.columns[0]
        return np.stack([values.astype(np.float32), yes_no(event, cells[event], gone[event], found)], 1)
    return values.astype(np.float32)[:, None]


def encode_fact(
    role: str, column: str, schema: Schema, cells: Any, found: Found
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """A column that no model reads, as whole numbers and their meaning."""
    import pyarrow.compute as pc

    missing = missing_in(cells, schema.missing_values)
    found.note(column, f"has no value, and it says the {role}", missing)
    if role == "split":
        codes = codes_of(cells, PARTS)
        found.note(column, f"is none of {', '.join(PARTS)}", (codes < 0) & ~missing)
        return np.maximum(codes, 0), PARTS
    coded = pc.dictionary_encode(pc.fill_null(cells, ""))
    return coded.indices.to_numpy().astype(np.int64), tuple(coded.dictionary.to_pylist())


def encode_weight(schema: Schema, cells: Any, decimal: str, found: Found) -> NDArray[np.float32]:
    """How much each record counts."""
    name = schema.weight or ""
    missing = missing_in(cells, schema.missing_values)
    found.note(name, "has no value, and it says the weight", missing)
    values = numbers(name, cells, missing, decimal, found)
    found.note(name, "is a weight below 0", values < 0)
    return np.nan_to_num(values).astype(np.float32)


def codes_of(cells: Any, values: tuple[str, ...]) -> NDArray[np.int64]:
    """The position of each cell among the values, -1 if it is none of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    codes = pc.fill_null(pc.index_in(cells, pa.array(values, pa.string())), -1)
    return np.asarray(codes.to_numpy(zero_copy_only=False), np.int64)


def yes_no(name: str, cells: Any, missing: Mask, found: Found) -> NDArray[np.float32]:
    codes = codes_of(cells, ("0", "1", "no", "yes", "false", "true"))
    found.note(name, "is neither 0 nor 1 (no, yes, false and true are read as well)", (codes < 0) & ~missing)
    return np.asarray(codes % 2, np.float32)


def numbers(name: str, cells: Any, missing: Mask, decimal: str, found: Found) -> Floats:
    """Cells as numbers; NaN where there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    readable = pc.fill_null(pc.match_substring_regex(cells, NUMBER[decimal]), False)
    good: Mask = readable.to_numpy(zero_copy_only=False).astype(bool)
    other = "; set decimal in the schema if it has a decimal comma" if decimal == "." else ""
    empty: Mask = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(cells), ""), True).to_numpy(zero_copy_only=False)
    found.note(name, 'is empty; if that means not known, the schema\'s missing_values must name ""', empty & ~missing)
    found.note(name, f"is no number{other}", ~good & ~empty & ~missing)
    kept = pc.if_else(pa.array(good), cells, "0")
    kept = pc.replace_substring(kept, "+", "")
    if decimal == ",":
        kept = pc.replace_substring(kept, ",", ".")
    values: Floats = np.asarray(pc.cast(kept, pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    found.note(name, "is too large a number", ~np.isfinite(values) & ~missing)
    return np.where(good & ~missing & np.isfinite(values), values, np.nan)


def dates(column: Column, cells: Any, missing: Mask, found: Found) -> Floats:
    """Cells as days since 1970; NaN where there is none."""
    days: dict[str | None, float] = {}
    wrong = np.zeros(len(cells), bool)
    values = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells.to_pylist()):
        if missing[row]:
            continue
        if cell not in days:
            try:
                days[cell] = as_days(cell, column.format, column.name)
            except HoldfastError:
                days[cell] = np.nan
        values[row] = days[cell]
        wrong[row] = np.isnan(days[cell])
    found.note(column.name, f"is no date of the form {column.format}", wrong)
    return values


def within(told: Column | Target, name: str, values: Floats, found: Found) -> Floats:
    """Values in the public range, 0 where there is none; what is outside is clipped or does not fit, as agreed."""
    if told.outside == "refuse":
        ends = [f"{end:g}" for end in (told.low, told.high)]
        if told.kind == "date":
            ends = [str(np.datetime64(int(end), "D")) for end in (told.low, told.high)]
        unit = f" {told.unit}" if told.unit else ""
        found.note(
            name,
            f"is outside of the agreed range, {' to '.join(ends)}{unit}",
            (values < told.low) | (values > told.high),
        )
    return np.nan_to_num(np.clip(values, told.low, told.high))
