"""What of a file fits a schema, and what looks wrong although it fits: for the eyes of the site alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.data.tables.encode import NUMBER, Encoded, Problem, missing_in
from holdfast.data.tables.reader import Cells, column_names, read_cells
from holdfast.data.tables.schema import Column, Schema
from holdfast.data.tables.source import alike, read_file, sites_of, without_values

LEAKS = 0.98  # balanced accuracy, or correlation, of one column alone
ENOUGH = 20  # records with a value, before something is said about all of them
NEAR = 0.02  # of the range: how near its edge is near


@dataclass(frozen=True)
class Row:
    """One column in a few words."""

    column: str
    what: str
    missing: float  # share of the records
    fits: bool


@dataclass(frozen=True)
class Report:
    """What `holdfast data check` says."""

    records: int
    rows: list[Row]
    problems: list[str]  # what does not fit
    warnings: list[str]  # what fits and looks wrong
    read: list[str]  # columns that models read
    kept: list[str]  # columns that are read and never leave in any form
    ignored: list[str]  # columns that nobody reads

    @property
    def fits(self) -> bool:
        return not self.problems


def check_table(schema: Schema, path: Path, site: str | None = None) -> Report:
    """A file held against a schema."""
    encoded = read_file(schema, path, site, partial=True)
    cells = read_cells(path, schema.needed)
    decimal = "." if path.suffix.lower() == ".parquet" else schema.decimal
    wrong = {problem.column for problem in encoded.problems}
    rows = [
        Row(
            column.name,
            in_words(column),
            float(missing_in(cells[column.name], (*schema.missing_values, *column.missing_values)).mean()),
            column.name not in wrong,
        )
        for column in schema.columns
    ]
    for name in schema.target.columns:
        missing = missing_in(cells[name], schema.missing_values)
        rows.append(Row(name, f"target ({schema.target.kind})", float(missing.mean()), name not in wrong))
    kept = [name for name in (schema.site, schema.patient, schema.split, schema.weight) if name]
    used = [*(column.name for column in schema.columns), *schema.target.columns]
    warnings = [
        *(said for column in schema.columns for said in odd_unit(column, schema, cells[column.name], decimal)),
        *empty_columns(rows),
        *one_class(schema, encoded),
        *duplicates(schema, cells, encoded),
        *leaks(schema, encoded),
    ]
    return Report(
        len(encoded.targets),
        rows,
        [*(sentence(problem, path, cells) for problem in encoded.problems), *of_sites(schema, encoded, path.name)],
        warnings,
        [column.name for column in schema.columns],
        kept,
        [name for name in column_names(path) if name not in used and name not in kept],
    )


def of_sites(schema: Schema, encoded: Encoded, where: str) -> list[str]:
    """What is wrong with a site as a whole: no value in any record, or a name that is nearly another's."""
    odd = (without_values(schema, encoded), alike(sites_of([encoded])))
    return [f"{where}: {said}" for said in odd if said is not None]


def in_words(column: Column) -> str:
    if column.kind == "category":
        return f"category of {len(column.values)}"
    if column.kind == "date":
        ends = [str(np.datetime64(int(end), "D")) for end in (column.low, column.high)]
        return f"date, {ends[0]} to {ends[1]}"
    return f"number, {column.low:g} to {column.high:g} {column.unit}".rstrip()


def sentence(problem: Problem, path: Path, cells: Cells) -> str:
    """A problem with the most frequent cells behind it: the terminal is the site's own."""
    said = problem.sentence(path.name)
    if problem.column not in cells or "no value" in problem.what:
        return said
    column = cells[problem.column].to_pylist()
    seen = Counter(column[record] for record in problem.records.tolist()).most_common(3)
    return f"{said[:-1]}: {', '.join(f'{str(cell)[:30]!r}' for cell, _ in seen)}."


def odd_unit(column: Column, schema: Schema, cells: Any, decimal: str) -> list[str]:
    """Numbers that look as if they were in another unit."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.kind != "number":
        return []
    known = ~missing_in(cells, (*schema.missing_values, *column.missing_values))
    readable = pc.fill_null(pc.match_substring_regex(cells, NUMBER[decimal]), False).to_numpy(zero_copy_only=False)
    texts = cells.filter(pa.array(known & readable.astype(bool))).to_pylist()
    values = np.array([float(text.replace(decimal, ".")) for text in texts])
    if len(values) < ENOUGH:
        return []
    outside = (values < column.low) | (values > column.high)
    middle, median = (column.low + column.high) / 2, float(np.median(values))
    if outside.mean() > 0.5 and median and middle:
        factor = middle / median
        told = f"{factor:.3g} times too small" if abs(factor) > 1 else f"{1 / factor:.3g} times too large"
        return [f"{column.name}: most values are outside of the agreed range, about {told}; is the unit right?"]
    scaled = (np.clip(values, column.low, column.high) - column.low) / (column.high - column.low)
    edge = max(float((scaled < NEAR).mean()), float((scaled > 1 - NEAR).mean()))
    if edge > 0.5 and len(np.unique(values)) > 2 and np.ptp(scaled) < 0.25:
        return [f"{column.name}: {edge:.0%} of the values lie at the edge of the agreed range; is the unit right?"]
    return []


def empty_columns(rows: list[Row]) -> list[str]:
    return [f"{row.column}: no record has a value." for row in rows if row.missing == 1]


def one_class(schema: Schema, encoded: Encoded) -> list[str]:
    """Classes of which this file has no record, or nearly none."""
    names = schema.target.class_names
    if not names:
        return []
    counts = np.bincount(good(encoded)[1].astype(np.int64), minlength=len(names))
    if np.count_nonzero(counts) == 1:
        return [f"target: all records are {names[int(counts.argmax())]!r}; such a site cannot measure a model."]
    if counts.max() > 0.9 * counts.sum():
        share, name = counts.max() / counts.sum(), names[int(counts.argmax())]
        return [f"target: {share:.0%} are {name!r}; accuracy says little here, look at balanced accuracy and AUROC."]
    return []


def good(encoded: Encoded) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """The records without any problem."""
    fits = np.ones(len(encoded.targets), bool)
    for problem in encoded.problems:
        fits[problem.records] = False
    return encoded.inputs[fits], encoded.targets[fits]


def duplicates(schema: Schema, cells: Cells, encoded: Encoded) -> list[str]:
    """Records that are there twice, and patients with several."""
    found = []
    names = [name for name in cells if name not in (schema.split,)]
    rows = Counter(zip(*(cells[name].to_pylist() for name in names), strict=True))
    again = sum(rows.values()) - len(rows)
    if again:
        found.append(f"records that are the same as another one in every column: {again}.")
    if "patient" in encoded.facts:
        several = int((np.bincount(encoded.facts["patient"][0]) > 1).sum())
        if several:
            found.append(f"patients with more than one record: {several}; no split puts them into two parts.")
    return found


def leaks(schema: Schema, encoded: Encoded) -> list[str]:
    """Columns that alone nearly say the target."""
    inputs, targets = good(encoded)
    if len(targets) < ENOUGH:
        return []
    found = []
    for column, start in schema.places:
        block = inputs[:, start : start + len(column.encoded)]
        told = alone(block, targets, bool(schema.target.class_names))
        if told > LEAKS:
            found.append(f"{column.name}: it alone says nearly all about the target ({told:.0%}); is it known before?")
    return found


def alone(block: NDArray[np.float32], targets: NDArray[Any], classes: bool) -> float:
    """How well one column says the target: the best balanced accuracy of a cut or of its values, or |correlation|."""
    if not classes:
        x, y = block[:, 0].astype(float), targets[:, 0].astype(float)
        return float(abs(np.corrcoef(x, y)[0, 1])) if x.std() and y.std() else 0.0
    groups = np.unique(block, axis=0, return_inverse=True)[1].reshape(-1)
    held = np.unique(targets)
    counts = np.stack([np.bincount(groups[targets == name], minlength=groups.max() + 1) for name in held], 1)
    if len(held) < 2 or len(counts) > len(targets) / 4:
        return best_cut(block[:, 0], targets, held)
    rates = counts / counts.sum(0)
    return float(sum(rates[rates.argmax(1) == c, c].sum() for c in range(len(held))) / len(held))


def best_cut(values: NDArray[np.float32], targets: NDArray[Any], held: NDArray[Any]) -> float:
    """The best balanced accuracy of `value > t` among two classes; of more classes nothing is said."""
    if len(held) != 2:
        return 0.0
    order = np.argsort(values, kind="stable")
    positive = (targets[order] == held[1]).astype(float)
    above = 1 - np.cumsum(positive) / positive.sum()
    below = np.cumsum(1 - positive) / (1 - positive).sum()
    last = np.append(values[order][1:] != values[order][:-1], True)
    balanced = ((above + below) / 2)[last]
    return float(max(balanced.max(), (1 - balanced).max()))
