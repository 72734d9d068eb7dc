"""`holdfast reproduce`: the FedDig paper's tables and figures again, ours beside the paper's numbers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.cli.comparing import play_one
from holdfast.cli.running import Live, happenings, print_json
from holdfast.cli.screen import screen
from holdfast.core.config import Choice
from holdfast.core.errors import HoldfastError
from holdfast.core.files import make_folder, write_file
from holdfast.data.named import EMBEDDED, HEART, load_task
from holdfast.reproduce.baselines import centralised, lda_accuracy
from holdfast.reproduce.drawing import save_bars, save_round_curves
from holdfast.reproduce.plans import Column, Reproduction, Row, only, reproduction
from holdfast.reproduce.results import (
    APART,
    CENTRALISED,
    LDA,
    Cell,
    as_markdown,
    cells_apart,
    cells_of,
    findings,
    grid,
    to_json,
)
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment, from_table, set_key
from holdfast.runs.history import History

Place = tuple[str, str]  # row, column
INSIDE = (EMBEDDED, HEART)  # the data come with Holdfast
MOST_COLUMNS = 5  # of a table that fits into 80 columns of text


@dataclass(frozen=True)
class Wish:
    """What is to be reproduced, and with what."""

    name: str
    scale: str = "small"
    data: Path | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    changes: tuple[str, ...] = ()


def reproduce_paper(
    name: str,
    scale: str,
    data: Path | None,
    out: Path | None,
    seeds: str,
    changes: list[str],
    as_json: bool,
    parts: Sequence[str] = (),
) -> None:
    """Play what a table or figure of the paper shows, print ours beside the paper's, and save table, curves, figure."""
    wish = Wish(name, scale, data, read_seeds(seeds), tuple(changes))
    wanted = only(reproduction(name, scale), parts)
    console = screen(stderr=as_json, wrap=as_json)
    wanted, left_out = with_data(wanted, wish)
    places = experiments_of(wanted, wish)
    out = out or Path("runs") / f"{name}-{scale}-{time.strftime('%Y%m%d-%H%M%S')}"
    make_folder(out)
    about = {"scale": scale, "seeds": list(wish.seeds), "what": what(wanted, places, wish), "left_out": left_out}
    console.print(f"[bold]{wanted.title}[/]\n{about['what']}")
    for line in left_out:
        console.print(f"[yellow]note[/] {line}")
    try:
        played = play_all(places, out, console)
    except KeyboardInterrupt:
        console.print(f"Interrupted. The same command with --out {out} goes on where it stopped.")
        sys.exit(130)
    cells = cells_of(wanted, played, lda_cells(wanted, played))
    apart = [] if wanted.cost else cells_apart(played)
    save(wanted, cells, apart, about, out)
    save_round_curves(played, wanted.title, out / "curves.png")
    if as_json:
        print_json({**to_json(wanted, cells, apart, about), "folder": str(out)})
        return
    show(wanted, cells, played, console)
    if apart:
        console.print(table(apart, APART))
    console.print(f"results.json, table.md, the figures and all runs are in [bold]{out}[/]")


def read_seeds(text: str) -> tuple[int, ...]:
    """Seeds as the user says them.

    >>> read_seeds("0,1,4")
    (0, 1, 4)
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise HoldfastError(f"--seeds: {text!r} is not a list of different whole numbers, as in 0,1,2.")
    return tuple(int(part) for part in parts)


def with_data(wanted: Reproduction, wish: Wish) -> tuple[Reproduction, list[str]]:
    """Without the columns whose data cannot be had; at the paper's scale all are needed."""
    kept, left_out = [], []
    for column in wanted.columns:
        table = table_for(wanted, Row("", {}), column, 0, wish)
        task, asked = str(table["task"]), from_table({"download": table.get("download", False)}).download
        if task in INSIDE or "." in task:
            kept.append(column)
            continue
        try:
            if wish.data is None and wish.scale == "small" and not asked:
                raise HoldfastError(f"task {task!r}: no folder with its files was given")
            load_task(task, wish.data, asked)
            kept.append(column)
        except HoldfastError as error:
            if wish.scale == "paper":
                raise
            left_out.append(f"{column.name} is left out ({str(error).rstrip('.')}); name its folder with --data.")
    if not kept:
        raise HoldfastError(f"reproduce {wanted.name}: there are no data for it; name their folder with --data.")
    return replace(wanted, columns=kept), left_out


def table_for(wanted: Reproduction, row: Row, column: Column, seed: int, wish: Wish) -> dict[str, Any]:
    """The keys of one run: the scale's, the row's, the column's, and last what the user changes."""
    table = {**wanted.base, **row.keys, **column.keys, "seed": seed}
    for change in wish.changes:
        set_key(table, change)
    if wish.data is not None and table["task"] not in INSIDE:  # also of a task that the user names instead
        table.setdefault("data", str(wish.data))
    return table


def experiments_of(wanted: Reproduction, wish: Wish) -> dict[Place, list[Experiment]]:
    """Row and column to an experiment for each seed; what does not fit together is said before the first run."""
    places: dict[Place, list[Experiment]] = {}
    for row in wanted.rows:
        for column in wanted.columns:
            if row.columns is None or column.name in row.columns:
                made = [from_table(table_for(wanted, row, column, seed, wish)) for seed in wish.seeds]
                places[row.name, column.name] = made
    for column in wanted.columns:
        if wanted.beside is not None and (wanted.beside, column.name) in places:
            made = [centralised(experiment) for experiment in places[wanted.beside, column.name]]
            places[CENTRALISED, column.name] = made
    first = [experiments[0] for experiments in places.values()]
    for experiment in {replace(one, scenario=Choice("none")).fingerprint: one for one in first}.values():
        make_plan(experiment)  # what fits in one scenario does in the others
    return places


def what(wanted: Reproduction, places: dict[Place, list[Experiment]], wish: Wish) -> str:
    """One sentence: which data, how much of them, how long, how often."""
    experiments = [made[0] for made in places.values()]
    tasks = list(dict.fromkeys(e.task + (f" ({e.samples:,} samples)" if e.samples else "") for e in experiments))
    rounds = sorted({e.rounds for e in experiments})
    paper = "" if "emnist" in tasks or wanted.name.endswith("fig12") else ", where the paper has EMNIST"
    return (
        f"Data: {', '.join(tasks)}{paper}; {'/'.join(map(str, rounds))} rounds; "
        f"mean over {len(wish.seeds)} seed{'s' if len(wish.seeds) > 1 else ''}."
    )


def play_all(places: dict[Place, list[Experiment]], out: Path, console: Console) -> dict[Place, list[History]]:
    """Play everything, the same experiment once, with an estimate of the time left."""
    different = {e.fingerprint: e for experiments in places.values() for e in experiments}
    different = dict(sorted(different.items(), key=lambda item: -work(item[1])))  # the longest first: no late surprise
    histories: dict[str, History] = {}
    start, done, all_work = time.perf_counter(), 0.0, sum(map(work, different.values()))
    shown = console if console.is_terminal else Console(quiet=True)  # plain lines: one for each run, not each round
    with Live(shown, all_work) as live:
        for number, (fingerprint, experiment) in enumerate(different.items(), 1):
            live.cost = work(experiment) / experiment.rounds
            histories[fingerprint] = play_one(experiment, out / "runs" / fingerprint[:12], live)
            done += work(experiment)
            left = (time.perf_counter() - start) / done * (all_work - done)
            if not console.is_terminal:
                label = f"{experiment.method}, {experiment.scenario}, seed {experiment.seed}"
                reached = histories[fingerprint].final_text
                console.print(f"run {number} of {len(different)}: {label}: {reached}; {minutes(left)} left")
    return {place: [histories[e.fingerprint] for e in experiments] for place, experiments in places.items()}


def work(experiment: Experiment) -> float:
    """How long a run takes, roughly, in rounds of the features-only model."""
    model = experiment.model
    name = "mobilenetv2" if model.options.get("image") == "mobilenetv2" else model.name
    return experiment.rounds * {"cnn": 15.0, "full": 25.0, "mobilenetv2": 600.0}.get(name, 1.0)


def minutes(seconds: float) -> str:
    """A time to wait, in words.

    >>> minutes(40), minutes(200)
    ('under a minute', 'about 3 min')
    """
    return "under a minute" if seconds < 60 else f"about {seconds / 60:.0f} min"


def lda_cells(wanted: Reproduction, played: dict[Place, list[History]]) -> dict[Place, list[float]]:
    """LDA from the digests that the runs of FedDig ended with."""
    return {
        (LDA, column): [lda_accuracy(history) for history in histories]
        for (row, column), histories in played.items()
        if row == wanted.beside
    }


def save(wanted: Reproduction, cells: Sequence[Cell], apart: Sequence[Cell], about: dict[str, Any], out: Path) -> None:
    """results.json, table.md and figure.png."""
    found = to_json(wanted, cells, apart, about)
    write_file(out / "results.json", json.dumps(found, indent=1, allow_nan=False).encode())
    write_file(out / "table.md", as_markdown(wanted, cells, apart, about).encode())
    if not wanted.cost:
        save_bars(cells, wanted.title, out / "figure.png")


def show(wanted: Reproduction, cells: Sequence[Cell], played: dict[Place, list[History]], console: Console) -> None:
    """Print the table, and what should be said of it."""
    for (row, column), histories in played.items():
        for line in dict.fromkeys(line for history in histories for line in happenings(history)):
            console.print(f"[yellow]note[/] {escape(f'{row}, {column}: {line}')}", markup=True)
    console.print(table(cells))
    for line in [*findings(wanted, cells), *wanted.remarks]:
        console.print(f"- {line}")


def table(cells: Sequence[Cell], title: str = "Ours, and the paper's in brackets") -> Table:
    """The cells as a table that fits into 80 columns of text: too many conditions stand one below another."""
    rows, columns, texts = grid(cells)
    if turned := len(columns) > MOST_COLUMNS:
        rows, columns = columns, rows
    view = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    view.add_column("", min_width=11)
    for column in columns:
        view.add_column(column, justify="right")
    for row in rows:
        found = (texts.get((column, row) if turned else (row, column), "") for column in columns)
        view.add_row(row, *(text.replace("[", "\\[") for text in found))
    return view
