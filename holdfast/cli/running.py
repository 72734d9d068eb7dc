"""`holdfast run` and `holdfast resume`, with a live display."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from holdfast.cli.hostile import backdoor_rate, hostility, suspicions
from holdfast.cli.screen import FAILED, screen
from holdfast.core.failures import LOG
from holdfast.core.logs import tell, wants_json
from holdfast.core.names import plural
from holdfast.core.types import by_scenario
from holdfast.data.metrics import ACCURACY, Measure
from holdfast.play import resume as resume_run
from holdfast.play import run as play
from holdfast.record import Record, tell_round
from holdfast.report.run_data import class_names
from holdfast.report.words import from_few, lost_classes, on_absent
from holdfast.runs.deal import counted
from holdfast.runs.experiment import Experiment, load
from holdfast.runs.history import History
from holdfast.runs.outcome import rounds_text
from holdfast.runs.rehearse import refuse_without_effect
from holdfast.runs.store import Run

log = logging.getLogger("holdfast")
BLOCKS = "▁▂▃▄▅▆▇█"


def run_file(
    file: Path, changes: Iterable[str], out: Path | None, as_json: bool, watched: bool = False, allow: bool = False
) -> None:
    experiment = counted(load(file, changes))
    refuse_without_effect(experiment)
    out = out or Path("runs") / f"{file.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    with live_page(out, as_json) if watched else nullcontext():
        failed = show(lambda watch: play(experiment, out, watch), experiment, out, 0, as_json)
    end_with(failed and not allow)


def end_with(failed: bool) -> None:
    """End with an exit code that says so where a run failed."""
    if failed:
        sys.exit(FAILED)


@contextmanager
def live_page(folder: Path, as_json: bool) -> Iterator[None]:
    """The run's page in the browser, for as long as it goes on."""
    from holdfast.report.watch import serve

    with serve(folder) as address:
        screen(stderr=as_json).print(f"Watch it at {address}")
        yield


def resume_folder(folder: Path, as_json: bool, allow: bool = False) -> None:
    run = Run.open(folder)
    done = len(run.records())
    failed = show(lambda watch: resume_run(folder, watch), run.experiment, folder, done, as_json)
    end_with(failed and not allow)


def show(
    go: Callable[[Callable[[Record], None]], History], experiment: Experiment, out: Path, done: int, as_json: bool
) -> bool:
    """Play a run under a live display and say what it came to; true if it failed."""
    if wants_json():
        return show_lines(go, experiment, out, as_json)
    console = screen(stderr=as_json, wrap=True)
    start = time.perf_counter()
    with Live(console, experiment.rounds, done) as live:
        live.names = experiment.names
        try:
            history = go(lambda record: live.round(experiment.method, record))
        except KeyboardInterrupt:
            console.print(f"Interrupted. Go on with: holdfast resume {out}")
            sys.exit(130)
    if as_json:
        print_json({**summary(history, backdoor_rate(history)), "folder": str(out)})
        tell_failures(console, history)
    else:
        conclude(console, history, time.perf_counter() - start, out)
    return bool(history.failures)


def show_lines(
    go: Callable[[Callable[[Record], None]], History], experiment: Experiment, out: Path, as_json: bool
) -> bool:
    """The same for machines: a line of JSON for each round and for the end; true if the run failed."""
    history = go(lambda record: tell_round(log, record, experiment.name_of))
    told = {**summary(history, backdoor_rate(history)), "folder": str(out)}
    if as_json:
        print_json(told)
    tell(
        log,
        "The run is finished.",
        event="end",
        **{key: told[key] for key in ("metric", "final", "failures", "folder")},
    )
    return bool(history.failures)


def conclude(console: Console, history: History, seconds: float, out: Path) -> None:
    """The closing lines of a run: what happened, who is suspected, what it came to."""
    for line in [*happenings(history), *suspicions(history)]:
        console.print(f"[yellow]note[/] {escape(line)}")
    tell_failures(console, history)
    if lost := lost_classes(history.records[-1], class_names(Run.open(out), history.records)):
        console.print(f"[yellow]note[/] {escape(lost)}")
    experiment = history.experiment
    asked = "" if experiment.selection.name == "all" else f", {experiment.selection} asked in each round"
    final = f"[bold]{escape(history.final_text)}[/]{history.final_words}"
    console.print(
        f"[bold]{escape(experiment.method)}[/] under {escape(str(experiment.scenario) + asked)}: "
        f"{escape(history.measure.words)} {final} after {plural(len(history.records), 'round')} in {seconds:.0f} s"
    )
    if (left := on_absent(history.records)) is not None:
        few = from_few([history.records])
        console.print(f"On the data of those who are away: {escape(history.measure.said(left))}{few}")
    if (backdoor := backdoor_rate(history)) is not None:
        console.print(f"The backdoor works on {backdoor:.1%} of the test images that are stamped with it")
    if (out / LOG).exists():
        console.print(f"What went wrong at clients, in full: {out / LOG}", markup=False)
    console.print(f"Everything it wrote is in {out}", markup=False)


def tell_failures(console: Console, history: History) -> None:
    for failure in history.failures:
        console.print(f"[bold red]Failed:[/] {escape(failure)}")


def summary(history: History, backdoor: float | None) -> dict[str, object]:
    """One row, as --json prints it."""
    experiment = history.experiment
    return {
        "method": experiment.method,
        "scenario": str(experiment.scenario),
        "seed": experiment.seed,
        **hostility(history),
        "backdoor_success": backdoor,
        "metric": history.measure.name,
        "final": history.final,
        "values": history.leading,
        **last_tests(history.records[-1]),
        **({"final_accuracy": history.final_accuracy, "accuracy": history.accuracy} if history.accuracy else {}),
        "failures": history.failures,
        "seconds": history.seconds,
        "bytes_up": history.bytes_up,
        "bytes_down": history.bytes_down,
    }


def last_tests(record: Record) -> dict[str, object]:
    """What the last round's tests say, overall, at the clients, and on the data of those who are away."""
    return {
        "metrics": dict(record.metrics),
        "interval": record.interval,
        "threshold": record.threshold,
        "absent_metrics": dict(record.absent_metrics),
        "total_metrics": dict(record.total_metrics),
        "client_metrics": {name: dict(found) for name, found in record.client_metrics.items()},
        "client_samples": dict(record.client_samples),
        "client_intervals": dict(record.client_intervals),
    }


def print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def happenings(history: History) -> list[str]:
    """What a user should know of a run besides its metrics: refusals, failures, divergence; each once, with rounds."""
    seen: dict[str, list[int]] = {}
    called = history.experiment.name_of
    for record in history.records:
        for client, why in record.refused.items():
            seen.setdefault(f"{called(client)}'s update was refused: {why}", []).append(record.round)
        for client, why in record.absent.items():
            if not by_scenario(why):
                seen.setdefault(f"{called(client)} {why}", []).append(record.round)
        for note in record.notes:
            seen.setdefault(note, []).append(record.round)
    lines = [f"{what} (round {rounds_text(rounds)})" for what, rounds in seen.items()]
    return [*lines[:12], f"... and {len(lines) - 12} more in rounds.jsonl"] if len(lines) > 12 else lines


def spark(values: Sequence[float], measure: Measure, width: int = 24) -> str:
    """Values as a line of blocks: shares from 0 to 1, others from their least to their largest.

    >>> spark([0.0, 0.5, 1.0], ACCURACY), spark([4.0, 3.0, 2.0], Measure("rmse"))
    ('▁▅█', '█▅▁')
    """
    step = max(1, -(-len(values) // width))
    low, high = (0.0, 1.0) if measure.is_share or not values else (min(values), max(values))
    heights = [(value - low) / ((high - low) or 1.0) for value in values[::step]]
    return "".join(BLOCKS[min(7, int(height * 8))] for height in heights)


def who_was_there(record: Record, names: Sequence[str] | None = None) -> str:
    """Who was asked, unless everyone was, and who of them is away.

    >>> who_was_there(Record(1, {1: "away"}, {}, [], {}, {}, {}, None, 0, 0, {}, asked=[1, 4]))
    'asked: 1, 4; away: 1'
    """
    told = {"asked": record.asked or (), "away": sorted([*record.absent, *record.refused])}
    return "; ".join(f"{word}: {few(clients, names)}" for word, clients in told.items() if clients)


def few(clients: Sequence[int], names: Sequence[str] | None) -> str:
    shown = [names[client] if names else str(client) for client in clients[:6]]
    return ", ".join(shown) + (f" and {len(clients) - 6} more" if len(clients) > 6 else "")


class Live:
    """A progress bar with time left, the leading metric and who is absent; plain lines where there is no terminal."""

    def __init__(self, console: Console, rounds: float, done: int = 0, every: int | None = None) -> None:
        self.cost = 1.0  # of the rounds that follow, where some runs are slower than others
        self.names: Sequence[str] | None = None  # of the clients
        self._console = console
        self._every = every or max(1, int(rounds // 10))  # plain lines: about ten a run
        self._values: list[float] = []
        self._latest, self._measure = "-", ACCURACY
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:.0f}%"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[news]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=rounds, completed=done, news="starting")

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, label: str) -> None:
        """Another run begins under the same bar."""
        self._values = []
        self._progress.update(self._bar, description=label, news="starting")

    def round(self, label: str, record: Record) -> None:
        if record.measure is not None and record.leading is not None:
            self._values.append(record.leading)
            self._latest, self._measure = record.measure.said(record.leading), record.measure
        people = who_was_there(record, self.names)
        latest = self._latest if self._values else "-"
        news = f"[bold]{escape(latest)}[/] {spark(self._values, self._measure)}" + (
            f"  {escape(people)}" if people else ""
        )
        self._progress.update(self._bar, advance=self.cost, description=label, news=news)
        if not self._console.is_terminal and record.round % self._every == 0:
            line = f"{label}: round {record.round}, {latest}" + (f", {people}" if people else "")
            self._console.print(line, markup=False)
