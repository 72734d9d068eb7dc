"""`holdfast check`, `partition`, `tasks` and `methods`: look before you run."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from holdfast.absence import ABSENCES
from holdfast.algorithms import ALGORITHMS
from holdfast.attacks import ATTACKS
from holdfast.cli.screen import screen
from holdfast.core.errors import HoldfastError, nearest
from holdfast.core.names import plural
from holdfast.core.rivals import rivals
from holdfast.core.tables import toml
from holdfast.data.kinds import LOSSES
from holdfast.data.named import known_tasks
from holdfast.data.natural import PARTITIONS
from holdfast.data.partitions import class_counts
from holdfast.data.sources.picture import partition_figure, partition_table
from holdfast.encoders import ENCODERS
from holdfast.learning.compress import COMPRESSIONS
from holdfast.learning.device import gains_from_bfloat16
from holdfast.learning.late import LATE
from holdfast.learning.optimizers import OPTIMIZERS
from holdfast.learning.schedules import SCHEDULES
from holdfast.learning.server_optimizers import SERVER_OPTIMIZERS
from holdfast.learning.workload import WORKLOADS
from holdfast.models.networks import MODELS
from holdfast.privacy.dp_sgd import PROTECTIONS
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import from_changes, load
from holdfast.runs.plan import Plan
from holdfast.runs.presets import PRESETS
from holdfast.runs.rehearse import refuse_without_effect
from holdfast.scenarios import SCENARIOS
from holdfast.selection import SELECTIONS, select
from holdfast.trust import TRUSTS


def check_file(file: Path, changes: list[str]) -> None:
    """Say what an experiment would do."""
    plan = make_plan(load(file, changes))
    refuse_without_effect(plan.experiment)
    experiment, sizes = plan.experiment, plan.stage.sizes
    console = screen()
    view = Table.grid(Column(), Column(overflow="fold"), padding=(0, 2))
    for name, text in facts_of(plan):
        view.add_row(name, escape(text))
    console.print(view)
    marks = "█ there, · away, ░ not asked" if foreseen(plan) else "█ there, · away"
    console.print(
        f"\nWho is there, round 1 to {experiment.rounds} ({marks}), scenario {escape(str(experiment.scenario))}:"
    )
    width = max(len(experiment.name_of(client)) for client in plan.stage.clients)
    for client, line in enumerate(timeline(plan)):
        console.print(f"  {escape(f'{experiment.name_of(client):{width}}')} {line} {sizes[client]:>6} samples")
        if client == 19 and len(sizes) > 20:
            console.print(f"  ... and {len(sizes) - 20} more")
            break
    console.print("[green]This experiment can be run.[/]")


def facts_of(plan: Plan) -> Iterator[tuple[str, str]]:
    """What is learnt, by whom and how, as rows of a table."""
    experiment, task, sizes = plan.experiment, plan.task, plan.stage.sizes
    shape = "x".join(map(str, task.shape)) + (" values" if len(task.shape) == 1 else "")
    kind = task.kind.words(task.classes)
    yield "task", f"{task.name}: {len(task.train):,} samples + {len(task.test):,} for the test, {kind}, {shape}"
    weights = sum(tensor.numel() for tensor in plan.start().model.values())
    yield "model", f"{experiment.model}: {weights:,} weights, {size(weights * 4)} each way and round"
    if plan.encoder is not None:
        found, values = plan.encoder, math.prod(plan.encoder.feature_shape)
        chosen = f"auto: {found.name}" if experiment.encoder.name == "auto" else found.name
        yield "encoder", f"{chosen}, {values:,} values, fingerprint {found.fingerprint[:12]}"
    rule = next((name for name, kind in TRUSTS.items() if type(plan.method.trust) is kind), experiment.trust.head)
    yield "method", f"{experiment.method}, updates weighted by {rule}"
    dealt = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"
    yield "clients", f"{len(sizes)}, {experiment.partition}: {dealt} training samples each"
    if alone := of_one_class(plan):
        yield "one class", f"all records of {', '.join(alone)} are of one class: no AUROC there"
    if plan.hostile:
        yield "hostile", f"{', '.join(map(experiment.name_of, plan.hostile))}: {experiment.attack}"
    lr = f"{experiment.optimizer}, lr {experiment.lr} ({experiment.schedule})"
    steps = f"batches of {experiment.batch_size}, {lr}, seed {experiment.seed}"
    work = plural(experiment.epochs, "epoch")
    if experiment.local_steps is not None:
        work = plural(experiment.local_steps, "step")
    yield "rounds", f"{experiment.rounds} of {work}, {steps}"
    if experiment.augment != "none":
        yield "augment", experiment.augment
    if experiment.precision == "bfloat16" and not gains_from_bfloat16(plan.device):
        yield "precision", "bfloat16 gains nothing on this CPU, which has no instructions for it: float32 is faster"
    if frozen := plan.method.frozen():
        tensors = sum(1 for _ in plan.method.bench.model.parameters())
        yield "frozen", f"{len(frozen)} of {tensors} tensors ({', '.join(experiment.groups or ())})"
    if experiment.selection.name != "all":
        yield "selection", f"{experiment.selection} of {len(sizes)} clients are asked in each round"


def size(count: float) -> str:
    """Bytes as people read them.

    >>> size(3332), size(139_000)
    ('3.3 kB', '0.14 MB')
    """
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def of_one_class(plan: Plan) -> list[str]:
    """The sites of a table whose training records are all of one class."""
    task, parts = plan.task, plan.parts
    if task.schema is None or task.bare or not task.kind.has_classes:
        return []
    held = [len(task.train.labels[train].unique()) for train, _, _ in parts]
    return [plan.experiment.name_of(client) for client, classes in enumerate(held) if classes == 1]


def timeline(plan: Plan, width: int = 60) -> list[str]:
    """For each client a line of blocks over the rounds."""
    rounds = range(0, plan.experiment.rounds, max(1, -(-plan.experiment.rounds // width)))
    clients, method, start = plan.stage.clients, plan.method, plan.first_state()
    columns = []
    for round in rounds:
        away = set(plan.scenario(round, plan.stage))
        asked: Collection[int] = clients
        if foreseen(plan):
            asked = select(method.selection, clients, dataclasses.replace(start, round=round), method.seed)
        columns.append(["░" if c not in asked else "·" if c in away else "█" for c in clients])
    return ["".join(column[client] for column in columns) for client in clients]


def foreseen(plan: Plan) -> bool:
    """Whether it is known before the run who is asked when: most selections go by what happens."""
    return plan.experiment.selection.name == "uniform"


def show_partition(file: Path | None, changes: list[str], out: Path | None) -> None:
    experiment = load(file, changes) if file else from_changes(changes)
    plan = make_plan(experiment)
    experiment = plan.experiment
    parts = [part for part, _, _ in plan.parts]
    names = plan.task.class_names or ("samples",)
    if plan.task.kind.has_classes:
        counts = class_counts(parts, plan.task.train.labels, plan.task.classes)
    else:
        counts = torch.tensor([[len(part)] for part in parts])
    console = screen()
    console.print(f"{plan.task.name}, {experiment.partition}, seed {experiment.seed}: training samples of each client")
    console.print(partition_table(counts, names))
    if out is not None:
        partition_figure(counts, names, out)
        console.print(f"Saved {out}")


def list_tasks() -> None:
    view = Table(box=None, padding=(0, 2, 0, 0))
    view.add_column("task")
    view.add_column("what")
    for name, description in known_tasks():
        view.add_row(f"[bold]{name}[/]", description)
    view.add_row("[bold]FILE.npz[/]", "your own arrays: x_train, y_train, x_test, y_test")
    view.add_row(
        "[bold]SCHEMA.toml[/]", "your own tables: data = a CSV or Parquet file, or a folder with one for each site"
    )
    view.add_row("[bold]images:FOLDER[/]", "your own pictures, by class, by site and class, or with labels.csv")
    view.add_row(
        "[bold]series:FILE.npz[/]", "your own time series: x (N, steps, channels), y, and facts such as subject"
    )
    view.add_row("[bold]text:FILE.csv[/]", "your own texts: columns text and label")
    view.add_row("[bold]package.module:name[/]", "your own Task, or a function that makes one")
    screen().print(view)


KINDS: dict[str, tuple[str, Mapping[str, type]]] = {
    "algorithm": ("how clients learn", ALGORITHMS),
    "absence": ("who stands in", ABSENCES),
    "trust": ("whom to believe", TRUSTS),
    "protect": ("what hides a record in the updates", PROTECTIONS),
    "loss": ("what clients minimise, in place of the usual loss of the task's kind", LOSSES),
    "optimizer": ("what steps clients take", OPTIMIZERS),
    "schedule": ("how the learning rate goes on", SCHEDULES),
    "server_optimizer": ("what the moderator makes of the aggregated model", SERVER_OPTIMIZERS),
    "selection": ("who is asked to train in a round", SELECTIONS),
    "compress": ("what of an update is sent, in few bytes", COMPRESSIONS),
    "workload": ("how many steps a client takes", WORKLOADS),
    "late": ("what a slow client's update of an earlier round is worth", LATE),
    "scenario": ("who is away", SCENARIOS),
    "attack": ("what hostile clients do", ATTACKS),
    "partition": ("how data are dealt out", PARTITIONS),
    "model": ("what is trained", MODELS),
    "encoder": ("public features, for models that read them", ENCODERS),
    "rival algorithms": ("for comparison only, as algorithm = ...", rivals("algorithm")),
    "rival absences": ("for comparison only, as absence = ...", rivals("absence")),
    "rival rules": ("for comparison only, as trust = ...", rivals("trust")),
}


def list_methods(kind: str | None) -> None:
    """Every kind of choice, or one: each name with its first sentence and its options."""
    if kind is not None and kind not in KINDS:
        raise HoldfastError(f"There is no kind of choice {kind!r}; {nearest(kind, KINDS)}")
    console = screen()
    if kind is None:
        console.print(
            "A method is [bold]algorithm\\[+absence]\\[+trust]\\[+protect][/], as in feddig or scaffold+feddig.\n"
        )
        show(
            console,
            "presets: several keys under one name",
            {name: escape(toml(keys)) for name, keys in PRESETS.items()},
        )
    for name, (title, choices) in KINDS.items() if kind is None else [(kind, KINDS[kind])]:
        show(console, f"{name}: {title}", {name: about(choice) for name, choice in choices.items()})


def show(console: Console, title: str, rows: Mapping[str, str]) -> None:
    view = Table(box=None, padding=(0, 2, 0, 2), title=title, title_justify="left", title_style="bold")
    view.show_header = False
    for name, text in rows.items():
        view.add_row(f"[cyan]{escape(name)}[/]", text)
    console.print(view)
    console.print()


def about(choice: type) -> str:
    """A choice's first sentence, and below it its options with their usual values."""
    options = options_of(choice)
    return first_sentence(choice) + (f"\n[dim]{options}[/]" if options else "")


def first_sentence(kind: type) -> str:
    return escape((kind.__doc__ or "").strip().split("\n")[0])


def options_of(kind: type) -> str:
    """The options with their usual values, those that are given by name only last; of a few words, all of them.

    >>> from holdfast.trust.fedtest import FedTest
    >>> "choice=random (or rotating, trusted)" in options_of(FedTest)
    True
    """
    if not dataclasses.is_dataclass(kind):
        return ""
    hints = typing.get_type_hints(kind)
    found = sorted((f for f in dataclasses.fields(kind) if f.init), key=lambda f: f.kw_only is True)
    return escape(", ".join(option_text(f, hints[f.name]) for f in found))


def option_text(option: dataclasses.Field[object], hint: object) -> str:
    words = [str(word) for word in typing.get_args(hint)] if typing.get_origin(hint) is typing.Literal else []
    if option.default is dataclasses.MISSING:
        return option.name + (f" ({', '.join(words)})" if words else "")
    others = [word for word in words if word != str(option.default)]
    return f"{option.name}={option.default}" + (f" (or {', '.join(others)})" if others else "")
