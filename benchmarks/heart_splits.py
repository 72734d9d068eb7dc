"""The tournament's methods on heart, over many test sets: which places are the method's, and which the split's.

    python benchmarks/heart_splits.py [--split 0,1,...,9] [--rounds 12] [--only METHOD ...] [--save NAME]

`holdfast reproduce tournament` holds out one fifth of each hospital, the same for all seeds: 185 records. Here a
split's number draws the fifth that is held out, and seeds the run. Prints AUROC in %, the mean of the splits; ranks are
those of the tournament, among the methods that are played. All fifteen take four minutes of one core.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from saved import save

from holdfast import Experiment, run
from holdfast.data.named import HEART_FILE
from holdfast.data.tables.schema import read_schema
from holdfast.data.tables.source import table_task
from holdfast.play import one_thread
from holdfast.reproduce.results import Cell
from holdfast.reproduce.tournament import OURS, SCENARIOS, SHORTLIST, final_of, ranks_of, short


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--split", default=",".join(map(str, range(10))))
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--only", action="append", choices=[row.name for row in SHORTLIST])
    options.add_argument("--save", default="heart-splits")
    wanted = options.parse_args()
    splits = [int(split) for split in wanted.split.split(",")]
    tasks = {split: table_task(read_schema(HEART_FILE.with_suffix(".toml")), HEART_FILE, split) for split in splits}
    cells = []
    for scenario in SCENARIOS:
        for row in (row for row in SHORTLIST if not wanted.only or row.name in wanted.only):
            keys = {**short(wanted.rounds), **row.keys, "model": "features", "scenario": scenario}
            values = [final_of(row.name, run(Experiment(task=tasks[split], seed=split, **keys))) for split in splits]
            cells.append(Cell(row.name, scenario, tuple(100 * value for value in values)))
            print(f"{scenario:12} {row.name:24} {cells[-1]}", flush=True)
    save(wanted.save, by_rank(cells), splits)


def by_rank(cells: Sequence[Cell]) -> dict[tuple[str, str], Sequence[float]]:
    """Mean ranks with their intervals, all values, and how far each method is ahead of FedDig on each split."""
    found: dict[tuple[str, str], Sequence[float]] = {}
    for row, place in ranks_of(cells).items():
        found |= {(row, what): [value] for what, value in zip(("mean rank", "95 %: from", "to"), place, strict=True)}
        found |= {(row, cell.column): cell.values for cell in cells if cell.row == row}
    for row in {row: None for row, _ in found}:
        found[row, f"mean, less {OURS}'s"] = [a - b for a, b in zip(means(cells, row), means(cells, OURS), strict=True)]
    return found


def means(cells: Sequence[Cell], row: str) -> list[float]:
    """The mean over the scenarios, for each split.

    >>> means([Cell("a", "none", (1.0, 2.0)), Cell("a", "group", (3.0, 6.0)), Cell("b", "none", (9.0, 9.0))], "a")
    [2.0, 4.0]
    """
    return [
        statistics.fmean(values) for values in zip(*(cell.values for cell in cells if cell.row == row), strict=True)
    ]


if __name__ == "__main__":
    with one_thread():
        main()
