"""The figure for a paper: the leading metric over rounds, and under it who was there, one column for each scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.attacks.adversary import choose_hostile
from holdfast.core.errors import HoldfastError
from holdfast.report.payload import presence
from holdfast.report.run_data import Story, same_measure
from holdfast.report.words import circumstance, colour_places, labels, situation
from holdfast.runs.history import History

# Okabe and Ito's colours, which the colour-blind can tell apart, the light ones darkened; as in static/page.css. Dashes
# help where there are more than eight.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b4588b", "#b97f00", "#3a9bd1", "#2b2b2b", "#8c7a00")
DASHES = ("-", "--", ":", "-.")

KINDS = (".png", ".pdf", ".svg")
# there, away, replaced by a digest, suspected, refused, refused and replaced, not asked
GROUND = {
    "p": "#B4D4EA",
    "a": "#FFFFFF",
    "d": "#009E73",
    "s": "#E69F00",
    "r": "#C84E00",
    "q": "#C84E00",
    "n": "#E8EAEC",
}
WORDS = {
    "p": "there",
    "a": "away",
    "d": "digest stands in",
    "s": "suspected",
    "r": "refused",
    "q": "refused, digest stands in",
    "n": "not asked",
}


def save_figure(stories: Sequence[Story], path: Path) -> None:
    """Save the figure; a shaded band is the deviation over seeds."""
    if path.suffix.lower() not in KINDS:
        raise HoldfastError(f"{path} must end in .png, .pdf or .svg, which says what kind of figure it is.")
    measure = same_measure(stories)
    if not any(story.final is not None for story in stories):
        raise HoldfastError("No round of these runs has been tested yet, so there is nothing to draw.")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scenarios = list(dict.fromkeys(situation(story.experiment) for story in stories))
    names = labels(stories)
    figure = Figure(figsize=(4.2 * len(scenarios) + 0.8, 4.6), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(scenarios), sharex="col", sharey="row", squeeze=False, height_ratios=(3, 1.1))
    drawn: list[tuple[str, Story]] = []
    for column, scenario in enumerate(scenarios):
        here = [(n, s) for n, s in zip(names, stories, strict=True) if situation(s.experiment) == scenario]
        draw_metric(panels[0][column], here, colour_places(names), 100 if measure.is_share else 1)
        told = circumstance([story for _, story in here])
        panels[0][column].set_title(told if scenario == "none" else f"{scenario}: {told}", fontsize=10, wrap=True)
        drawn.append(most_telling(here))
        draw_presence(panels[1][column], *drawn[-1])
    panels[0][0].set_ylabel(f"test {measure.words}" + (f", {measure.unit}" if measure.unit else ""))
    panels[1][0].set_ylabel("client")
    panels[0][0].legend(frameon=False, fontsize=8)
    legend_of(figure, [story for _, story in drawn])
    settings: Any = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "holdfast"}  # text stays text
    dates = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}  # the same runs, the same file
    try:
        with matplotlib.rc_context(settings):
            figure.savefig(path, metadata=dates[path.suffix.lower()])
    except OSError as error:
        raise HoldfastError(f"Cannot write {path}: {error.strerror}.") from None


def draw_metric(panel: Any, here: Sequence[tuple[str, Story]], places: Mapping[str, int], scale: float) -> None:
    for method in dict.fromkeys(name for name, _ in here):
        number = places[method]
        rounds, mean, deviation = mean_curve([story for name, story in here if name == method])
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
        panel.plot(rounds, scale * mean, dash, color=colour, label=method, linewidth=1.6)
        low, high = scale * (mean - deviation), scale * (mean + deviation)
        panel.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    panel.grid(alpha=0.25)
    panel.tick_params(labelbottom=False, labelleft=True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def mean_curve(stories: Sequence[Story]) -> tuple[Any, Any, Any]:
    """Rounds, mean and sample deviation of the leading metric; runs may have come to different rounds."""
    found: dict[int, list[float]] = {}
    for story in stories:
        for record in story.records:
            if record.leading is not None:
                found.setdefault(record.round, []).append(record.leading)
    rounds = sorted(found)
    mean = np.array([np.mean(found[round]) for round in rounds])
    spread = np.array([np.std(found[round], ddof=1) if len(found[round]) > 1 else 0.0 for round in rounds])
    return np.array(rounds), mean, spread


def most_telling(here: Sequence[tuple[str, Story]]) -> tuple[str, Story]:
    """The run in which most was done about absent clients."""
    return max(here, key=lambda item: sum(len(r.stand_ins) + len(r.suspects) for r in item[1].records))


def draw_presence(panel: Any, name: str, story: Story) -> None:
    from matplotlib.colors import to_rgb

    clients = range(story.experiment.clients)
    codes = [[presence(record, client) for record in story.records] for client in clients]
    picture = np.array([[to_rgb(GROUND[code]) for code in row] for row in codes])
    last = len(story.records) + 0.5
    if story.records:
        panel.imshow(picture, aspect="auto", interpolation="nearest", extent=(0.5, last, len(clients) - 0.5, -0.5))
    about, experiment = f"round ({name}, seed {story.experiment.seed})", story.experiment
    if hostile := choose_hostile(experiment.clients, experiment.attackers, experiment.seed):
        named = ", ".join(map(experiment.name_of, hostile[:20]))
        about += f"\nhostile: {named}" + (" ..." if len(hostile) > 20 else "")
    panel.set_xlabel(about, fontsize=8)
    panel.tick_params(labelleft=True)
    if experiment.names and len(clients) <= 40:
        panel.set_yticks(list(clients), [name[:24] for name in experiment.names], fontsize=7)
    elif len(clients) <= 12:
        panel.set_yticks(list(clients))
    else:
        panel.yaxis.get_major_locator().set_params(integer=True)


def legend_of(figure: Any, stories: Sequence[Story]) -> None:
    """Name the colours that occur."""
    from matplotlib.patches import Patch

    seen = {
        presence(record, client)
        for story in stories
        for record in story.records
        for client in range(story.experiment.clients)
    }
    patches = [
        Patch(facecolor=GROUND[c], edgecolor="#999999", linewidth=0.5, label=w) for c, w in WORDS.items() if c in seen
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False, fontsize=8)


def save_curves(histories: Sequence[History], path: Path) -> None:
    """Save the figure of these runs, as `holdfast report --png` does: the leading metric, below it who was there."""
    stories = [Story(h.folder or Path("run"), h.experiment, h.records, True, (), (), ()) for h in histories]
    save_figure(stories, path)
