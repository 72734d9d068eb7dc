"""`holdfast reproduce fedtest-fig4` and `fedtest-fig5`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from holdfast.cli.comparing import play_one
from holdfast.cli.hostile import attacker_weight
from holdfast.cli.reproducing import read_seeds
from holdfast.cli.running import Live, print_json
from holdfast.cli.screen import screen
from holdfast.core.errors import HoldfastError
from holdfast.core.files import make_folder, write_file
from holdfast.report.figures import COLOURS
from holdfast.reproduce.fedtest import METHODS, Curve, experiments_of, findings, reproduce
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment


def reproduce_fedtest(
    name: str,
    scale: str,
    data: Path | None,
    out: Path | None,
    seeds: str,
    changes: list[str],
    as_json: bool,
    parts: Sequence[str] = (),
) -> None:
    """Play a figure, print what is measured beside the claim, and save numbers, curves and runs."""
    if scale not in ("small", "paper"):
        raise HoldfastError(f"reproduce --scale: {scale!r} is not known; say 'small' or 'paper'.")
    size: Literal["small", "paper"] = "small" if scale == "small" else "paper"
    numbers = read_seeds(seeds)
    experiments = [e for group in experiments_of(name, data, size, numbers, changes, parts).values() for e in group]
    for experiment in experiments[:: len(numbers)]:
        make_plan(experiment)  # what does not fit together, or is not there, is said before the first run
    out = out or Path("runs") / f"{name}-{scale}-{time.strftime('%Y%m%d-%H%M%S')}"
    make_folder(out)
    console = screen(stderr=as_json, wrap=as_json)
    about = what(experiments[0], len(numbers))
    console.print(about)
    try:
        with Live(console, sum(e.rounds for e in experiments), every=experiments[0].rounds) as live:
            runs = out / "runs"
            curves = reproduce(
                name,
                data,
                lambda e: play_one(e, runs / e.fingerprint[:12], live),
                size,
                numbers,
                changes,
                attacker_weight,
                parts,
            )
    except KeyboardInterrupt:
        console.print(f"Interrupted. The same command with --out {out} goes on where it stopped.")
        sys.exit(130)
    found = {"figure": name, "scale": scale, "seeds": list(numbers), "what": about, "findings": findings(name, curves)}
    found["curves"] = [curve_to_json(curve) for curve in curves]
    write_file(out / "results.json", json.dumps(found, indent=1).encode())
    save_figure(curves, out / "curves.png", name)
    if as_json:
        print_json({**found, "folder": str(out)})
        return
    for line in findings(name, curves):
        console.print(f"- {line}")
    console.print(f"results.json, curves.png and all runs are in [bold]{out}[/]")


def what(experiment: Experiment, seeds: int) -> str:
    """One sentence: which data, how much of them, which network, how long, how often."""
    samples = f" ({experiment.samples:,} samples)" if experiment.samples else ""
    return (
        f"Data: {experiment.task}{samples}, {experiment.clients} clients with random classes; "
        f"model {experiment.model}; {experiment.rounds} rounds; mean over {seeds} seed{'s' if seeds > 1 else ''}."
    )


def curve_to_json(curve: Curve) -> dict[str, Any]:
    return {
        "method": curve.method,
        "attackers": curve.attackers,
        "scale": curve.scale,
        "kept": curve.kept,
        "accuracy": curve.accuracy,
        "final": curve.final,
        "deviation": curve.deviation,
        "seeds": [list(values) for values in curve.seeds],
    }


def save_figure(curves: Sequence[Curve], path: Path, title: str) -> None:
    """Solid lines without malicious clients, dashed with them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    colours = dict(zip(METHODS, COLOURS, strict=False))
    for curve in (curve for curve in curves if curve.scale == 1):
        rounds = range(1, len(curve.accuracy) + 1)
        style = "--" if curve.attackers else "-"
        label = f"{curve.method}, {curve.attackers or 'no'} malicious"
        panel.plot(rounds, [100 * value for value in curve.accuracy], style, color=colours[curve.method], label=label)
    panel.set(xlabel="round", ylabel="test accuracy, %", title=title)
    panel.grid(alpha=0.25)
    panel.legend(frameon=False, fontsize="small")
    figure.savefig(path)
