"""From histories to numbers: the measured cells of a table, with the paper's beside them, as JSON and as markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.types import Tensors
from holdfast.digests.digest import open_digest
from holdfast.report.words import on_absent
from holdfast.reproduce.paper import BYTES, DIGESTS, SECONDS, SIZE
from holdfast.reproduce.plans import BASELINES, Reproduction
from holdfast.runs.history import History

CENTRALISED, LDA = "centralised", "LDA from the digests alone"
APART = "On the data of those who are away at the end, in %"


@dataclass(frozen=True)
class Cell:
    """One number of a table: a value for each seed, and the paper's if it prints one."""

    row: str
    column: str
    values: tuple[float, ...]
    paper: float | None = None

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    def __str__(self) -> str:
        """The mean, its deviation over seeds, and the paper's number in brackets.

        >>> str(Cell("FedDig", "none", (80.0, 82.0), 83.5)), str(Cell("FedDig", "group", (80.0,)))
        ('81.0 ± 1.4 [83.5]', '80.0')
        """
        digits = 0 if abs(self.mean) >= 200 else 1 if abs(self.mean) >= 10 else 2
        spread = f" ± {self.deviation:.{digits}f}" if len(self.values) > 1 else ""
        return f"{self.mean:.{digits}f}{spread}" + ("" if self.paper is None else f" [{printed(self.paper)}]")


def printed(number: float) -> str:
    """A number as the paper prints it: accuracies with one digit, sizes with two.

    >>> printed(53.0), printed(4.77), printed(1272.0)
    ('53.0', '4.77', '1272')
    """
    return f"{number:.1f}" if number < 100 and round(number, 1) == number else f"{number:g}"


Played = Mapping[tuple[str, str], Sequence[History]]  # (row, column) -> a history for each seed
Extra = Mapping[tuple[str, str], Sequence[float]]  # (row, column) -> accuracies that are no run's own


def cells_of(wanted: Reproduction, played: Played, extra: Extra) -> list[Cell]:
    """All cells, in the order in which they were played."""
    if wanted.cost:
        return cost_cells(wanted, played)
    known = {row.name: row.paper for row in wanted.rows} | {CENTRALISED: CENTRALISED}
    found: dict[tuple[str, str], Sequence[float]] = {
        place: [100 * history.final_accuracy for history in histories] for place, histories in played.items()
    }
    found |= {place: [100 * value for value in values] for place, values in extra.items()}
    return [
        Cell(row, column, tuple(values), wanted.printed.get((known.get(row) or "", column)))
        for (row, column), values in found.items()
    ]


def cells_apart(played: Played) -> list[Cell]:
    """The same on the data of those who are away in the last round; conditions in which all are there are left out."""
    found = {place: [on_absent(history.records) for history in histories] for place, histories in played.items()}
    return [
        Cell(row, column, tuple(100 * value for value in values if value is not None))
        for (row, column), values in found.items()
        if None not in values
    ]


def cost_cells(wanted: Reproduction, played: Played) -> list[Cell]:
    """Table II: what a round costs, for each row."""
    known = {row.name: row.paper or "" for row in wanted.rows}
    cells = []
    for (row, _), histories in played.items():
        costs = [costs_of(history) for history in histories]
        for column in costs[0]:
            values = tuple(cost[column] for cost in costs)
            cells.append(Cell(row, column, values, wanted.printed.get((known[row], column))))
    return cells


def costs_of(history: History) -> dict[str, float]:
    """Bytes and seconds of one run with all clients present; the first round, when digests travel, is not timed."""
    first, later = history.records[0], history.records[1:]
    seconds = [sum(record.seconds.values()) - record.seconds.get("evaluate", 0.0) for record in later]
    update = later[-1].bytes_up / history.experiment.clients
    costs = {SIZE: update / 1e6, SECONDS: statistics.mean(seconds)}
    if history.state is not None and history.state.digests:
        sent = first.bytes_up - later[-1].bytes_up
        costs |= {DIGESTS: sent / 1e6, BYTES: sent / sum(map(digests_in, history.state.digests.values()))}
    return costs


def digests_in(sealed: Tensors) -> int:
    """How many digests of mixed samples a client has sent; moments count as one."""
    content = {name: tensor for name, tensor in sealed.items() if name != "claim"}
    return len(open_digest(content)) if "features" in content else 1


def findings(wanted: Reproduction, cells: Sequence[Cell]) -> list[str]:
    """What should be said of the numbers: how far FedDig is ahead, and where it is not."""
    found = {(cell.row, cell.column): cell.mean for cell in cells}
    if wanted.cost:
        pairs = [("FedDig as printed", "FedAvg"), ("FedDig, features", "FedAvg, features")]
        return [
            f"A round of {one} takes {found[one, SECONDS] / found[other, SECONDS]:.2f}x that of {other} (paper: 1.87x)."
            for one, other in pairs
            if (one, SECONDS) in found and (other, SECONDS) in found
        ]
    lines = []
    for column in dict.fromkeys(cell.column for cell in cells):
        for row, other in ((f"FedDig{tail}", f"FedAvg{tail}") for tail in ("", ", none", ", sequential")):
            if (row, column) in found and (other, column) in found:
                lines.append(f"{column}: {row} is {points_over(found, row, other, column)}.")
        dig, lda = found.get((wanted.beside or "", column)), found.get((LDA, column))
        if dig is not None and lda is not None and dig <= lda:
            lines.append(
                f"{column}: {wanted.beside} is not ahead of LDA from its digests ({dig:.1f} against {lda:.1f})."
            )
    return lines


def points_over(found: Mapping[tuple[str, str], float], row: str, other: str, column: str) -> str:
    """How far a row is ahead of FedAvg and of the best baseline, if that is another."""
    ours = found[row, column]
    best = max((name for name in BASELINES if (name, column) in found), key=lambda n: found[n, column], default=other)
    text = f"{ours - found[other, column]:+.1f} points over {other}"
    if best == other:
        return text
    return f"{text}, {ours - found[best, column]:+.1f} over the best baseline, {best} ({found[best, column]:.1f})"


def to_json(
    wanted: Reproduction, cells: Sequence[Cell], apart: Sequence[Cell], about: Mapping[str, Any]
) -> dict[str, Any]:
    """All that is known of a reproduction."""
    return {
        "name": wanted.name,
        "title": wanted.title,
        **about,
        "cells": [cell_to_json(cell) for cell in cells],
        "of_those_away": [cell_to_json(cell) for cell in apart],
        "findings": findings(wanted, cells),
        "remarks": list(wanted.remarks),
    }


def cell_to_json(cell: Cell) -> dict[str, Any]:
    return {
        "row": cell.row,
        "column": cell.column,
        "mean": cell.mean,
        "deviation": cell.deviation,
        "values": list(cell.values),
        "paper": cell.paper,
    }


def as_markdown(wanted: Reproduction, cells: Sequence[Cell], apart: Sequence[Cell], about: Mapping[str, Any]) -> str:
    """The tables as markdown, with what was played."""
    lines = [f"# {wanted.title}", "", f"{about['what']} In brackets: the paper's number.", "", *table_lines(cells)]
    if apart:
        lines += ["", f"{APART}:", "", *table_lines(apart)]
    said = [*findings(wanted, cells), *wanted.remarks, *about["left_out"]]
    return "\n".join([*lines, "", *(f"- {line}" for line in said)]) + "\n"


def table_lines(cells: Sequence[Cell]) -> list[str]:
    rows, columns, texts = grid(cells)
    head = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    return head + [f"| {row} | " + " | ".join(texts.get((row, one), "") for one in columns) + " |" for row in rows]


def grid(cells: Sequence[Cell]) -> tuple[list[str], list[str], dict[tuple[str, str], str]]:
    """The rows, the columns, and the text of each cell."""
    rows, columns = (list(dict.fromkeys(getattr(cell, part) for cell in cells)) for part in ("row", "column"))
    return rows, columns, {(cell.row, cell.column): str(cell) for cell in cells}
