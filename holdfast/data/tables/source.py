"""From files of tables to samples and tasks: one file with a column of sites, or a folder with one file for each."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.data.kinds import KINDS, Kind
from holdfast.data.natural import stratified
from holdfast.data.tables.encode import PARTS, Encoded, encode
from holdfast.data.tables.reader import SUFFIXES, read_cells
from holdfast.data.tables.schema import Schema
from holdfast.data.task import Samples, Task

HELD_OUT = 0.2  # of each site's records, for the moderator's test
SITE = "site"  # the fact, where the files' names say it


def table_task(schema: Schema, data: Path | None, seed: int = 0, held_out: float = HELD_OUT) -> Task:
    """The task of a schema and of the files that follow it.

    The records whose split column says "test" are the moderator's test. Without such a column it is a fifth of each
    site's records, stratified by class, nobody in both parts; which ones depends on `seed` alone.
    """
    if data is None:
        raise HoldfastError(f"task: {schema.where} is a schema; say in `data` which file or folder follows it.")
    read = [(path, read_file(schema, path, site)) for path, site in files_in(schema, data)]
    site = schema.site or (SITE if len(read) > 1 else None)
    values = tuple(dict.fromkeys(name for _, one in read for name in one.facts.get("site", ((), ()))[1]))
    samples = join(schema, read, site, values)
    kind = kind_of(schema)
    labels = kind.read(samples.labels, len(schema.target.class_names), str(data))
    samples = replace(samples, labels=labels)
    refuse_hopeless(schema, samples, data)
    train, test = hold_out(schema, samples, site, seed, held_out)
    if not len(train) or not len(test):
        raise HoldfastError(
            f"{data}: of {len(samples)} records none is left for {'test' if len(train) else 'training'}."
        )
    told = {schema.split: PARTS} if schema.split else {}
    return Task(
        schema.name,
        samples.take(train),
        samples.take(test),
        schema.target.class_names,
        kind=kind,
        fact_values={**({site: values} if site else {}), **told},
        site=site,
        person=schema.patient,
        schema=schema,
    )


def files_in(schema: Schema, data: Path) -> list[tuple[Path, str | None]]:
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
    return encoded


def join(schema: Schema, read: list[tuple[Path, Encoded]], site: str | None, values: tuple[str, ...]) -> Samples:
    """The records of all files; the numbers of sites mean the same in all of them."""
    encoded = [one for _, one in read]
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
    return Samples((inputs,), torch.from_numpy(np.concatenate([one.targets for one in encoded])), facts)


def recode(fact: tuple[NDArray[np.int64], tuple[str, ...]], values: tuple[str, ...]) -> Tensor:
    """A file's own numbers as positions among the values of all files."""
    position = {value: number for number, value in enumerate(values)}
    return torch.tensor([position[value] for value in fact[1]])[torch.from_numpy(fact[0])]


def kind_of(schema: Schema) -> Kind:
    """What the target is, as losses and metrics read it."""
    if schema.target.kind not in KINDS:
        raise HoldfastError(f"{schema.where}: targets of kind {schema.target.kind!r} cannot be learnt.")
    return KINDS[schema.target.kind]()


def refuse_hopeless(schema: Schema, samples: Samples, data: Path) -> None:
    """Refuse data from which nothing can be learnt."""
    names = schema.encoded
    said = [position for position, name in enumerate(names) if not name.endswith(" missing")]
    if not samples.inputs[0][:, said].any():
        raise HoldfastError(f"{data}: no column that the schema names has a value in any record.")
    if samples.labels.ndim == 1 and len(torch.unique(samples.labels)) < 2:
        raise HoldfastError(f"{data}: all records are of one class; at least two are needed to learn anything.")


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
