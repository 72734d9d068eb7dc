"""`holdfast attack-search`: which attack harms an experiment most, as a table and as an experiment to run again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.table import Table

from holdfast.attack_search import Goal, Search, Tried
from holdfast.cli.reproducing import read_seeds
from holdfast.cli.running import print_json
from holdfast.cli.screen import screen
from holdfast.core.config import Choice
from holdfast.core.errors import HoldfastError
from holdfast.core.files import write_file
from holdfast.runs.build import make_plan
from holdfast.runs.deal import counted
from holdfast.runs.experiment import SCHEMA, Experiment, load

SHOWN = 8  # rows of the table
GOALS: dict[str, Goal] = {"model": "model", "class": "class"}


def search_attacks(
    file: Path,
    changes: Iterable[str],
    attackers: int | None,
    budget: int,
    seeds: str | None,
    goal: str,
    draw: int,
    out: Path,
    as_json: bool,
) -> None:
    if goal not in GOALS:
        raise HoldfastError(f"--goal: expected model or class, got {goal!r}.")
    experiment = replace(load(file, changes), attack=Choice("none"), attackers=0) if attackers else load(file, changes)
    experiment = counted(experiment)
    numbers = [experiment.seed] if seeds is None else read_seeds(seeds)
    classes = make_plan(replace(experiment, attack=Choice("none"), attackers=0)).method.bench.about.classes
    search = Search(experiment, attackers or experiment.attackers, out, classes, numbers, GOALS[goal], draw)
    console, tried = screen(stderr=as_json), []
    for number, one in enumerate(search.try_out(budget), 1):
        tried.append(one)
        console.print(f"{number:4d} of {budget}  harm {one.harm:+6.1f}  {one.attack}", markup=False, highlight=False)
    ranked = sorted(tried, key=lambda one: -one.harm)
    worst = replace(experiment, attack=ranked[0].attack, attackers=attackers or experiment.attackers, seed=numbers[0])
    path = write_worst(out, worst)
    if as_json:
        rows = [{**asdict(one), "attack": one.attack.as_json()} for one in ranked]
        print_json({"tried": rows, "worst": str(path), "folder": str(out)})
        return
    console.print(table(ranked[:SHOWN], goal))
    console.print(snippet(worst), markup=False, highlight=False, soft_wrap=True)
    console.print(f"The worst of them as an experiment: holdfast run {path}", markup=False)


def table(ranked: Sequence[Tried], goal: str) -> Table:
    what = "the model" if goal == "model" else "a class"
    view = Table(title=f"The attacks that harm {what} most, in points", title_justify="left")
    for name in ("lost", "worst class", "caught", "honest named"):
        view.add_column(name, justify="right")
    view.add_column("attack")
    for one in ranked:
        worst = "" if one.worst_class is None else f"{one.worst_class:.1f}"
        view.add_row(f"{one.lost:.1f}", worst, f"{one.caught:.1f}", str(one.honest_named), str(one.attack))
    return view


def snippet(worst: Experiment) -> str:
    """The keys of the attack, as an experiment file has them.

    >>> print(snippet(Experiment(attack=Choice("mixture", {"length": 2.5, "own": -1.0}), attackers=1)))
    attack = {name = "mixture", length = 2.5, own = -1.0}
    attackers = 1
    seed = 0
    """
    options = "".join(f", {name} = {value}" for name, value in worst.attack.options.items())
    return f'attack = {{name = "{worst.attack.name}"{options}}}\nattackers = {worst.attackers}\nseed = {worst.seed}'


def write_worst(out: Path, worst: Experiment) -> Path:
    path = out / "worst.json"
    write_file(path, json.dumps({"schema": SCHEMA, **worst.as_json()}, indent=1).encode())
    return path
