"""Records that a trained model is to judge: read by the schema that it carries, with or without the target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.data.tables.encode import Found, encode_column, encode_target
from holdfast.data.tables.reader import SUFFIXES, column_names, read_cells
from holdfast.data.tables.schema import EPOCH, ROLES, Column, Schema, Target


def is_table(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def read_records(schema: Schema, path: Path) -> tuple[NDArray[np.float32], NDArray[Any] | None]:
    """The records of a file as numbers, and their targets if the file has the columns of the target."""
    targets = schema.target.columns if {*schema.target.columns} <= {*column_names(path)} else ()
    cells = read_cells(path, [*(column.name for column in schema.columns), *targets])
    decimal = "." if path.suffix.lower() == ".parquet" else schema.decimal
    found = Found()
    blocks = [encode_column(column, schema, cells[column.name], decimal, found) for column in schema.columns]
    known = encode_target(schema.target, schema, cells, decimal, found) if targets else None
    if found.problems:
        raise HoldfastError(found.problems[0].sentence(path))
    return np.concatenate(blocks, 1), known


def as_table(schema: Schema) -> dict[str, Any]:
    """The schema as keys and values, from which `schema_from` makes the same one."""
    table: dict[str, Any] = {"name": schema.name, "version": schema.version, "decimal": schema.decimal}
    table["missing_values"] = list(schema.missing_values)
    roles = {role: getattr(schema, role) for role in ROLES}
    table |= {role: column for role, column in roles.items() if column is not None}
    table["target"] = target_table(schema.target)
    table["columns"] = {column.name: column_table(column) for column in schema.columns}
    return table


def column_table(column: Column) -> dict[str, Any]:
    table: dict[str, Any] = {"kind": column.kind, "missing": column.missing}
    if column.missing_values:
        table["missing_values"] = list(column.missing_values)
    if column.kind == "category":
        return {**table, "values": list(column.values)}
    ends: list[Any] = [column.low, column.high]
    if column.kind == "date":
        ends = [(EPOCH + timedelta(days=days)).isoformat() for days in ends]
        table["format"] = column.format
    elif column.unit:
        table["unit"] = column.unit
    return {**table, "range": ends, "outside": column.outside}


def target_table(target: Target) -> dict[str, Any]:
    table: dict[str, Any] = {"kind": target.kind, **target_columns(target)}
    if target.kind == "classes":
        return {**table, "values": dict(target.values)}
    if target.kind == "labels":
        return table
    if target.cuts:
        table["cuts"] = list(target.cuts)
    if target.unit:
        table["unit"] = target.unit
    if math.isfinite(target.low) and math.isfinite(target.high):
        table["range"] = [target.low, target.high]
    return {**table, "outside": target.outside}


def target_columns(target: Target) -> Mapping[str, Any]:
    if target.kind == "labels":
        return {"columns": list(target.columns)}
    if target.kind == "survival":
        return {"event": target.columns[0], "time": target.columns[1]}
    return {"column": target.columns[0]}
