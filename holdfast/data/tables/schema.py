"""What the members agree on about their tables, in one TOML file that holds nothing of anybody's data.

name = "heart"
version = "1"
missing_values = ["", "?", "NA"]     # cells that say: not known
decimal = "."                        # or ","
site = "hospital"                    # columns that no model reads: whose record it is,
patient = "id"                       # who it is about (nobody is in two parts),
split = "part"                       # and, if it is given, in which part it belongs: train, validation or test
weight = "w"                         # how much a record counts beside the others of its site, at least 0

[target]
kind = "classes"                     # classes, labels, regression, survival or count
column = "num"                       # labels: columns = [...]; survival: event = "...", time = "...", and for
                                     # discrete time cuts = [1, 2, 5]
values = {0 = "healthy", 1 = "ill"}  # a cell's text and the class it means

[columns.age]
kind = "number"
range = [0, 120]                     # public: what is plausible, not what anybody's data happen to span
unit = "years"
missing = "indicator"                # or "refuse": a cell without a value is an error
outside = "refuse"                   # or "clip": a value outside of the range is taken as its edge

[columns.sex]
kind = "category"
values = ["female", "male"]

[columns.admitted]
kind = "date"                        # read as days, by the range
range = ["2000-01-01", "2030-01-01"]
format = "%Y-%m-%d"
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal

from holdfast.core.errors import HoldfastError, brief, nearest, plain
from holdfast.core.tables import read_table

COLUMN_KINDS = {
    "number": ("kind", "range", "unit", "missing", "missing_values", "outside"),
    "category": ("kind", "values", "missing", "missing_values"),
    "date": ("kind", "range", "format", "missing", "missing_values", "outside"),
}
TARGET_KINDS = {
    "classes": ("kind", "column", "values"),
    "labels": ("kind", "columns"),
    "regression": ("kind", "column", "range", "unit", "outside"),
    "count": ("kind", "column", "range", "unit", "outside"),
    "survival": ("kind", "event", "time", "cuts", "range", "unit", "outside"),
}
ROLES = ("site", "patient", "split", "weight")  # of columns that no model reads
KEYS = ("name", "version", "missing_values", "decimal", *ROLES, "target", "columns")
MISSING = ("", "?", "NA", "NaN", "nan", "null")
EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class Column:
    """One column that models read, as numbers that the schema alone decides: a group of length at most 1."""

    name: str
    kind: str
    low: float = 0.0  # of numbers and, in days since 1970, of dates
    high: float = 0.0
    unit: str = ""
    values: tuple[str, ...] = ()  # of a category
    format: str = "%Y-%m-%d"  # of dates
    missing: Literal["refuse", "indicator"] = "refuse"
    missing_values: tuple[str, ...] = ()  # beside those of the whole schema
    outside: Literal["refuse", "clip"] = "refuse"

    @property
    def encoded(self) -> tuple[str, ...]:
        """Names of the numbers that this column becomes."""
        names = tuple(f"{self.name}={value}" for value in self.values) or (self.name,)
        return (*names, f"{self.name} missing") if self.missing == "indicator" else names


@dataclass(frozen=True)
class Target:
    """What is to be predicted, and the columns that say it."""

    kind: str
    columns: tuple[str, ...]  # survival: the event, the time
    values: tuple[tuple[str, str], ...] = ()  # classes: a cell's text and the class it means
    low: float = -math.inf
    high: float = math.inf
    unit: str = ""
    outside: Literal["refuse", "clip"] = "refuse"

    cuts: tuple[float, ...] = ()  # of survival in discrete time

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for _, name in self.values))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the classes, or of several labels."""
        return self.columns if self.kind == "labels" else self.class_names


@dataclass(frozen=True)
class Schema:
    """A consortium's agreement on a table; everything in it is public."""

    name: str
    version: str
    columns: tuple[Column, ...]
    target: Target
    missing_values: tuple[str, ...] = MISSING
    decimal: str = "."
    site: str | None = None
    patient: str | None = None
    split: str | None = None
    weight: str | None = None
    where: str = field(default="schema", compare=False)  # the file it came from

    @property
    def encoded(self) -> tuple[str, ...]:
        """Names of all numbers that a record becomes, in order."""
        return tuple(name for column in self.columns for name in column.encoded)

    @property
    def places(self) -> tuple[tuple[Column, int], ...]:
        """Each column, and where its numbers begin in an encoded record; an indicator is the last of them."""
        widths = [len(column.encoded) for column in self.columns]
        return tuple(zip(self.columns, itertools.accumulate(widths, initial=0), strict=False))

    @property
    def longest(self) -> float:
        """No encoded record is longer: each column is a group of length at most 1."""
        return math.sqrt(len(self.columns))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that the schema says."""
        said = {key: value for key, value in asdict(self).items() if key != "where"}
        if said["weight"] is None:  # a schema without one keeps the fingerprint that it had before there were any
            said.pop("weight")
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that a file must have; whose record it is may also be said by the file's name."""
        facts = (name for name in (self.patient, self.split, self.weight) if name)
        return (*(column.name for column in self.columns), *self.target.columns, *facts)


def read_schema(path: Path) -> Schema:
    """The schema of a TOML file; what is wrong with it is one sentence."""
    return schema_from(read_table(path), str(path))


def schema_from(table: Mapping[str, Any], where: str) -> Schema:
    """A schema from keys and values, each checked."""
    known(table, KEYS, where)
    for key in ("name", "version", "target", "columns"):
        if key not in table:
            raise HoldfastError(f"{where}: the key {key!r} is missing.")
    texts = {key: text(table, key, where) for key in (*ROLES, "name", "version") if key in table}
    columns = table["columns"]
    if not isinstance(columns, Mapping) or not columns:
        raise HoldfastError(f"{where}: columns must be tables such as [columns.age], at least one.")
    decimal = table.get("decimal", ".")
    if decimal not in (".", ","):
        raise HoldfastError(f"{where}: decimal must be '.' or ',', got {brief(decimal)}.")
    schema = Schema(
        columns=tuple(column_from(name, told, f"{where}, [columns.{name}]") for name, told in columns.items()),
        target=target_from(table["target"], f"{where}, [target]"),
        missing_values=word_list(table["missing_values"], f"{where}, missing_values")
        if "missing_values" in table
        else MISSING,
        decimal=decimal,
        where=where,
        **texts,
    )
    refuse_twice(schema)
    return schema


def refuse_twice(schema: Schema) -> None:
    """Refuse a column with two roles: a model that reads the target or the patient's number learns nothing else."""
    roles = {role: getattr(schema, role) for role in ROLES}
    names = [*schema.needed, *([schema.site] if schema.site else [])]
    for name in names:
        if names.count(name) > 1:
            told = [role for role, column in roles.items() if column == name] or ["target"]
            raise HoldfastError(
                f"{schema.where}: column {name!r} is the {told[0]} and something else as well; give it one role."
            )


def column_from(name: str, table: object, where: str) -> Column:
    if not isinstance(table, Mapping):
        raise HoldfastError(f"{where}: must be a table, as in [columns.age].")
    kind = one_of(table, "kind", COLUMN_KINDS, where)
    known(table, COLUMN_KINDS[kind], where)
    options: dict[str, Any] = {"name": plain(name, 200), "kind": kind}
    if "missing" in table:
        options["missing"] = one_of(table, "missing", ("refuse", "indicator"), where)
    if "outside" in table:
        options["outside"] = one_of(table, "outside", ("refuse", "clip"), where)
    if "missing_values" in table:
        options["missing_values"] = word_list(table["missing_values"], f"{where}, missing_values")
    if kind == "category":
        options["values"] = word_list(table.get("values"), f"{where}, values")
        if len(options["values"]) < 2:
            raise HoldfastError(f"{where}: values must name at least two categories.")
        return Column(**options)
    if "unit" in table:
        options["unit"] = text(table, "unit", where)
    if "format" in table:
        options["format"] = text(table, "format", where)
    read = (lambda value: as_days(value, "%Y-%m-%d", where)) if kind == "date" else (lambda value: number(value, where))
    options["low"], options["high"] = two(table, where, read)
    return Column(**options)


def target_from(table: object, where: str) -> Target:
    if not isinstance(table, Mapping):
        raise HoldfastError(f"{where}: must be a table with a kind and its columns.")
    kind = one_of(table, "kind", TARGET_KINDS, where)
    known(table, TARGET_KINDS[kind], where)
    options: dict[str, Any] = {"kind": kind}
    if kind == "labels":
        options["columns"] = word_list(table.get("columns"), f"{where}, columns")
    elif kind == "survival":
        options["columns"] = (text(table, "event", where), text(table, "time", where))
    else:
        options["columns"] = (text(table, "column", where),)
    if "cuts" in table:
        options["cuts"] = rising(table["cuts"], where)
    if kind == "classes":
        options["values"] = class_values(table.get("values"), where)
    if "unit" in table:
        options["unit"] = text(table, "unit", where)
    if "outside" in table:
        options["outside"] = one_of(table, "outside", ("refuse", "clip"), where)
    if "range" in table:
        options["low"], options["high"] = two(table, where, lambda value: number(value, where))
        if kind in ("survival", "count") and options["low"] < 0:
            raise HoldfastError(f"{where}: the range of a {kind} target begins at 0 or above.")
    elif kind in ("survival", "count"):
        options["low"] = 0.0
    return Target(**options)


def rising(cuts: object, where: str) -> tuple[float, ...]:
    """Where the intervals of discrete time end."""
    found = tuple(number(cut, where) for cut in cuts) if isinstance(cuts, list) else ()
    if not found or any(a >= b for a, b in zip((0.0, *found), found, strict=False)):
        raise HoldfastError(f"{where}: cuts must be rising numbers above 0, got {brief(cuts)}.")
    return found


def class_values(told: object, where: str) -> tuple[tuple[str, str], ...]:
    """Cells and classes, from a list of texts or a table of text to class."""
    if isinstance(told, Mapping):
        pairs = tuple((canonical(str(cell)), plain(str(name), 60)) for cell, name in told.items())
    else:
        pairs = tuple((value, value) for value in word_list(told, f"{where}, values"))
    if len({name for _, name in pairs}) < 2:
        raise HoldfastError(f"{where}: values must name at least two classes; with one there is nothing to learn.")
    return pairs


def known(table: Mapping[str, Any], keys: Iterable[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise HoldfastError(f"{where}: there is no key {key!r}; {nearest(key, keys)}")


def one_of(table: Mapping[str, Any], key: str, words: Iterable[str], where: str) -> Any:
    value = table.get(key)
    if value not in (words := list(words)):
        raise HoldfastError(f"{where}: {key} must be one of {', '.join(words)}, got {brief(value)}.")
    return value


def text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value or plain(value, 200) != value:
        raise HoldfastError(f"{where}: {key} must be a text of at most 200 characters, got {brief(value)}.")
    return value


def word_list(value: object, where: str) -> tuple[str, ...]:
    """A list of different texts; whole numbers are read as their text."""
    if not isinstance(value, list) or not all(type(item) in (str, int) for item in value):
        raise HoldfastError(f"{where}: must be a list of texts, got {brief(value)}.")
    words = tuple(canonical(str(item)) for item in value)
    if len(set(words)) < len(words):
        raise HoldfastError(f"{where}: names something twice.")
    return words


def two(table: Mapping[str, Any], where: str, read: Any) -> tuple[float, float]:
    """The two ends of a range."""
    ends = table.get("range")
    if not isinstance(ends, list) or len(ends) != 2:
        raise HoldfastError(f"{where}: range must be two values, the smallest and the largest plausible one.")
    low, high = read(ends[0]), read(ends[1])
    if not low < high:
        raise HoldfastError(f"{where}: range must go from a smaller value to a larger one, got {brief(ends)}.")
    return low, high


def number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        raise HoldfastError(f"{where}: expected a number, got {brief(value)}.")
    return float(value)


def as_days(value: object, form: str, where: str) -> float:
    """A date as days since 1970.

    >>> as_days("1970-01-11", "%Y-%m-%d", "here")
    10.0
    """
    try:
        day = value if type(value) is date else datetime.strptime(str(value), form).date()
    except ValueError:
        raise HoldfastError(f"{where}: {brief(value)} is no date of the form {form}.") from None
    return float((day - EPOCH).days)


def canonical(cell: str) -> str:
    """A cell's text without blanks around it, and whole numbers without zeros behind the point.

    >>> canonical(" 1.0"), canonical("1.50"), canonical("male")
    ('1', '1.50', 'male')
    """
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", cell.strip())
