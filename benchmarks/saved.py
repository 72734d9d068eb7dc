"""Saved results, and the tables of docs that are made of them.

    from saved import save
    save("bytes", {("int8", "accuracy"): [75.2, 76.1, 76.0]}, seeds=[0, 1, 2])   # at the end of a benchmark

    python benchmarks/saved.py keep NAME FOLDER "COMMAND"    # what `holdfast compare` or `reproduce` left in FOLDER
    python benchmarks/saved.py record NAME PAGE LINE SEEDS "COMMAND" DATE    # a table that was typed, at that line
    python benchmarks/saved.py tables                        # write the tables anew

docs/results/NAME.json has a value for each seed, the command, the versions and the machine. In a page a line
`<!-- results/NAME.json -->` stands before the table and `<!-- end -->` behind it: what is between them is never typed.
`<!-- results/NAME.json: FedAvg; FedVARP -->` takes some rows alone. A tournament is kept as NAME.json (ranks, and means
where somebody is away), NAME-TASK.json and NAME-TASK-away.json. What was typed before results were saved is recorded as
it stood, with the day of its run, and says so; the next run of a benchmark that saves takes its place.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.report.words import NAMES
from holdfast.reproduce.fedtest import LEVELS, PLAIN, rounds_to
from holdfast.runs.environment import environment

DOCS = Path(__file__).parents[1] / "docs"
MADE = re.compile(r"(<!-- ((?:\.\./)?results/[\w-]+\.json)(?:: ([^\n]+))? -->\n).*?(<!-- end -->)", re.DOTALL)
Cells = Mapping[tuple[str, str], Sequence[float] | str]  # (row, column) -> a value for each seed, or words


def save(
    name: str,
    cells: Cells,
    seeds: Sequence[int],
    *,
    corner: str = "",
    digits: int | Mapping[str, int] = 1,
    command: str | None = None,
) -> Path:
    """Write docs/results/NAME.json; `digits` are those behind the point, of all columns or of each."""
    if command is None:
        script = Path(sys.argv[0]).resolve().relative_to(DOCS.parent)
        command = shlex.join(["python", str(script), *without_places(sys.argv[1:])])
    rows: dict[str, dict[str, list[float] | str]] = {}
    for (row, column), values in cells.items():
        rows.setdefault(row, {})[column] = values if isinstance(values, str) else [round(float(v), 4) for v in values]
    here = environment()
    versions = {"Holdfast": here["packages"].get("holdfast"), "PyTorch": here["packages"]["torch"]}
    machine = f"{os.cpu_count()} cores, {here['machine']}, {here['cpu']}, {here['device']}, Python {here['python']}"
    about = {"command": command, "seeds": list(seeds), "versions": versions, "machine": machine}
    path = DOCS / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**about, "corner": corner, "digits": digits, "rows": rows}, indent=1) + "\n")
    return path


def without_places(words: Sequence[str]) -> list[str]:
    """A command's words without where on this machine something lies: nobody else has it there.

    >>> without_places(["--out", "/tmp/runs.jsonl", "--seed", "0"])
    ['--seed', '0']
    """
    named = ("--out", "--files")
    return [word for before, word in zip(["", *words], words, strict=False) if not {before, word} & set(named)]


def save_parts(
    name: str,
    cells: Cells,
    command: str,
    *,
    corner: str = "figure",
    seeds: Sequence[int] = (),
    digits: int | Mapping[str, int] = 1,
) -> None:
    """Save what was measured beside what an earlier run measured of the rest, and show the table."""
    path = DOCS / "results" / f"{name}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else {}
    before: Cells = {(row, column): value for row, found in rows.items() for column, value in found.items()}
    save(name, {**before, **cells}, seeds, corner=corner, digits=digits, command=command)
    print(table(json.loads(path.read_text()), f"results/{path.name}"))


def keep(name: str, folder: Path, command: str) -> Path:
    """Save what `holdfast compare` (methods by scenarios) or `holdfast reproduce` left in a folder.

    NAME-away.json has the values on the data of those who are away at the end.
    """
    found = json.loads((folder / "results.json").read_text())
    if "ranks" in found:
        return keep_tournament(name, found, command)
    if "curves" in found:
        return keep_curves(name, found, command)
    cells: dict[tuple[str, str], list[float]] = {}
    if "cells" in found:
        for part, group in (("-away", found.get("of_those_away", ())), ("", found["cells"])):
            cells = {(cell["row"], cell["column"]): cell["values"] for cell in group}
            path = save(name + part, cells, found["seeds"], command=command) if cells else None
        assert path is not None
        return path
    apart: dict[tuple[str, str], list[float]] = {}
    seeds = sorted({row["seed"] for row in found["rows"]})
    for row in found["rows"]:
        share = 100 if "final_accuracy" in row else 1
        method = re.sub(r"[a-z]\w*", lambda word: NAMES.get(word[0], word[0]), row["method"]).replace("+", " + ")
        cells.setdefault((method, row["scenario"]), []).append(share * row["final"])
        if row["metric"] in row["absent_metrics"]:
            value = row["absent_metrics"][row["metric"]]
            apart.setdefault((method, row["scenario"]), []).append(share * value)
    if apart:
        save(f"{name}-away", apart, seeds, command=command)
    return save(name, cells, seeds, command=command)


def keep_tournament(name: str, found: Mapping[str, Any], command: str) -> Path:
    """A table for each task, and one of ranks and of means over the scenarios in which somebody is away."""
    away: dict[str, dict[str, list[Sequence[float]]]] = {}
    for part, group in (("-away", found["of_those_away"]), ("", found["cells"])):
        tasks: dict[str, dict[tuple[str, str], list[float]]] = {}
        ordered = sorted(group, key=lambda cell: list(found["ranks"]).index(cell["row"]))
        for cell in ordered:
            task, _, scenario = cell["column"].partition(", ")
            tasks.setdefault(task, {})[cell["row"], scenario] = cell["values"]
            if not part and scenario != "none":
                away.setdefault(cell["row"], {}).setdefault(task, []).append(cell["values"])
        for task, cells in tasks.items():
            save(f"{name}-{task}{part}", cells, found["seeds"], command=command)
    means: dict[tuple[str, str], Sequence[float]] = {}
    for row, place in found["ranks"].items():
        means |= {(row, what): [value] for what, value in zip(("mean rank", "95 %: from", "to"), place, strict=True)}
        of_task = {task: [statistics.fmean(seed) for seed in zip(*v, strict=True)] for task, v in away[row].items()}
        means |= {(row, task): values for task, values in of_task.items()}
        if len(of_task) > 1:
            means[row, "mean of these"] = [statistics.fmean(seed) for seed in zip(*of_task.values(), strict=True)]
    return save(name, means, found["seeds"], command=command)


def keep_curves(name: str, found: Mapping[str, Any], command: str) -> Path:
    """FedTest's figure 4 or 5: where each curve ends, its best round, and how soon it is at what FedAvg comes to."""
    curves = found["curves"]
    marks = {curve["method"]: curve["final"] for curve in curves if not curve["attackers"]}
    cells: dict[tuple[str, str], Sequence[float] | str] = {}
    for curve in curves:
        scale = "" if curve["scale"] == 1 else f", random weights x {curve['scale']:g}"
        row = f"{curve['method']}, {curve['attackers'] or 'none'} malicious{scale}"
        cells[row, "rounds"] = f"{len(curve['accuracy'])}"
        cells[row, "last three"] = [100 * statistics.fmean(seed[-3:]) for seed in curve["seeds"]]
        cells[row, "best"] = [100 * max(seed) for seed in curve["seeds"]]
        for level, what in zip(LEVELS, ("80 % of the mark in", "the mark in"), strict=True):
            reached = rounds_to(curve["accuracy"], level * marks[PLAIN[curve["method"]]])
            cells[row, what] = f"{reached}" if reached else f"more than {len(curve['accuracy'])}"
        if curve["kept"] is not None:
            cells[row, "malicious clients' weight"] = [100 * curve["kept"]]
    return save(name, cells, found["seeds"], command=command)


def record(name: str, page: Path, line: int, seeds: Sequence[int], command: str, date: str) -> Path:
    """Take a table that was typed out of a page (its first line is `line`, from 1) into a file, as it stood."""
    lines = page.read_text().splitlines()
    last = next((n for n in range(line, len(lines)) if not lines[n].startswith("|")), len(lines))
    head, _, *body = [[cell.strip() for cell in text.strip()[1:-1].split("|")] for text in lines[line - 1 : last]]
    rows = {cells[0]: dict(zip(head[1:], cells[1:], strict=True)) for cells in body}
    assert len(rows) == len(body), "two rows have one name"
    assert len({*head}) == len(head), "two columns have one name"
    about = {"command": command, "seeds": list(seeds), "recorded": date, "corner": head[0], "digits": 1, "rows": rows}
    path = DOCS / "results" / f"{name}.json"
    path.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    lines[line - 1 : last] = [f"<!-- results/{path.name} -->", "<!-- end -->"]
    page.write_text(made_anew("\n".join(lines) + "\n"))
    return path


def table(saved: Mapping[str, Any], where: str) -> str:
    """The table, and below it what made it.

    >>> saved = {"corner": "rule", "digits": 1, "rows": {"a": {"%": [80.0, 82.0]}, "b": {"%": [7.0]}}, "seeds": [0, 1]}
    >>> print(table({**saved, "command": "python b.py", "versions": {"torch": "2.13"}}, "results/b.json"))
    | rule | % |
    |---|---:|
    | a | 81.0 ± 1.4 |
    | b | 7.0 |
    <BLANKLINE>
    <small>`python b.py`, seeds 0 and 1; torch 2.13. [Every value](results/b.json)</small>
    """
    rows, digits = saved["rows"], saved["digits"]
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    places = digits if isinstance(digits, Mapping) else dict.fromkeys(columns, digits)
    worded = [column for column in columns if any(is_worded(cells.get(column, "")) for cells in rows.values())]
    sides = "".join("---|" if column in worded else "---:|" for column in columns)
    lines = [f"| {' | '.join([saved['corner'], *columns])} |", f"|---|{sides}"]
    for row, cells in rows.items():
        texts = [text(cells.get(column, ()), places.get(column, 1)) for column in columns]
        lines.append(f"| {' | '.join([row, *texts])} |")
    if "recorded" in saved:
        made = f"recorded from the run of {saved['recorded']}, whose values of each seed were not kept"
        made += f". [As a file]({where})"
    else:
        versions = ", ".join(f"{what} {which}" for what, which in saved["versions"].items())
        made = f"{versions}. [Every value]({where})"
    seeds = f", {told(saved['seeds'])}" if saved["seeds"] else ""
    said = f"`{saved['command']}`{seeds}; {made}"
    return "\n".join([*lines, "", f"<small>{said}</small>"])


def is_worded(values: Sequence[float] | str) -> bool:
    """Whether a cell says something other than a number."""
    return isinstance(values, str) and bool(values) and not re.match(r"[\d.+*(<-]|infinite", values)


def text(values: Sequence[float] | str, digits: int) -> str:
    """A mean and its deviation; what was recorded as text stays so."""
    if isinstance(values, str):
        return values
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 and len({*values}) > 1 else ""
    return f"{statistics.mean(values):,.{digits}f}{spread}"


def told(seeds: Sequence[int]) -> str:
    """
    >>> told([0]), told([0, 1, 2]), told([3, 5])
    ('seed 0', 'seeds 0 to 2', 'seeds 3 and 5')
    """
    words = [str(seed) for seed in seeds]
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' * (len(seeds) > 1)} " + " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def made_anew(page: str) -> str:
    """A page with its tables as the saved results have them."""

    def anew(found: re.Match[str]) -> str:
        saved = json.loads((DOCS / found[2].removeprefix("../")).read_text())
        if found[3]:
            saved["rows"] = {row: saved["rows"][row] for row in found[3].split("; ")}
        return f"{found[1]}{table(saved, found[2])}\n{found[4]}"

    return MADE.sub(anew, page)


def main(words: Sequence[str]) -> None:
    if len(words) == 4 and words[0] == "keep":
        print(keep(words[1], Path(words[2]), words[3]))
    elif len(words) == 7 and words[0] == "record":
        seeds = [int(seed) for seed in words[4].split(",")]
        print(record(words[1], Path(words[2]), int(words[3]), seeds, words[5], words[6]))
    elif list(words) == ["tables"]:
        for path in sorted(DOCS.rglob("*.md")):
            path.write_text(made_anew(path.read_text()))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
