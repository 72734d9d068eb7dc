"""An experiment is a TOML file read into a frozen dataclass; what is wrong with it is one sentence, before round 1."""

from __future__ import annotations

import hashlib
import json
import math
import numbers
import os
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from holdfast.core.config import Choice, convert
from holdfast.core.errors import HoldfastError, brief, nearest
from holdfast.core.modules import search
from holdfast.core.names import called
from holdfast.core.tables import read_table

FIRST_ROUND = {1: 0, 2: 1, 3: 1}  # schema of a run's folder -> the number of the first round in its files
SCHEMA = max(FIRST_ROUND)


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run. The same experiment gives the same bits, however many workers compute it."""

    task: Any = "fashion-mini"  # a known name, file.npz, a table's schema.toml, module:name; from Python also a Task
    data: str | None = None  # folder with the task's files; of a schema.toml: the table, or a folder of tables
    test: str | None = None  # of a schema.toml: a table of the moderator's own to test on; none: a part of `data`
    download: bool = False  # fetch the files of a known task that `data` does not have; else the network is left alone
    modules: str | None = None  # folder of your own modules; none: that of the experiment's file
    samples: int | None = None  # use only so many training samples, the same number of each class
    model: Choice = Choice("auto")  # what is trained; auto: the task's own, or by shape; a wide `features` for digests
    encoder: Choice = Choice("auto")  # public features, for a model that reads them; auto: by kind and size of samples
    clients: int = 0  # how many take part; 0: as many as the column of a partition has values, else 4
    names: tuple[str, ...] | None = None  # of the clients, for people to read; none: the column's values, or numbers
    partition: Choice = Choice("auto")  # how samples are dealt out; auto: the task's own sites, or dirichlet:0.1
    split: str = "80/10/10"  # percent of each client's samples for training, validation and test; or column:NAME
    scenario: Choice = Choice("none")  # who is away, and when
    attack: Choice = Choice("none")  # what hostile clients do
    attackers: int = 0  # how many clients are hostile; which ones depends on the seed
    algorithm: Choice = Choice("fedavg")  # how clients learn and how their updates are averaged
    absence: Choice = Choice("none")  # what stands in for a client that is away
    trust: Choice = Choice("auto")  # how much weight each update has; auto: as in the algorithm's paper
    protect: Choice = Choice("none")  # what hides a record in the updates: none, or dp-sgd
    rounds: int = 24  # how often the clients train and their updates are merged
    start: str | None = None  # a safetensors file with first weights, or a part of them; none: by chance
    epochs: int = 1  # passes of a client over its training samples in a round
    local_steps: int | None = None  # of a client in a round, in place of epochs; none: as many as its samples make
    batch_size: int = 32  # samples in each step of a client
    lr: float = 0.02  # learning rate of the clients' steps
    momentum: float = 0.9  # of SGD, at the clients; from 0 to below 1
    weight_decay: float = 0.0  # of the clients' steps: times the weight, it joins the gradient (AdamW: beside it)
    scaling: Literal["schema", "federated"] = "schema"  # of a table: by ranges alone, or also by the members' mean
    loss: Choice = Choice("auto")  # what training minimises; auto: the task's own, or the usual one of its kind
    metrics: tuple[str, ...] | None = None  # the first one leads; none: the task's own, or the usual ones of its kind
    schedule: Choice = Choice("constant")  # how lr goes on over the rounds
    optimizer: Choice = Choice("sgd")  # what steps clients take; momentum is SGD's
    augment: str = "none"  # of the images that clients train on: flip, crop:4, both, or module:function
    accumulate: int = 1  # parts in which a batch's gradient is computed, one after another: less memory, the same step
    groups: tuple[str, ...] | None = None  # "pattern:factor" of lr by weights' names, 0 freezes; ":factor" of decay
    clip_norm: float | None = None  # a batch's gradient with a larger norm is shortened to it, at the client
    server_optimizer: Choice = Choice("none")  # what the moderator makes of the aggregated model
    selection: Choice = Choice("all")  # who is asked to train in a round
    compress: Choice = Choice("none")  # what of an update is sent, the rest kept for the next round
    workload: Choice = Choice("usual")  # how many steps a client takes: as its samples make, or as its speed allows
    late: Choice = Choice("none")  # what a slow client's update of an earlier round is worth
    max_norm: float | None = None  # an update with a larger norm is refused
    agreed_samples: tuple[int, ...] | None = None  # of each client: what counts of its claim; none: twice the median
    seed: int = 0  # of everything that is drawn, but for noise that protects
    evaluate_every: int = 1  # rounds between two tests of the model; the last round is always tested
    stop: Choice = Choice("none")  # early, by a metric at the clients: "auroc:5" after five tests without a better one
    checkpoint_every: int = 1  # rounds between two checkpoints, from which a killed run goes on
    workers: int | None = None  # none: as many as cores; 0: everything in this process
    device: str = "auto"  # where networks compute: auto (an accelerator if there is one), cpu, cuda, cuda:1, mps
    precision: Literal["float32", "bfloat16"] = "float32"  # of forward passes and losses in training
    layout: Literal["auto", "channels-last", "plain"] = (
        "auto"  # of convolutions; auto: what a user's own network takes well
    )
    patience: float | None = None  # seconds for one client's job in a worker process; none: for ever
    given: Any = field(default=None, repr=False, compare=False)  # the Task, where one was given

    def __repr__(self) -> str:
        """What differs from the usual.

        >>> Experiment(rounds=3, absence="feddig:spd=8")
        Experiment(absence={'name': 'feddig', 'spd': '8'}, clients=4, partition='dirichlet:0.1', rounds=3)
        """
        names = sorted(f.name for f in fields(self) if f.repr and getattr(self, f.name) != f.default)
        return f"Experiment({', '.join(f'{name}={plain(getattr(self, name))!r}' for name in names)})"

    def __post_init__(self) -> None:
        for key, hint in keys().items():  # from Python, "fedprox:0.1", a Path or a number of numpy's will do
            if key != "task":
                object.__setattr__(self, key, read_value(getattr(self, key), hint, key))
        if not isinstance(self.task, str):
            self._take(self.task)
        if self.partition.name == "auto":
            elsewhere = is_description(self.task) and self.names is not None and self.data is None
            natural = self.task in NATURAL or is_schema(self.task) or getattr(self.given, "site", None) is not None
            natural = natural or elsewhere
            partition = Choice("column") if natural else Choice("dirichlet", argument="0.1")
            object.__setattr__(self, "partition", partition)
        if self.names is not None:
            object.__setattr__(self, "names", tuple(self.names))
            object.__setattr__(self, "clients", self.clients or len(self.names))
            if len(self.names) != self.clients or len({str(n).strip() for n in self.names} - {""}) < self.clients:
                raise HoldfastError(f"names must be {self.clients} different texts, one for each client.")
            if crooked := [name for name in self.names if not str(name).isprintable()]:
                raise HoldfastError(f"names: {brief(crooked[0])} must be one line of printable characters.")
        if self.clients == 0 and self.partition.name != "column":
            object.__setattr__(self, "clients", 4)
        for key, least in AT_LEAST.items():
            value = getattr(self, key)
            most = AT_MOST.get(key, 2**63)
            if value is not None and not least <= value <= most:
                also = f" and at most {most}" if value > most else ""
                raise HoldfastError(f"{key} must be at least {least}{also}, got {brief(value)}.")
        if not 0 < self.lr < math.inf or not 0 <= self.momentum < 1:
            raise HoldfastError(f"lr must be positive and momentum in [0, 1), got {self.lr} and {self.momentum}.")
        if self.attackers > self.clients > 0:
            raise HoldfastError(f"attackers: {self.attackers} of {self.clients} clients cannot be hostile.")
        if (self.attack.name == "none") != (self.attackers == 0):
            raise HoldfastError("attack and attackers go together: name an attack and how many clients are hostile.")
        if self.patience is not None and not 0 < self.patience < math.inf:
            raise HoldfastError(f"patience must be positive seconds, got {self.patience}; leave it out to wait on.")
        if self.agreed_samples is not None and (
            len(self.agreed_samples) != (self.clients or len(self.agreed_samples)) or min(self.agreed_samples) < 1
        ):
            raise HoldfastError(f"agreed_samples must be {self.clients} positive numbers, one for each client.")
        for key in ("max_norm", "clip_norm"):
            value = getattr(self, key)
            if value is not None and not 0 < value < math.inf:
                raise HoldfastError(f"{key} must be positive, got {value}; leave it out for no bound.")

    def _take(self, task: Any) -> None:
        """Keep a task that was given as an object; its text says which data it has."""
        if not hasattr(task, "fingerprint"):
            raise HoldfastError(f"task: expected a name or a holdfast.Task, got {type(task).__name__}.")
        object.__setattr__(self, "given", task)
        object.__setattr__(self, "task", f"{GIVEN}{task.name}@{task.fingerprint[:16]}")

    def name_of(self, client: int) -> str:
        """What people call a client."""
        return called(self.names, client)

    @property
    def method(self) -> str:
        """The three choices as one word, the usual ones left out: fedprox, fedavg+feddig, feddyn+krum."""
        parts = [str(self.algorithm)]
        parts += [str(self.absence)] if self.absence.name != "none" else []
        parts += [str(self.trust)] if self.trust.name != "auto" else []
        parts += [str(self.protect)] if self.protect.name != "none" else []
        return "+".join(parts)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides the result."""
        usual = {f.name: plain(f.default) for f in fields(self) if f.name in LATER}
        decisive = {
            key: value
            for key, value in self.as_json().items()
            if key not in INDIFFERENT and not (key in usual and value == usual[key])
        }
        if self.partition.name == "column":  # how many there are follows from the data
            del decisive["clients"]
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        return {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name != "given"}


def is_schema(task: str) -> bool:
    """Whether a task is the schema of tables.

    >>> is_schema("heart.toml"), is_schema("images:xrays.toml")
    (True, False)
    """
    return task.endswith(".toml") and not task.startswith(SOURCES)


def is_description(task: str) -> bool:
    """Whether a task is the description of images, series or texts."""
    return task.endswith(".toml") and task.startswith(SOURCES)


def plain(value: object) -> object:
    """A key's value as JSON says it."""
    return value.as_json() if isinstance(value, Choice) else value


# How and where a result is computed. Devices round differently, but a site chooses its own, and a run may move.
INDIFFERENT = ("workers", "checkpoint_every", "patience", "device", "names", "modules", "download")
# Newer keys count only where they are used: fingerprints of older files stay the same.
LATER = (
    *("agreed_samples", "layout", "optimizer", "clip_norm", "server_optimizer", "selection", "precision"),
    *("split", "loss", "metrics", "stop", "test", "augment", "start", "local_steps", "accumulate", "groups"),
    *("late", "scaling", "compress", "workload"),
)
SOURCES = ("images:", "series:", "text:")  # and the path of a folder, a file or a description
NATURAL = ("heart", "tcga-brca", "har")  # tasks that come in sites
GIVEN = "given:"  # before the name of a task that was an object
CHOICES = (
    *("model", "encoder", "partition", "scenario", "attack", "algorithm", "absence", "trust", "protect"),
    *("schedule", "optimizer", "server_optimizer", "selection", "loss", "stop", "late", "compress", "workload"),
)
AT_LEAST = {
    "clients": 0,
    "samples": 1,
    "rounds": 1,
    "epochs": 1,
    "local_steps": 1,
    "accumulate": 1,
    "batch_size": 1,
    "seed": 0,
    "attackers": 0,
    "weight_decay": 0,
    "evaluate_every": 1,
    "checkpoint_every": 1,
    "workers": 0,
}
AT_MOST = {"clients": 100_000, "rounds": 10**9, "epochs": 10**9, "local_steps": 10**9, "workers": 10_000}


@cache
def keys() -> dict[str, Any]:
    """The keys of an experiment and their types."""
    return {key: hint for key, hint in typing.get_type_hints(Experiment).items() if key != "given"}


def read_value(value: object, hint: Any, key: str) -> Any:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif isinstance(value, numbers.Number) and hasattr(value, "item"):
        value = value.item()
    return Choice.parse(value, key) if hint is Choice else convert(value, hint, key)


def from_table(table: Mapping[str, object], where: str = "experiment", folder: Path | None = None) -> Experiment:
    """An experiment from keys and values, each checked; its own modules, if it names any, lie in this folder."""
    for key in table:
        if key not in keys():
            raise HoldfastError(f"{where}: there is no key {key!r}; {nearest(key, keys())}")
    if "task" in table:
        convert(table["task"], str, "task")  # only from Python it may be the Task itself
    experiment = Experiment(**typing.cast(dict[str, Any], table))
    if folder is not None and experiment.modules is None and own_modules(experiment):
        experiment = replace(experiment, modules=str(folder.resolve()))
    return experiment


def of_today(table: Mapping[str, Any], where: str) -> tuple[dict[str, Any], int]:
    """The table of a run's experiment.json as it would be written today, and the schema of the run's files."""
    today = dict(table)
    schema = today.pop("schema", None)
    if type(schema) is not int or schema not in FIRST_ROUND:
        raise HoldfastError(f"{where} was written by another version of Holdfast, whose runs this one cannot read.")
    if schema < 3 and _trains_from_digests(today):  # the network on features had 128 hidden units then
        today["model"] = "features"
    scenario = today.get("scenario")
    if isinstance(scenario, dict) and isinstance(away := scenario.get("away"), list):
        later = 1 - FIRST_ROUND[schema]
        today["scenario"] = {**scenario, "away": [_moved(interval, later) for interval in away]}
    return today, schema


def _trains_from_digests(table: Mapping[str, Any]) -> bool:
    """Whether this trains, in rounds and with digests, a network that is not named."""
    named = {key: Choice.parse(table.get(key, "auto"), key).name for key in ("model", "absence", "algorithm")}
    return named["model"] == "auto" and named["absence"] == "feddig" and named["algorithm"] != "oneshot"


def _moved(interval: Any, later: int) -> Any:
    """An interval of the scenario `intervals`, (client, first round away, first round back), so many rounds later."""
    whole = isinstance(interval, list) and len(interval) == 3 and all(type(number) is int for number in interval)
    return [interval[0], interval[1] + later, interval[2] + later] if whole else interval


def own_modules(experiment: Experiment) -> list[str]:
    """The modules that the experiment names by import path.

    >>> own_modules(Experiment(task="study:task", model="nets.small:Net", partition="dirichlet:0.1"))
    ['study', 'nets.small']
    """
    paths = [getattr(experiment, key).head for key in CHOICES]
    paths += [experiment.augment, str(experiment.encoder.options.get("network", ""))]
    if not experiment.task.endswith((".npz", ".toml")) and not experiment.task.startswith(SOURCES):
        paths.insert(0, experiment.task)
    return [module for module, _, name in (path.partition(":") for path in paths) if name.isidentifier()]


def load(path: Path | str, changes: Iterable[str] = ()) -> Experiment:
    """The experiment of a TOML file (or of a run's experiment.json), with `key=value` changes."""
    path = Path(path)
    table = read_table(path)
    if path.suffix == ".json":  # a run's own file
        table, _ = of_today({"schema": SCHEMA, **table}, str(path))
    for key in ("data", "test", "modules", "start"):
        if isinstance(table.get(key), str):  # a relative path means: relative to the file that names it
            table[key] = str((path.parent / table[key]).resolve())
    source, colon, file = str(table.get("task", "")).partition(":")
    if f"{source}:" in SOURCES:
        table["task"] = f"{source}:{(path.parent / file).resolve()}"
    elif source.endswith((".npz", ".toml")) and not colon:
        table["task"] = str((path.parent / source).resolve())
    for key in ("absence", "protect"):
        if isinstance(table.get(key), dict) and isinstance(table[key].get("policy"), str):
            policy = (path.parent / os.path.expanduser(table[key]["policy"])).resolve()
            table[key] = {**table[key], "policy": str(policy)}
    for change in changes:
        set_key(table, change)
    folder = None if path.suffix == ".json" else path.parent
    experiment = from_table(table, str(path), folder)
    if searched := experiment.modules or folder:
        search(searched)
    return experiment


def from_changes(changes: Iterable[str]) -> Experiment:
    """The usual experiment with `key=value` changes."""
    table: dict[str, Any] = {}
    for change in changes:
        set_key(table, change)
    return from_table(table, folder=Path.cwd())


def set_key(table: dict[str, Any], change: str) -> None:
    """Apply one `key=value` or `key.option=value`.

    >>> table = {"algorithm": "fedprox"}
    >>> set_key(table, "algorithm.mu=0.1"); set_key(table, "lr=0.1"); table
    {'algorithm': {'name': 'fedprox', 'mu': '0.1'}, 'lr': '0.1'}
    """
    key, equals, value = change.partition("=")
    if not equals:
        raise HoldfastError(f"--set {change!r}: expected key=value.")
    key, dot, option = key.strip().partition(".")
    if not dot:
        table[key] = value
        return
    if key not in CHOICES:
        raise HoldfastError(f"--set {change!r}: {key!r} has no options; {nearest(key, CHOICES)}")
    current = Choice.parse(table.get(key, getattr(Experiment(), key)), key)
    table[key] = {"name": current.head, **current.options, option: value}
