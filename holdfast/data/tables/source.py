"""From files of tables to samples and tasks: one file with a column of sites, or a folder with one file for each."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.core.errors import HoldfastError, plain
from holdfast.core.files import make_folder, write_file
from holdfast.data.contract import Kind
from holdfast.data.kinds import KINDS, Hazards
from holdfast.data.natural import stratified
from holdfast.data.tables.encode import PARTS, Encoded, encode
from holdfast.data.tables.reader import SUFFIXES, column_names, read_cells
from holdfast.data.tables.schema import Schema
from holdfast.data.task import Samples, Task

HELD_OUT = 0.2  # of each site's records, for the moderator's test
SITE = "site"  # the fact, where the files' names say it


def table_task(
    schema: Schema,
    data: Path | None,
    seed: int = 0,
    held_out: float = HELD_OUT,
    test: Path | None = None,
    members: tuple[str, ...] = (),
) -> Task:
    """The task of a schema and of the files that follow it.

    The moderator's test set is the file `test`; without one, the records whose split column says "test"; without such
    a column, a fifth of each site's records, stratified by class, nobody in both parts, by `seed` alone. Without `data`
    the task is bare: the members' own files are elsewhere, and what stands in `train` is made up.
    """
    if data is None:
        return bare_task(schema, members, test)
    read = [read_file(schema, path, site) for path, site in files_in(data)]
    return task_of(schema, read, data, seed, held_out, test)


def task_of(
    schema: Schema,
    read: list[Encoded],
    data: Path,
    seed: int = 0,
    held_out: float = HELD_OUT,
    test: Path | None = None,
) -> Task:
    """The task of records that were read from `data`."""
    site = schema.site or (SITE if len(read) > 1 else None)
    values = sites_of(read)
    if odd := alike(values):
        raise HoldfastError(f"{data}: {odd}")
    samples = join(schema, read, site, values)
    if samples.labels.ndim == 1 and len(torch.unique(samples.labels)) < 2:
        raise HoldfastError(f"{data}: all records are of one class; at least two are needed to learn anything.")
    task = task_with(schema, samples, site, values)
    if test is not None:
        return replace(task, test=test_samples(schema, test, site, values))
    train, tested = hold_out(schema, samples, site, seed, held_out)
    if not len(train) or not len(tested):
        lacking = "test" if len(train) else "training"
        raise HoldfastError(f"{data}: of {len(samples)} records none is left for {lacking}.")
    return replace(task, train=samples.take(train), test=samples.take(tested))


def task_with(schema: Schema, samples: Samples, site: str | None, values: tuple[str, ...]) -> Task:
    """The task with these samples, and none to test on."""
    told = {schema.split: PARTS} if schema.split else {}
    return Task(
        schema.name,
        samples,
        samples.take(torch.arange(0)),
        schema.target.names,
        kind=kind_of(schema),
        fact_values={**({site: values} if site else {}), **told},
        site=site,
        person=schema.patient,
        schema=schema,
    )


def bare_task(schema: Schema, members: tuple[str, ...], test: Path | None) -> Task:
    """The task without anybody's records: of each member one of each class, made up in the middle of all ranges."""
    if not members:
        raise HoldfastError(
            f"task: {schema.where} is a schema; say in `data` which file or folder follows it, or in `names` who the "
            "members are, where each has its file at its own site."
        )
    targets = examples(schema)
    count = len(targets) * len(members)
    site = schema.site or SITE
    facts = {site: np.repeat(np.arange(len(members)), len(targets))}
    if schema.patient:
        facts[schema.patient] = np.arange(count)
    if schema.split:
        facts[schema.split] = np.zeros(count, np.int64)
    inputs = np.zeros((count, len(schema.encoded)), np.float32)
    labels = read_targets(schema, np.concatenate([targets] * len(members)), schema.where)
    weights = torch.ones(count) if schema.weight else None
    samples = Samples(inputs, labels, facts, weights)  # type: ignore[arg-type]
    task = replace(task_with(schema, samples, site, members), bare=True)
    return task if test is None else replace(task, test=test_samples(schema, test, site, members))


def examples(schema: Schema) -> NDArray[Any]:
    """A few possible targets."""
    target = schema.target
    if target.kind == "classes":
        return np.arange(len(target.class_names))
    if target.kind == "labels":
        return np.eye(2, len(target.columns), dtype=np.float32)
    low = target.low if math.isfinite(target.low) else 0.0
    high = target.high if math.isfinite(target.high) else low + 1.0
    ends = np.array([[low], [high]], np.float32)
    return ends if target.kind != "survival" else np.concatenate([ends, np.array([[0], [1]], np.float32)], 1)


def own_samples(schema: Schema, table: Path) -> Samples:
    """The records of a real site, in a file of its own; all of them are the site's, whatever a column says."""
    alone = replace(schema, site=None)
    read = [read_file(alone, table)]
    return join(alone, read, None, ())


def test_samples(schema: Schema, path: Path, site: str | None, values: tuple[str, ...]) -> Samples:
    """The records of the moderator's own test file; of sites that are no members, no fact is kept."""
    read = [read_file(schema if schema.site in column_names(path) else replace(schema, site=None), path)]
    known = site is not None and {*sites_of(read)} <= {*values} and "site" in read[0].facts
    return join(schema, read, site if known else None, values)


def site_tables(schema: Schema, data: Path, folder: Path) -> dict[str, Path]:
    """Each site's own file: those of a folder, or the parts of one file, written to `folder`."""
    found = files_in(data)
    if data.is_dir():
        return {site or path.stem: path for path, site in found}
    cells = read_cells(data, (*schema.needed, schema.site) if schema.site else schema.needed)
    if schema.site is None:
        raise HoldfastError(f"{schema.where} names no column of sites, so {data} cannot be dealt out to them.")
    texts = {name: column.to_pylist() for name, column in cells.items()}
    tables: dict[str, Path] = {}
    for number, site in enumerate(dict.fromkeys(texts[schema.site])):
        mine = [row for row in zip(*texts.values(), strict=True) if row[-1] == site]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([list(texts), *mine])
        tables[site] = folder / f"{number}.csv"
        make_folder(folder)
        write_file(tables[site], text.getvalue().encode())
    return tables


def sites_of(read: list[Encoded]) -> tuple[str, ...]:
    """The sites in the order in which they are met."""
    return tuple(dict.fromkeys(name for one in read for name in one.facts.get("site", ((), ()))[1]))


def read_targets(schema: Schema, targets: NDArray[Any], where: str) -> Tensor:
    return kind_of(schema).read(torch.from_numpy(targets), len(schema.target.names), where)


def files_in(data: Path) -> list[tuple[Path, str | None]]:
    """The files, and whose records they hold where each site has its own."""
    if not data.is_dir():
        return [(data, None)]
    paths = sorted(path for path in data.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    if not paths:
        raise HoldfastError(f"{data} holds no table; a table is a file that ends in {', '.join(SUFFIXES)}.")
    twice = [name for name, count in Counter(path.stem for path in paths).items() if count > 1]
    if twice:
        raise HoldfastError(f"{data}: two files are of the site {twice[0]!r}; keep one.")
    return [(path, path.stem) for path in paths]


def read_file(schema: Schema, path: Path, site: str | None = None, partial: bool = False) -> Encoded:
    """One file's records; what does not fit is an error, or with `partial` a list."""
    optional = (schema.site,) if schema.site else ()
    needed = schema.needed if site is not None or not schema.site else (*schema.needed, schema.site)
    cells = read_cells(path, needed, optional)
    if site is not None and schema.site in cells and cells.pop(schema.site).unique().to_pylist() != [site]:
        raise HoldfastError(f"{path}: it is the file of site {site!r}, and its column {schema.site!r} says otherwise.")
    decimal = "." if path.suffix.lower() == ".parquet" else schema.decimal
    encoded = encode(schema, cells, decimal, site)
    if encoded.problems and not partial:
        first, more = encoded.problems[0], len(encoded.problems) - 1
        also = f" {more} more columns do not fit; `holdfast data check` lists them." if more else ""
        raise HoldfastError(first.sentence(path) + also)
    if not partial and (empty := without_values(schema, encoded)):
        raise HoldfastError(f"{path}: {empty}")
    return encoded


def without_values(schema: Schema, encoded: Encoded) -> str | None:
    """Which site's records say nothing at all, if one's do."""
    if any(column.missing == "refuse" for column in schema.columns):
        return None
    flags = [start + len(column.encoded) - 1 for column, start in schema.places]
    silent = np.asarray(encoded.inputs[:, flags].min(axis=1) > 0)
    numbers, names = encoded.facts.get("site", (np.zeros(len(silent), np.int64), ("",)))
    for number, name in enumerate(names):
        if silent[numbers == number].all():
            whose = f" of {plain(name, 60)!r}" if len(names) > 1 else ""
            return f"no column that the schema names has a value in any record{whose}; leave the file out, or mend it."
    return None


def alike(sites: Sequence[str]) -> str | None:
    """Which two sites have names that a person takes for one, if two do.

    >>> alike(["north", "North "])
    "two sites are called 'north' and 'North '; give both one name, or names that differ."
    >>> alike(["Z\\u00fcrich", "Zu\\u0308rich"]) is None  # an umlaut, and a u with two dots
    False
    """
    seen: dict[str, str] = {}
    for name in sites:
        other = seen.setdefault(" ".join(normalize("NFKC", name).casefold().split()), name)
        if other != name:
            both = f"{plain(other, 60)!r} and {plain(name, 60)!r}"
            return f"two sites are called {both}; give both one name, or names that differ."
    return None


def join(schema: Schema, encoded: list[Encoded], site: str | None, values: tuple[str, ...]) -> Samples:
    """The records of all files; the numbers of sites mean the same in all of them."""
    facts: dict[str, Tensor] = {}
    if site:
        facts[site] = torch.cat([recode(one.facts["site"], values) for one in encoded])
    if schema.patient:
        counts = np.cumsum([0, *(len(one.facts["patient"][1]) for one in encoded)])  # two sites may number alike
        numbers = [one.facts["patient"][0] + first for one, first in zip(encoded, counts, strict=False)]
        facts[schema.patient] = torch.from_numpy(np.concatenate(numbers))
    if schema.split:
        facts[schema.split] = torch.cat([torch.from_numpy(one.facts["split"][0]) for one in encoded])
    inputs = torch.from_numpy(np.concatenate([one.inputs for one in encoded]))
    targets = read_targets(schema, np.concatenate([one.targets for one in encoded]), schema.name)
    given = [one.weights for one in encoded if one.weights is not None]
    return Samples((inputs,), targets, facts, torch.from_numpy(np.concatenate(given)) if given else None)


def recode(fact: tuple[NDArray[np.int64], tuple[str, ...]], values: tuple[str, ...]) -> Tensor:
    """A file's own numbers as positions among the values of all files."""
    position = {value: number for number, value in enumerate(values)}
    return torch.tensor([position[value] for value in fact[1]])[torch.from_numpy(fact[0])]


def kind_of(schema: Schema) -> Kind:
    """What the target is, as losses and metrics read it."""
    target = schema.target
    return Hazards(target.cuts) if target.cuts else KINDS[target.kind]()


def hold_out(schema: Schema, samples: Samples, site: str | None, seed: int, share: float) -> tuple[Tensor, Tensor]:
    """Positions for the clients, and for the moderator's test."""
    if schema.split and bool((samples.facts[schema.split] == PARTS.index("test")).any()):
        test = samples.facts[schema.split] == PARTS.index("test")
        return (~test).nonzero().flatten(), test.nonzero().flatten()
    everybody = torch.zeros(len(samples), dtype=torch.long)
    held = samples.facts[site] if site else everybody
    parts = []
    for value in torch.unique(held).tolist():
        index = (held == value).nonzero().flatten()
        generator = torch.Generator().manual_seed(seed * 100_003 + value)
        parts.append(stratified(samples.take(index), index, (1 - share, 0.0, share), schema.patient, generator))
    return torch.cat([part[0] for part in parts]).sort().values, torch.cat([part[2] for part in parts]).sort().values
