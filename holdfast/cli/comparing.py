"""`holdfast compare`: methods x scenarios x attacks x seeds, each a run that --out goes on with if it is there."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.absence import ABSENCES
from holdfast.cli.hostile import backdoor_rate, suspicions
from holdfast.cli.running import Live, happenings, print_json, spark, summary
from holdfast.cli.screen import screen
from holdfast.core.config import choose, split_commas
from holdfast.core.errors import HoldfastError
from holdfast.core.files import write_file
from holdfast.core.names import plural
from holdfast.data.metrics import Measure
from holdfast.play import resume, run
from holdfast.report.figures import save_curves
from holdfast.report.words import on_absent, situation
from holdfast.runs.build import make_plan
from holdfast.runs.choose_model import name_model, reader_of_features
from holdfast.runs.deal import task_of
from holdfast.runs.experiment import Experiment, from_changes, from_table, load
from holdfast.runs.history import History
from holdfast.runs.presets import with_method
from holdfast.runs.store import Run


@dataclass(frozen=True)
class Conditions:
    """What every method is put through: comma-separated lists; none: as the file says."""

    scenarios: str | None = None
    attacks: str | None = None
    attackers: int | None = None
    seeds: str | None = None


def compare_methods(
    methods: str | None, conditions: Conditions, file: Path | None, changes: list[str], out: Path | None, as_json: bool
) -> None:
    """Run every combination and show what came of it."""
    console = screen(stderr=as_json, wrap=as_json)
    out = out or Path("runs") / f"compare-{time.strftime('%Y%m%d-%H%M%S')}"
    experiments = combinations(methods, conditions, file, changes)
    if not any(change.partition("=")[0].strip() == "model" for change in changes):
        experiments, shared = one_network(experiments)
        if shared:
            console.print(f"[yellow]note[/] {shared}")
    networks: dict[str, str] = {}
    for experiment in {(e.method, situation(e)): e for e in experiments}.values():
        plan = make_plan(experiment)  # what does not fit together is said before the first run, not after an hour
        model = name_model(plan.experiment, plan.task, plan.method.absence)
        networks[experiment.method] = "the task's own" if model.name == "auto" else str(model)
    if len({*networks.values()}) > 1:
        each = ", ".join(f"{method}: {network}" for method, network in networks.items())
        told = f"the methods train different networks, so the table compares these as well ({each})."
        console.print(f"[yellow]note[/] {escape(told)}")
    histories: list[History] = []
    with Live(console, sum(e.rounds for e in experiments), every=experiments[0].rounds) as live:
        try:
            for experiment in experiments:
                histories.append(play_one(experiment, out, live))
        except KeyboardInterrupt:
            console.print(f"Interrupted. The same command with --out {out} goes on where it stopped.")
            sys.exit(130)
        except HoldfastError as error:
            if histories:
                tell(histories, out, console, as_json)
            done = f"{len(histories)} of {len(experiments)} runs are done"
            raise HoldfastError(f"{error} ({done}; the same command with --out {out} goes on.)") from error
    tell(histories, out, console, as_json)


def tell(histories: Sequence[History], out: Path, console: Console, as_json: bool) -> None:
    """Save and show what came of the runs."""
    backdoors = [backdoor_rate(history) for history in histories]
    rows = [summary(history, rate) for history, rate in zip(histories, backdoors, strict=True)]
    write_file(out / "results.json", json.dumps({"rows": rows}, indent=1).encode())
    save_curves(histories, out / "curves.png")
    if as_json:
        print_json({"rows": rows})
        return
    for history in histories:
        for line in [*happenings(history), *suspicions(history), *history.failures]:
            what = f"{history.experiment.method}, {situation(history.experiment)}: {line}"
            console.print(f"[yellow]note[/] {escape(what)}")
    console.print(fitting(console, histories, backdoors))
    for line in on_those_who_left(histories):
        console.print(escape(line))
    console.print(f"Runs, results.json and curves.png are in [bold]{escape(str(out))}[/]")


def on_those_who_left(histories: Sequence[History]) -> list[str]:
    """For each condition under which members left, the leading metric of each method on their data."""
    found: dict[str, dict[str, list[float]]] = {}
    for history in histories:
        if (value := on_absent(history.records)) is not None:
            methods = found.setdefault(situation(history.experiment), {})
            methods.setdefault(history.experiment.method, []).append(value)
    measure = histories[0].measure
    return [
        f"On the data of those who are away, {condition}: "
        + ", ".join(f"{method} {measure.text(statistics.mean(values))}" for method, values in methods.items())
        for condition, methods in found.items()
    ]


def combinations(
    methods: str | None, conditions: Conditions, file: Path | None, changes: Sequence[str]
) -> list[Experiment]:
    base = (load(file, changes) if file else from_changes(changes)).as_json()
    scenarios = [base["scenario"]] if conditions.scenarios is None else split_choices(conditions.scenarios)
    attacks = [base["attack"]] if conditions.attacks is None else split_choices(conditions.attacks)
    if conditions.attackers and attacks == ["none"]:
        raise HoldfastError("--attackers says how many clients are hostile; --attack must say what they do.")
    attackers = base["attackers"] if conditions.attackers is None else conditions.attackers
    seeds = [base["seed"]] if conditions.seeds is None else conditions.seeds.split(",")
    chosen = [None] if methods is None else split_choices(methods)
    return [
        from_table(
            {
                **(base if method is None else with_method(base, method, changes)),
                "scenario": scenario,
                "attack": attack,
                "attackers": 0 if attack == "none" else attackers,
                "seed": seed,
            },
            folder=file.parent if file else Path.cwd(),
        )
        for scenario, attack, method, seed in product(scenarios, attacks, chosen, seeds)
    ]


def one_network(experiments: Sequence[Experiment]) -> tuple[list[Experiment], str]:
    """The experiments with one network for all: where some method reads features, those without a model do as well."""
    reading = [e for e in experiments if e.model.name == "auto" and getattr(absence_of(e), "needs_features", False)]
    other = [e for e in experiments if e.model.name == "auto" and e not in reading]
    if not reading or not other:
        return list(experiments), ""
    features = reader_of_features(reading[0], task_of(reading[0]))
    changed = [replace(e, model=features) if e.model.name == "auto" else e for e in experiments]
    why = f"since {reading[0].method} needs it; --set model=auto compares each with its own."
    return changed, f"model = '{features}' for all, {why}"


def absence_of(experiment: Experiment) -> object:
    return choose(ABSENCES, experiment.absence, "absence")


def split_choices(text: str) -> list[str]:
    """Comma-separated choices; a comma before option=value still belongs to the choice before it.

    >>> split_choices("none, labelflip,colluder:margin=0.2,update=signflip,signflip:1")
    ['none', 'labelflip', 'colluder:margin=0.2,update=signflip', 'signflip:1']
    >>> split_choices("none,intervals:away=[[3,5,9],[0,1,2]]")
    ['none', 'intervals:away=[[3,5,9],[0,1,2]]']
    """
    found: list[str] = []
    for part in map(str.strip, split_commas(text)):
        if found and "=" in part.split(":")[0]:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def play_one(experiment: Experiment, out: Path, live: Live) -> History:
    """One run in its own folder; one that is there already is gone on with."""
    label = f"{experiment.method} · {situation(experiment)} · seed {experiment.seed}"
    name = "-".join([experiment.method, situation(experiment), str(experiment.seed)])
    folder = out / "".join(c if c.isalnum() or c in "+-._=" else "_" for c in name)
    live.begin(label)
    live.names = experiment.names
    if not (folder / "experiment.json").exists():
        return run(experiment, folder, lambda record: live.round(label, record))
    there = Run.open(folder)
    if there.experiment.fingerprint != experiment.fingerprint:
        raise HoldfastError(f"{folder} holds a run of another experiment; choose another --out.")
    for record in there.records():
        live.round(label, record)
    return resume(folder, lambda record: live.round(label, record))


def fitting(console: Console, histories: Sequence[History], backdoors: Sequence[float | None]) -> Table:
    """The table, with curves where the screen is wide enough for them."""
    whole = table(histories, backdoors)
    needed = console.measure(whole, options=console.options.update(width=10_000)).maximum
    return whole if needed <= console.width else table(histories, backdoors, curves=False)


def table(histories: Sequence[History], backdoors: Sequence[float | None], curves: bool = True) -> Table:
    """Methods x conditions: mean and deviation over seeds of the leading metric, the best of each column in bold.

    Curves are left out where the screen is narrow: whole names and numbers come first.
    """
    cells: dict[str, dict[str, list[History]]] = {}
    open_doors: dict[tuple[str, str], list[float]] = {}
    for history, rate in zip(histories, backdoors, strict=True):
        method, condition = history.experiment.method, situation(history.experiment)
        cells.setdefault(method, {}).setdefault(condition, []).append(history)
        open_doors.setdefault((method, condition), []).extend([] if rate is None else [rate])
    conditions = list(dict.fromkeys(situation(history.experiment) for history in histories))
    measure = histories[0].measure
    means = {(m, s): mean(finals(found)) for m, row in cells.items() for s, found in row.items()}
    there = {s: [v for (_, other), v in means.items() if other == s and v is not None] for s in conditions}
    best = {s: measure.best(values) if values else None for s, values in there.items()}
    seeds = len({history.experiment.seed for history in histories})
    title = f"Test {escape(measure.title)} at the end, mean over {plural(seeds, 'seed')}"
    view = Table(title=title, title_justify="left")
    view.add_column("method", overflow="fold")
    for name in conditions:
        view.add_column(escape(name), justify="right", overflow="fold")
    view.add_column("seconds a run", justify="right")
    if curves:
        view.add_column(f"{escape(measure.words)} by round, {escape(conditions[-1])}", no_wrap=True)
    for method, row in cells.items():
        doors = [open_doors.get((method, s), []) for s in conditions]
        texts = [
            cell(finals(row.get(s, [])), measure, means.get((method, s)) == best[s], rates)
            for s, rates in zip(conditions, doors, strict=True)
        ]
        seconds = statistics.mean(history.seconds for found in row.values() for history in found)
        last = row.get(conditions[-1], [])
        curve = [spark(last[0].leading if last else [], measure)] if curves else []
        view.add_row(escape(method), *texts, f"{seconds:.0f}", *curve)
    return view


def finals(histories: Sequence[History]) -> list[float]:
    return [history.final for history in histories if history.final is not None]


def mean(values: Sequence[float]) -> float | None:
    return statistics.mean(values) if values else None


def cell(values: Sequence[float], measure: Measure, best: bool, backdoors: Sequence[float]) -> str:
    """The metric, and how often the backdoor works where there is one; a dash where a comparison did not get so far."""
    if not values:
        return "-"
    spread = f" ± {measure.number(statistics.stdev(values))}" if len(values) > 1 else ""
    text = f"{measure.number(statistics.mean(values))}{spread}"
    text = f"[bold green]{text}[/]" if best else text
    return text + (f", backdoor {100 * statistics.mean(backdoors):.0f}" if backdoors else "")
