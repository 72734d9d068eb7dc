"""Images, series and texts as tasks: what all members agree on, and how their records become samples.

`task = "images:xrays.toml"` names a description, a TOML file with one table: `images`, `series` or `text`.

    [images]
    classes = ["normal", "pneumonia"]   # left out: the labels found, in order of the alphabet
    size = 128                          # pixels of each side; left out: as the pictures are
    channels = 1                        # 1 grey, 3 colour; left out: as the pictures are

`site`, `person` and `split` name the columns of a list that say where a record comes from, whose it is, and whether it
is of the moderator's test; without them, the columns site, patient and split are used if they are there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.core.config import convert
from holdfast.core.errors import HoldfastError, brief, nearest
from holdfast.core.tables import read_table
from holdfast.data.natural import stratified
from holdfast.data.task import Samples, Task

WHAT = ("images", "series", "text")
HELD_OUT = 0.2  # of each site's records, for the moderator's test, where no column says which
TRAIN, TEST = "train", "test"
LONGEST = 4096  # bytes of a text that are read


@dataclass(frozen=True)
class Description:
    """What all members agree on about their images, series or texts."""

    what: str
    name: str
    classes: tuple[str, ...] = ()
    size: int = 0
    channels: int = 0
    column: str = "text"  # of a list: the texts'
    label: str = "label"
    site: str = "site"
    person: str = "patient"
    split: str = "split"

    def __post_init__(self) -> None:
        if self.what == "images" and self.channels not in (0, 1, 3):
            raise HoldfastError(f"{self.name}: channels must be 1 or 3, got {self.channels}.")
        if self.what == "images" and self.size and not 8 <= self.size <= 4096:
            raise HoldfastError(f"{self.name}: size must be 8 to 4096 pixels, got {self.size}.")
        if self.what == "series" and not (0 <= self.size <= 1 << 20 and 0 <= self.channels <= 1 << 12):
            raise HoldfastError(f"{self.name}: size is the number of steps, channels that of channels.")
        if len({*self.classes}) < len(self.classes) or len(self.classes) == 1:
            raise HoldfastError(f"{self.name}: classes must be two or more different names.")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample, where the description alone must say it."""
        if self.what == "text":
            return (LONGEST,)
        if not self.size or not self.channels:
            raise HoldfastError(f"{self.name}: where members' records are elsewhere, it must say size and channels.")
        return (self.channels, self.size, self.size) if self.what == "images" else (self.channels, self.size)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that it says."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


@dataclass(frozen=True)
class Records:
    """Records as they are found, before anything large is read."""

    labels: Sequence[str]
    facts: Mapping[str, Sequence[str]]  # columns by name, one value for each record
    read: Callable[[Sequence[int]], Tensor]  # the inputs of these records, in this order
    where: str


def read_description(path: Path, what: str) -> Description:
    """The description of images, series or texts in a TOML file."""
    table = read_table(path)
    if [*table] != [what] or not isinstance(table[what], dict):
        raise HoldfastError(f"{path}: a description has one table, [{what}], and nothing beside it.")
    hints = {"classes": tuple[str, ...], "size": int, "channels": int}
    hints |= {f.name: str for f in fields(Description) if f.name not in (*hints, "what", "name")}
    values: dict[str, Any] = {}
    for key, value in table[what].items():
        if key not in hints:
            raise HoldfastError(f"{path}: [{what}] has no key {brief(key)}; {nearest(key, hints)}")
        values[key] = convert(value, hints[key], f"{path}: {what}.{key}")
    return Description(what, path.stem, **values)


def task_of_records(about: Description, records: Records) -> Task:
    """The task: labels as numbers, the moderator's test taken out, inputs read once, training first."""
    classes = about.classes or tuple(sorted({*records.labels}))
    labels = numbered(records.labels, classes, f"{records.where}: label")
    if len(torch.unique(labels)) < 2:
        raise HoldfastError(
            f"{records.where}: all records are of one class; at least two are needed to learn anything."
        )
    values = {name: tuple(sorted({*column})) for name, column in records.facts.items() if name != about.split}
    facts = {name: numbered(records.facts[name], known, records.where) for name, known in values.items()}
    site = about.site if about.site in facts else None
    person = about.person if about.person in facts else None
    train, test = parts_of(about, records, labels, facts, site, person)
    inputs = records.read([*train.tolist(), *test.tolist()])
    told = {name: known for name, known in values.items() if name != person}  # nobody is called by name
    return Task(
        about.name,
        Samples((inputs[: len(train)],), labels[train], {name: fact[train] for name, fact in facts.items()}),
        Samples((inputs[len(train) :],), labels[test], {name: fact[test] for name, fact in facts.items()}),
        classes,
        fact_values=told,
        site=site,
        person=person,
    )


def own_samples(about: Description, records: Records) -> Samples:
    """The records of a real site: all of them are the site's own, whatever a column says."""
    labels = numbered(records.labels, about.classes, f"{records.where}: label")
    inputs = records.read(range(len(labels)))
    if tuple(inputs.shape[1:]) != about.shape:
        raise HoldfastError(f"{records.where}: samples have shape {tuple(inputs.shape[1:])}, agreed is {about.shape}.")
    whose = records.facts.get(about.person)
    facts = {} if whose is None else {about.person: numbered(whose, sorted({*whose}), records.where)}
    return Samples((inputs,), labels, facts)


def bare_task(about: Description, members: tuple[str, ...], test: Records | None) -> Task:
    """The task without anybody's records: of each member one of each class, all zero."""
    if not members or not about.classes:
        raise HoldfastError(
            f"task: {about.name} is a description; say in `data` which folder or file follows it; or, where members "
            "have their records at their own sites, in `names` who they are, and in the description the classes."
        )
    count = len(about.classes)
    kind = torch.uint8 if about.what == "text" else torch.float32
    inputs = torch.zeros(count * len(members), *about.shape, dtype=kind)
    site = torch.arange(len(members)).repeat_interleave(count)
    train = Samples((inputs,), torch.arange(count).repeat(len(members)), {about.site: site})
    tested = train.take(torch.arange(0)) if test is None else own_samples(about, test)
    told = {about.site: members}
    return Task(about.name, train, tested, about.classes, fact_values=told, site=about.site, bare=True)


def numbered(values: Sequence[str], known: Sequence[str], where: str) -> Tensor:
    """Texts as their positions among the known ones."""
    position = {value: number for number, value in enumerate(known)}
    for value in values:
        if value not in position:
            raise HoldfastError(f"{where} {brief(value)} is not known; {nearest(value, known)}")
    return torch.tensor([position[value] for value in values], dtype=torch.long)


def parts_of(
    about: Description,
    records: Records,
    labels: Tensor,
    facts: Mapping[str, Tensor],
    site: str | None,
    person: str | None,
) -> tuple[Tensor, Tensor]:
    """Positions for the clients and for the moderator's test: as a column says, else a fifth of each site's records."""
    told = records.facts.get(about.split)
    if told is not None:
        odd = {*told} - {TRAIN, "validation", TEST}
        if odd:
            raise HoldfastError(f"{records.where}: column {about.split!r} must say train, validation or test.")
        test = torch.tensor([value == TEST for value in told])
        if not bool(test.any()) or bool(test.all()):
            raise HoldfastError(f"{records.where}: column {about.split!r} leaves nothing for training, or for test.")
        return (~test).nonzero().flatten(), test.nonzero().flatten()
    places = facts[site] if site else torch.zeros(len(labels), dtype=torch.long)
    train, test_parts = [], []
    for value in torch.unique(places).tolist():
        index = (places == value).nonzero().flatten()
        own = Samples((labels[index],), labels[index], {name: fact[index] for name, fact in facts.items()})
        generator = torch.Generator().manual_seed(value)
        parts = stratified(own, index, (1 - HELD_OUT, 0.0, HELD_OUT), person, generator)
        train.append(parts[0])
        test_parts.append(parts[2])
    found = torch.cat(train).sort().values, torch.cat(test_parts).sort().values
    if not len(found[1]):
        raise HoldfastError(
            f"{records.where}: too few records to keep some for the test; add a column {about.split!r}."
        )
    return found


def quick(what: str, path: Path) -> Description:
    """The description of what nobody has described: all is taken from the data."""
    return replace(Description(what, "unnamed"), name=path.stem or what)
