"""Natural federations: who holds what as the data say it, and splits that keep a person's samples together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError, brief, nearest, plain
from holdfast.data.partitions import PARTITIONS as DEALT
from holdfast.data.partitions import split
from holdfast.data.task import Samples, Task

Parts = tuple[Tensor, Tensor, Tensor]  # positions of one client: train, validation, test
PARTS = ("train", "validation", "test")
USUAL = "80/10/10"
MOST = 100_000  # clients


@dataclass(frozen=True)
class Column:
    """Each client holds the samples of one value of a column, such as a hospital; without a name, the task's own."""

    column: str | None = None

    def of(self, task: Task) -> str:
        """The column, which the task must have."""
        name = self.column or task.site
        if name is None:
            raise HoldfastError(f"partition: {task.name} names no column of sites; name one, as in 'column:hospital'.")
        if name not in task.train.facts:
            there = task.train.facts
            hint = nearest(name, there) if there else "it has none that tells its samples apart."
            raise HoldfastError(f"partition: {task.name} has no column {name!r}; {hint}")
        return name

    def sites(self, task: Task) -> dict[str, Tensor]:
        """The clients by name, and the positions of their training samples, in the order of the column's values."""
        name = self.of(task)
        held = task.train.facts[name]
        values = torch.unique(held).tolist()
        if len(values) > MOST:
            raise HoldfastError(f"partition: column {name!r} has {len(values)} values; at most {MOST} clients can be.")
        names = [name_of(task, name, value) for value in values]
        if len({*names}) < len(names):
            raise HoldfastError(f"partition: two values of column {name!r} have one name; each client needs its own.")
        return {label: (held == value).nonzero().flatten() for label, value in zip(names, values, strict=True)}


PARTITIONS: dict[str, type[Any]] = {**DEALT, "column": Column}


def name_of(task: Task, column: str, value: int) -> str:
    """What a person calls a value of a column: its own name, or the column's with the number."""
    names = task.fact_values.get(column, ())
    return plain(names[value], 60) if 0 <= value < len(names) else f"{plain(column, 50)} {value}"


def split_by(how: str, task: Task, index: Tensor, generator: torch.Generator, promise: bool = False) -> Parts:
    """One client's samples in three parts, as the experiment's `split` says.

    Of a task that knows its sites or persons, parts are stratified by class, and nobody is in two of them; of any other
    they are drawn at random. `column:NAME` takes the parts that a column of the data names. Where something is promised
    about single records, they are not stratified: see `stratified`.
    """
    if how.startswith("column:"):
        return given_parts(how.removeprefix("column:"), task, index)
    shares = read_shares(how)
    if task.site is None and task.person is None and how == USUAL:
        return split(index, generator)
    return stratified(task.train.take(index), index, shares, task.person, generator, promise)


def read_shares(how: str) -> tuple[float, float, float]:
    """The three shares of a split.

    >>> read_shares("60/20/20")
    (0.6, 0.2, 0.2)
    """
    parts = how.split("/")
    if len(parts) != 3 or not all(part.strip().isdecimal() and len(part) < 10 for part in parts) or not int(parts[0]):
        raise HoldfastError(
            f"split: expected three shares for training, validation and test, such as {USUAL!r}, or 'column:NAME'; "
            f"got {brief(how)}."
        )
    train, validation, test = (int(part) for part in parts)
    total = train + validation + test
    return train / total, validation / total, test / total


def stratified(
    samples: Samples,
    index: Tensor,
    shares: tuple[float, float, float],
    person: str | None,
    generator: torch.Generator,
    promise: bool = False,
) -> Parts:
    """Persons in random order, class by class, each to the part that lacks most samples of its share by then.

    Under a promise about single records or persons, a person's part follows from its place among the persons, in the
    order in which they first appear, and from their number alone: labels and numbers of records would let one person
    move others from part to part, so that the parts of two sites that differ in one person differed in many.
    """
    whose = samples.facts[person] if person else torch.arange(len(samples))
    _, groups = torch.unique(whose, return_inverse=True)
    count = int(groups.max()) + 1
    sizes = torch.bincount(groups, minlength=count)
    classes = torch.zeros(count, dtype=torch.long)
    if promise:
        first = torch.full((count,), len(groups)).scatter_reduce(0, groups, torch.arange(len(groups)), "amin")
        groups, sizes = first.argsort().argsort()[groups], torch.ones(count, dtype=torch.long)
    elif samples.labels.ndim == 1 and not samples.labels.is_floating_point():
        classes[groups] = samples.labels  # of several samples the last one's
    shuffled = torch.randperm(count, generator=generator)
    order = shuffled[classes[shuffled].argsort(stable=True)].tolist()
    held = [0, 0, 0]
    part_of = torch.zeros(count, dtype=torch.long)
    for group in order:
        total = sum(held) + int(sizes[group])
        part = max(range(3), key=lambda one: shares[one] * total - held[one])
        part_of[group] = part
        held[part] += int(sizes[group])
    for part in (1, 2):  # a part that was asked for is not empty, where there are persons enough
        train = [group for group in order if part_of[group] == 0]
        if shares[part] and not held[part] and len(train) > 1:
            part_of[train[-1]] = part
            held[part] += 1
    found = [index[part_of[groups] == part] for part in range(3)]
    return found[0], found[1], found[2]


def given_parts(column: str, task: Task, index: Tensor) -> Parts:
    """The parts that a column of the data names: train, validation, test."""
    if column not in task.train.facts:
        there = task.train.facts
        raise HoldfastError(f"split: {task.name} has no column {column!r}; {nearest(column, there) if there else ''}")
    names = task.fact_values.get(column, ())
    if not {*names} <= {*PARTS} or "train" not in names:
        raise HoldfastError(
            f"split: the values of column {column!r} must be among {', '.join(PARTS)}, got {brief(', '.join(names))}."
        )
    parts = task.train.facts[column][index]
    found = [index[parts == names.index(part)] if part in names else index[:0] for part in PARTS]
    if not len(found[0]):
        raise HoldfastError(f"split: column {column!r} leaves a client without samples to train on.")
    if task.person is not None:
        apart = torch.cat([torch.unique(task.train.facts[task.person][part]) for part in found])
        if len(torch.unique(apart)) < len(apart):
            raise HoldfastError(
                f"split: column {column!r} puts some person's samples into two parts; give each person one part."
            )
    return found[0], found[1], found[2]
