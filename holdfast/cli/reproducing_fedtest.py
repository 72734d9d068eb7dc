"""`holdfast reproduce fedtest-fig4` and `fedtest-fig5`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from rich.console import Console

from holdfast.cli.running import Live, print_json
from holdfast.errors import HoldfastError, nearest
from holdfast.experiment import Experiment, from_table, set_key
from holdfast.files import make_folder, write_file
from holdfast.report.curves import COLOURS
from holdfast.reproduce_fedtest import FIGURES, METHODS, Curve, experiment_of, findings, reproduce


def reproduce_fedtest(
    name: str, scale: str, data: Path | None, out: Path | None, seeds: str, changes: list[str], as_json: bool
) -> None:
    """Play a figure, print what is measured beside the claim, and save numbers and curves."""
    if scale not in ("small", "paper"):
        raise HoldfastError(f"--scale is small or paper, not {scale!r}.")
    if name not in FIGURES:
        raise HoldfastError(f"reproduce: {name!r} is not known; {nearest(name, FIGURES)}")
    size: Literal["small", "paper"] = "small" if scale == "small" else "paper"
    out = out or Path("runs") / f"{name}-{scale}-{time.strftime('%Y%m%d-%H%M%S')}"
    make_folder(out)
    console = Console(stderr=as_json, highlight=False, soft_wrap=as_json)
    numbers = [int(seed) for seed in seeds.split(",")]
    rounds = changed(experiment_of(FIGURES[name][0], data, size, "samples", 0, 0), changes).rounds
    with Live(console, rounds * 2 * len(METHODS) * len(numbers), every=rounds) as live:
        curves = reproduce(name, data, size, numbers, live.round, lambda experiment: changed(experiment, changes))
    lines = findings(name, curves)
    found = {"figure": name, "scale": scale, "seeds": numbers, "curves": [asdict(c) for c in curves], "findings": lines}
    write_file(out / "results.json", json.dumps(found, indent=1).encode())
    save_figure(curves, out / "curves.png", name)
    if as_json:
        print_json(found)
        return
    for line in lines:
        console.print(line)
    console.print(f"results.json and curves.png are in [bold]{out}[/]")


def changed(experiment: Experiment, changes: list[str]) -> Experiment:
    table = experiment.as_json()
    for change in changes:
        set_key(table, change)
    return from_table(table)


def save_figure(curves: list[Curve], path: Path, title: str) -> None:
    """Solid lines without malicious clients, dashed with them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    colours = dict(zip(METHODS, COLOURS, strict=False))
    for curve in curves:
        rounds = range(1, len(curve.accuracy) + 1)
        style = "--" if curve.attackers else "-"
        label = f"{curve.method}, {curve.attackers or 'no'} malicious"
        panel.plot(rounds, [100 * value for value in curve.accuracy], style, color=colours[curve.method], label=label)
    panel.set(xlabel="round", ylabel="test accuracy, %", title=title)
    panel.grid(alpha=0.25)
    panel.legend(frameon=False, fontsize="small")
    figure.savefig(path)
