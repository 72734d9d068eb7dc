"""The tournament: all methods in all scenarios on the same work, with ranks, intervals and the absent members apart.

Every method has the same features, network, steps and rounds; settings are the methods' usual ones, tuned for nobody.
A rank is a method's place among those played, in one condition with one seed; the interval of a mean rank is the middle
95 % of its means over conditions and seeds drawn again with replacement.
"""

from __future__ import annotations

import html
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from holdfast.core.errors import HoldfastError, nearest
from holdfast.data.metrics import values_of
from holdfast.reproduce.plans import Column, Keys, Reproduction, Row
from holdfast.reproduce.results import Cell, Played, table_lines
from holdfast.rivals.ensemble import votes
from holdfast.runs.build import make_plan
from holdfast.runs.history import History

OURS, ENSEMBLE = "FedDig", "ensemble of last models"
SHORTLIST = [
    Row("FedAvg", {}),
    Row("FedProx", {"algorithm": "fedprox"}),
    Row("FedNova", {"algorithm": "fednova"}),
    Row("SCAFFOLD", {"algorithm": "scaffold"}),
    Row("MIFA", {"absence": "memory", "trust": "uniform"}),
    Row("memory, decay 0.8", {"absence": "memory:0.8", "trust": "uniform"}),
    Row("FedVARP", {"algorithm": "fedvarp"}),
    Row("FedStale", {"algorithm": "fedstale"}),
    Row("FedAU", {"algorithm": "fedau"}),
    Row("friends", {"absence": "friends"}),
    Row("MOON", {"algorithm": "moon"}),
    Row("GradMA, server", {"algorithm": "gradma:client=false"}),
    Row("FSL, 100 samples", {"absence": "fsl"}),
    Row(ENSEMBLE, {"absence": "ensemble"}),
    Row(OURS, {"absence": "feddig"}),
]
# Mime's step is lr ((1 - 0.9) g + 0.9 m), ten times as short as that of SGD with momentum 0.9 at the same lr, 0.02.
MIME_LR = 0.2
ON_REQUEST = [
    Row("FedDyn", {"algorithm": "feddyn"}),
    Row("AdaBest", {"algorithm": "adabest"}),
    Row("GradMA", {"algorithm": "gradma"}),
    Row("FedMix", {"algorithm": "fedmix", "absence": "mafl"}),
    Row("NaiveMix", {"algorithm": "naivemix", "absence": "mafl"}),
    Row("class weights", {"algorithm": "classweights", "absence": "mafl"}),
    Row("CFeD, server", {"absence": "cfed"}),
    Row("DeMoA", {"trust": "demoa"}),
    Row("SCAFFOLD + FedDig", {"algorithm": "scaffold", "absence": "feddig"}),
    Row("FedDig, epsilon 3", {"absence": "feddig:mode=moments,epsilon=3"}),
    Row("Mime", {"algorithm": "mime", "lr": MIME_LR}),
    Row("MimeLite", {"algorithm": "mimelite", "lr": MIME_LR}),
    Row("local adaptivity", {"algorithm": "lac", "optimizer": "adam", "lr": 0.002}),
    Row("FedAvgM", {"server_optimizer": "momentum"}),
    Row("FedAdagrad", {"server_optimizer": "adagrad"}),
    Row("FedAdam", {"server_optimizer": "adam"}),
    Row("FedYogi", {"server_optimizer": "yogi"}),
    Row("2 asked: by chance", {"selection": "uniform:2"}),
    Row("2 asked: by size", {"selection": "size:2"}),
    Row("2 asked: power of choice", {"selection": "power-of-choice:2"}),
    Row("2 asked: TiFL's tiers", {"selection": "tiers:2"}),
    Row("2 asked: k-centres", {"selection": "k-centres:2"}),
]
SCENARIOS = ("none", "temporary", "forever", "sequential", "group", "arrival", "markov")
FOUR = {"clients": 4, "partition": "dirichlet:0.1"}


def short(rounds: int) -> Keys:
    """So many rounds, with one test and one checkpoint at the end: more would take longer than the training."""
    return {"rounds": rounds, "evaluate_every": rounds, "checkpoint_every": rounds, "workers": 0}


TASKS: dict[str, dict[str, Keys]] = {
    "small": {
        "fashion-mini": {"task": "fashion-mini", "samples": 1000, **FOUR},
        "heart": {"task": "heart"},
    },
    "full": {
        "fashion-mini": {"task": "fashion-mini", **FOUR},
        "cifar10": {"task": "cifar10", "samples": 12_000, "encoder": "pretrained", **FOUR},
        "heart": {"task": "heart"},
        "ocr-letters": {"task": "ocr-letters", "samples": 4000, **FOUR, **short(12)},  # 26 classes learn soon
    },
}
ROUNDS = {"small": 12, "full": 24}
DRAWS = 2000  # of conditions and seeds, for the interval of a mean rank


def tournament(scale: str, parts: Sequence[str] = ()) -> Reproduction:
    """What is played: the shortlist, or the methods, tasks and scenarios that are named."""
    if scale not in TASKS:
        raise HoldfastError(f"reproduce --scale: {scale!r} is not known; the tournament has 'small' and 'full'.")
    rows, tasks = [*SHORTLIST, *ON_REQUEST], TASKS[scale]
    names = [row.name for row in rows]
    for part in parts:
        if part not in (*names, *tasks, *SCENARIOS):
            known = [*names, *tasks, *SCENARIOS]
            raise HoldfastError(f"reproduce --only: the tournament has no {part!r}; {nearest(part, known)}")
    chosen = [row for row in rows if row.name in parts] or SHORTLIST
    columns = [
        Column(f"{task}, {scenario}", {**keys, "scenario": scenario})
        for task, keys in tasks.items()
        if task in parts or not set(parts) & set(tasks)
        for scenario in SCENARIOS
        if scenario in parts or not set(parts) & set(SCENARIOS)
    ]
    base = {"task": "fashion-mini", "model": "features", **short(ROUNDS[scale])}
    return Reproduction("tournament", f"The tournament, {scale}", base, chosen, columns, beside=None)


def cells_of(played: Played) -> list[Cell]:
    """The leading metric in the last round, in %, a value for each seed."""
    return [
        Cell(row, column, tuple(100 * final_of(row, history) for history in histories))
        for (row, column), histories in played.items()
    ]


def final_of(row: str, history: History) -> float:
    found = ensemble_final(history) if row == ENSEMBLE else history.final
    if found is None:
        raise HoldfastError(f"tournament: a run of {row} was never tested.")
    return found


def ensemble_final(history: History) -> float:
    """The leading metric of the ensemble on the test set."""
    assert history.state is not None
    plan = make_plan(history.experiment)
    test = plan.prepare(plan.task.test)
    away = history.records[-1].absent
    said = votes(plan.model(), history.state, away, plan.experiment.clients, test)
    return values_of(plan.task.metrics, said.clamp(min=1e-12).log(), test.labels, test.weights)[history.measure.name]


def ranks_of(cells: Sequence[Cell]) -> dict[str, tuple[float, float, float]]:
    """The mean rank of each method with its interval, the best first.

    >>> found = ranks_of([Cell("a", "x", (9.0, 8.0)), Cell("b", "x", (7.0, 8.0))])
    >>> found["a"][0], found["b"][0]
    (1.25, 1.75)
    """
    blocks: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for cell in cells:
        for seed, value in enumerate(cell.values):
            blocks[cell.column, seed][cell.row] = value
    places = [places_in(block) for block in blocks.values()]
    rows = list(dict.fromkeys(cell.row for cell in cells))
    table = torch.tensor([[block[row] for row in rows] for block in places if len(block) == len(rows)])
    if not len(table):
        return {}
    draws = torch.randint(len(table), (DRAWS, len(table)), generator=torch.Generator().manual_seed(0))
    means = table[draws].mean(1)
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975]), dim=0)
    found = {row: (float(table[:, i].mean()), float(low[i]), float(high[i])) for i, row in enumerate(rows)}
    return dict(sorted(found.items(), key=lambda item: item[1][0]))


def places_in(values: Mapping[str, float]) -> dict[str, float]:
    """Who is first, second, ...; equal values share the mean of their places.

    >>> places_in({"a": 3.0, "b": 5.0, "c": 3.0})
    {'a': 2.5, 'b': 1.0, 'c': 2.5}
    """
    return {
        row: 1 + sum(other > value for other in values.values()) + (sum(o == value for o in values.values()) - 1) / 2
        for row, value in values.items()
    }


def findings(cells: Sequence[Cell], played: Played) -> list[str]:
    """Where FedDig is first, where not and by how much, and whether that is within the interval of its test."""
    lines = []
    for column in dict.fromkeys(cell.column for cell in cells):
        there = {cell.row: cell.mean for cell in cells if cell.column == column}
        if OURS not in there or len(there) < 2:
            continue
        best = max((row for row in there if row != OURS), key=lambda row: there[row])
        ahead = there[OURS] - there[best]
        if ahead >= 0:
            lines.append(f"{column}: {OURS} is first, {ahead:.1f} over {best}.")
            continue
        half = statistics.fmean(half_interval(history) for history in played[OURS, column])
        within = "within" if -ahead <= 100 * half else "beyond"
        lines.append(
            f"{column}: {best} is {-ahead:.1f} over {OURS}, {within} the interval of its test (± {100 * half:.1f})."
        )
    return lines


def half_interval(history: History) -> float:
    interval = history.records[-1].interval
    return 0.0 if interval is None else (interval[1] - interval[0]) / 2


def means_of(cells: Sequence[Cell]) -> dict[str, float]:
    """The mean over all columns but those in which nobody is away."""
    found: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        if not cell.column.endswith(", none"):
            found[cell.row].append(cell.mean)
    return dict(sorted(((row, statistics.fmean(v)) for row, v in found.items()), key=lambda item: -item[1]))


def sections(cells: Sequence[Cell], apart: Sequence[Cell]) -> list[tuple[str, list[str]]]:
    """The tables: titles and lines of markdown. Scenarios are the columns, a table for each task."""
    ranks, means = ranks_of(cells), means_of(cells)
    order = list(ranks) or list(dict.fromkeys(cell.row for cell in cells))
    lines = ["| | mean rank | 95 % | mean where somebody is away |", "|---|---:|---:|---:|"]
    for row, (mean, low, high) in ranks.items():
        mean_away = f"{means[row]:.1f}" if row in means else ""
        lines.append(f"| {row} | {mean:.1f} | {low:.1f} to {high:.1f} | {mean_away} |")
    found = [("Ranks", lines)]
    for title, part in (("Test set", cells), ("On the data of those who are away at the end", apart)):
        for task in dict.fromkeys(cell.column.partition(", ")[0] for cell in part):
            own = [
                Cell(cell.row, cell.column.partition(", ")[2], cell.values)
                for row in order
                for cell in part
                if cell.row == row and cell.column.partition(", ")[0] == task
            ]
            found.append((f"{title}: {task}", table_lines(own)))
    return found


def as_markdown(title: str, what: str, tables: Sequence[tuple[str, list[str]]], said: Sequence[str]) -> str:
    parts = [f"# {title}", "", what]
    for name, lines in tables:
        parts += ["", f"## {name}", "", *lines]
    return "\n".join([*parts, "", *(f"- {line}" for line in said)]) + "\n"


def as_page(title: str, what: str, tables: Sequence[tuple[str, list[str]]], said: Sequence[str]) -> str:
    """The same as one HTML file without scripts."""
    body = [f"<h1>{html.escape(title)}</h1><p>{html.escape(what)}</p>"]
    for name, lines in tables:
        rows = [[html.escape(cell.strip()) for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]
        head = "".join(f"<th>{cell}</th>" for cell in rows[0])
        rest = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows[1:])
        body.append(f"<h2>{html.escape(name)}</h2><table><tr>{head}</tr>{rest}</table>")
    body.append("<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in said) + "</ul>")
    style = (
        "body{font:16px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em}td,th{padding:.2em .7em}"
    )
    style += "td:not(:first-child){text-align:right}tr:nth-child(even){background:#8881}"
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    head = f'<meta charset="utf-8">{policy}<title>{html.escape(title)}</title><style>{style}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'
