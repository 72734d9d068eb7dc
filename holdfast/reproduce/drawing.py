"""Bars with the paper's numbers as marks, and curves over rounds: one panel for each column."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.report.figures import COLOURS, DASHES
from holdfast.reproduce.results import Cell, Played


def save_bars(cells: Sequence[Cell], title: str, path: Path) -> None:
    """A group of bars for each column, whiskers for the deviation over seeds, a black line where the paper stands."""
    rows, columns = (list(dict.fromkeys(getattr(cell, part) for cell in cells)) for part in ("row", "column"))
    figure = canvas(max(6.0, 0.28 * len(cells) + 3.0), 4.2)
    axes = figure.subplots()
    width = 0.8 / len(rows)
    for cell in cells:
        number = rows.index(cell.row)
        x = columns.index(cell.column) + (number - (len(rows) - 1) / 2) * width
        axes.bar(
            x, cell.mean, width * 0.92, yerr=cell.deviation, color=COLOURS[number % len(COLOURS)], hatch=hatch(number)
        )
        if cell.paper is not None:
            axes.plot([x - width / 2, x + width / 2], [cell.paper] * 2, color="black", linewidth=2)
    for number, row in enumerate(rows):
        axes.bar(0, 0, color=COLOURS[number % len(COLOURS)], hatch=hatch(number), label=row)
    axes.plot([], [], color="black", linewidth=2, label="the paper, EMNIST")
    axes.set_xticks(range(len(columns)), columns, rotation=0 if len(columns) < 6 else 30, fontsize="small")
    axes.set_ylabel("test accuracy, %")
    figure.suptitle("\n".join(textwrap.wrap(title, 70)), fontsize=9, x=0.01, ha="left")
    finish(axes)
    figure.legend(frameon=False, fontsize="small", loc="outside right upper")
    figure.savefig(path)


def save_round_curves(played: Played, title: str, path: Path) -> None:
    """Accuracy over rounds, a panel for each column, a line for each row; the band is the deviation over seeds."""
    rows = list(dict.fromkeys(row for row, _ in played))
    columns = list(dict.fromkeys(column for _, column in played))
    across = min(5, len(columns))
    down = -(-len(columns) // across)
    figure = canvas(3.4 * across + 2.4, 2.8 * down + 0.5)
    panels = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
    for panel, column in zip(panels, columns, strict=False):
        for number, row in enumerate(rows):
            for_row = played.get((row, column), [])
            if for_row:
                curve(panel, 100 * np.array([history.accuracy for history in for_row]), number)
        panel.set_title(column, fontsize=9)
        panel.set_xlabel("round")
        finish(panel)
    for panel in panels[len(columns) :]:
        panel.set_axis_off()
    for number, row in enumerate(rows):
        panels[0].plot([], [], style(number), color=COLOURS[number % len(COLOURS)], label=row)
    panels[0].set_ylabel("test accuracy, %")
    figure.suptitle("\n".join(textwrap.wrap(title, 70)), fontsize=9, x=0.01, ha="left")
    figure.legend(frameon=False, fontsize="small", loc="outside right upper")
    figure.savefig(path)


def curve(panel: Any, values: Any, number: int) -> None:
    rounds, mean, deviation = np.arange(1, values.shape[1] + 1), values.mean(0), values.std(0)
    colour = COLOURS[number % len(COLOURS)]
    panel.plot(rounds, mean, style(number), color=colour, linewidth=1.5)
    if len(values) > 1:
        panel.fill_between(rounds, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)


def style(number: int) -> str:
    return DASHES[number // len(COLOURS) % len(DASHES)]


def hatch(number: int) -> str:
    return "" if number < len(COLOURS) else "//"


def finish(axes: Any) -> None:
    axes.grid(alpha=0.25, axis="y")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def canvas(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
