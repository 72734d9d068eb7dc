"""Accuracy over rounds as a picture: one panel for each scenario, one line for each method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.runs import History

# Okabe and Ito's colours, which the colour-blind can tell apart; dashes help where there are more than eight.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
DASHES = ("-", "--", ":", "-.")


def save_curves(histories: Sequence[History], path: Path) -> None:
    """Save the curves; a shaded band is the deviation over seeds, grey marks when clients are away."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scenarios = list(dict.fromkeys(str(history.experiment.scenario) for history in histories))
    methods = list(dict.fromkeys(history.experiment.method for history in histories))
    figure = Figure(figsize=(4.6 * len(scenarios) + 0.6, 3.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(scenarios), sharey=True, squeeze=False)[0]
    for panel, scenario in zip(panels, scenarios, strict=True):
        here = [history for history in histories if str(history.experiment.scenario) == scenario]
        for number, method in enumerate(methods):
            _line(panel, [history for history in here if history.experiment.method == method], method, number)
        _absences(panel, here[0])
        panel.set_title(scenario)
        panel.set_xlabel("round")
        panel.grid(alpha=0.25)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    panels[0].set_ylabel("test accuracy, %")
    panels[0].legend(frameon=False, fontsize="small")
    figure.savefig(path)


def _line(panel: Any, histories: Sequence[History], method: str, number: int) -> None:
    if not histories:
        return
    rounds = [record.round + 1 for record in histories[0].records if record.accuracy is not None]
    values = 100 * np.array([history.accuracy for history in histories])
    mean, deviation = values.mean(0), values.std(0)
    colour = COLOURS[number % len(COLOURS)]
    panel.plot(rounds, mean, DASHES[number // len(COLOURS) % len(DASHES)], color=colour, label=method, linewidth=1.6)
    if len(histories) > 1:
        panel.fill_between(rounds, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)


def _absences(panel: Any, history: History) -> None:
    """A grey ground, the darker the more clients are away."""
    clients = history.experiment.clients
    for record in history.records:
        if record.absent:
            panel.axvspan(
                record.round + 0.5, record.round + 1.5, color="black", alpha=0.12 * len(record.absent) / clients
            )
