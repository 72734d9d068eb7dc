"""Made-up records that follow a schema, to plan with before anybody opens a table.

Classes are equally likely; each has a centre of its own in every column of numbers, and chances of its own for every
category. Nothing of it comes from anybody's records: the schema alone and a seed decide. What a model reaches on them
says how noise weighs on so many records of so many columns, not how well it would do on real ones.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.data.tables.encode import PARTS
from holdfast.data.tables.schema import EPOCH, Column, Schema

MISSING = 0.05  # of the cells of a column that may lack values
CENTRES, SPREAD = 0.1, 0.15  # deviation of the classes' centres, and of the records around them, of a column's range


def write_stand_in(schema: Schema, members: Sequence[str], records: Sequence[int], folder: Path, seed: int = 0) -> Path:
    """Write made-up tables for these members, with so many records each; the file or folder to name as `data`."""
    if schema.target.kind != "classes":
        raise HoldfastError(
            f"records: they are made up for targets of kind 'classes', and {schema.where} has {schema.target.kind!r}."
        )
    generator = np.random.default_rng(seed)
    count = sum(records)
    names = schema.target.class_names
    cells = {name: text for text, name in schema.target.values}
    classes = generator.integers(len(names), size=count)
    table = {schema.target.columns[0]: [cells[names[one]] for one in classes]}
    for column in schema.columns:
        table[column.name] = drawn(schema, column, classes, len(names), generator)
    whose = [name for name, size in zip(members, records, strict=True) for _ in range(size)]
    table |= {schema.patient: [f"made-up {i}" for i in range(count)]} if schema.patient else {}
    table |= {schema.weight: ["1"] * count} if schema.weight else {}
    table |= {schema.split: list(generator.choice(PARTS, size=count, p=(0.7, 0.1, 0.2)))} if schema.split else {}
    if schema.site:
        return write_table({schema.site: whose, **table}, range(count), folder / "made-up.csv")
    for name in members:
        write_table(table, [i for i in range(count) if whose[i] == name], folder / f"{name}.csv")
    return folder


def drawn(
    schema: Schema, column: Column, classes: NDArray[Any], count: int, generator: np.random.Generator
) -> list[str]:
    """The cells of one column."""
    if column.kind == "category":
        chances = generator.dirichlet(np.ones(len(column.values)), size=count)
        cells = [column.values[generator.choice(len(column.values), p=chances[one])] for one in classes]
    else:
        centres = 0.5 + CENTRES * generator.standard_normal(count)
        share = np.clip(centres[classes] + SPREAD * generator.standard_normal(len(classes)), 0.0, 1.0)
        numbers = column.low + share * (column.high - column.low)
        cells = [written(schema, column, float(number)) for number in numbers]
    if column.missing == "indicator":
        lacking = (*schema.missing_values, *column.missing_values)[0]
        gone = generator.random(len(cells)) < MISSING
        cells = [lacking if gone[i] else cell for i, cell in enumerate(cells)]
    return cells


def written(schema: Schema, column: Column, number: float) -> str:
    if column.kind == "date":
        return (EPOCH + timedelta(days=round(number))).strftime(column.format)
    text = f"{min(max(round(number, 3), column.low), column.high)}"
    return text.replace(".", schema.decimal)


def write_table(table: dict[str, list[str]], rows: Sequence[int], path: Path) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows([cells[i] for cells in table.values()] for i in rows)
    return path
