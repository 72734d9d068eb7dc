"""`holdfast compare`: methods x scenarios x seeds, each a run of its own, gone on with when --out names it again."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from holdfast.cli.running import Live, happenings, print_json, spark, summary
from holdfast.errors import HoldfastError
from holdfast.experiment import Experiment, from_changes, from_table, load
from holdfast.files import write_file
from holdfast.plan import make_plan
from holdfast.play import resume, run
from holdfast.presets import parse_method
from holdfast.report.curves import save_curves
from holdfast.runs import History, Run


def compare_methods(
    methods: str, scenarios: str, seeds: str, file: Path | None, changes: list[str], out: Path | None, as_json: bool
) -> None:
    """Run every combination and show what came of it."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=as_json)
    out = out or Path("runs") / f"compare-{time.strftime('%Y%m%d-%H%M%S')}"
    experiments = combinations(methods, scenarios, seeds, file, changes)
    for experiment in {(e.method, str(e.scenario)): e for e in experiments}.values():
        make_plan(experiment)  # what does not fit together is said before the first run, not after an hour
    histories: list[History] = []
    with Live(console, sum(e.rounds for e in experiments), every=experiments[0].rounds) as live:
        try:
            for experiment in experiments:
                histories.append(play_one(experiment, out, live))
        except KeyboardInterrupt:
            console.print(f"Interrupted. The same command with --out {out} goes on where it stopped.")
            sys.exit(130)
    rows = [summary(history) for history in histories]
    write_file(out / "results.json", json.dumps({"rows": rows}, indent=1).encode())
    save_curves(histories, out / "curves.png")
    if as_json:
        print_json({"rows": rows})
        return
    for history in histories:
        for line in happenings(history.records):
            console.print(f"[yellow]note[/] {history.experiment.method}, {history.experiment.scenario}: {line}")
    console.print(table(histories))
    console.print(f"Runs, results.json and curves.png are in [bold]{out}[/]")


def combinations(
    methods: str, scenarios: str, seeds: str, file: Path | None, changes: Sequence[str]
) -> list[Experiment]:
    base = (load(file, changes) if file else from_changes(changes)).as_json()
    experiments = []
    for scenario, method, seed in product(scenarios.split(","), methods.split(","), seeds.split(",")):
        chosen = parse_method(method.strip())
        experiments.append(from_table({**base, **chosen, "scenario": scenario.strip(), "seed": seed.strip()}))
    return experiments


def play_one(experiment: Experiment, out: Path, live: Live) -> History:
    """One run in its own folder; one that is there already is gone on with."""
    label = f"{experiment.method} · {experiment.scenario} · seed {experiment.seed}"
    name = "-".join([experiment.method, str(experiment.scenario), str(experiment.seed)])
    folder = out / "".join(c if c.isalnum() or c in "+-._=" else "_" for c in name)
    live.begin(label)
    if not (folder / "experiment.json").exists():
        return run(experiment, folder, lambda record: live.round(label, record))
    there = Run.open(folder)
    if there.experiment.fingerprint != experiment.fingerprint:
        raise HoldfastError(f"{folder} holds a run of another experiment; choose another --out.")
    for record in there.records():
        live.round(label, record)
    return resume(folder, lambda record: live.round(label, record))


def table(histories: Sequence[History]) -> Table:
    """Methods x scenarios: mean and deviation of the final accuracy over seeds, the best of each column in bold."""
    cells: dict[str, dict[str, list[History]]] = {}
    for history in histories:
        by_scenario = cells.setdefault(history.experiment.method, {})
        by_scenario.setdefault(str(history.experiment.scenario), []).append(history)
    scenarios = list(dict.fromkeys(str(history.experiment.scenario) for history in histories))
    means = {(m, s): mean(found) for m, row in cells.items() for s, found in row.items()}
    best = {s: max(value for (_, scenario), value in means.items() if scenario == s) for s in scenarios}
    seeds = len({history.experiment.seed for history in histories})
    view = Table(title=f"Test accuracy in %, mean over {seeds} seed{'s' if seeds > 1 else ''}", title_justify="left")
    view.add_column("method")
    for scenario in scenarios:
        view.add_column(scenario, justify="right")
    view.add_column("seconds a run", justify="right")
    view.add_column(f"accuracy by round, {scenarios[-1]}")
    for method, row in cells.items():
        texts = [cell(row[s], means[method, s] == best[s]) for s in scenarios]
        seconds = statistics.mean(history.seconds for found in row.values() for history in found)
        view.add_row(method, *texts, f"{seconds:.0f}", spark(row[scenarios[-1]][0].accuracy))
    return view


def mean(histories: Sequence[History]) -> float:
    return statistics.mean(history.final_accuracy for history in histories)


def cell(histories: Sequence[History], best: bool) -> str:
    values = [100 * history.final_accuracy for history in histories]
    text = f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")
    return f"[bold green]{text}[/]" if best else text
