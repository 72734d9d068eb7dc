"""The jury's constants halved and doubled, one at a time: what is lost without attack and to some.

    python benchmarks/constants.py --seed 200,201 --save constants
    python benchmarks/constants.py --data fashion --attack "none,door stripe" --constant "FURTHER,SUSPECT" --seed 200

"Lost" as in adversary.py, against the same yardsticks; of a backdoor it is how often the stamp works, in %. Each run is
one line of the --out file and is not played again. A constant is insensitive where its row does not differ from "as
they are" by more than a point on any data.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from adversary import DATA, Lines, settings_of
from saved import save

from holdfast.trust import backdoor_probe, floor, jury, panel, reputation, unlearning, words

CONSTANTS: dict[str, tuple[ModuleType, str, str | None]] = {
    **{name: (jury, name, None) for name in ("LOUD", "QUIET", "MOST_SAMPLES", "TWIN")},
    **{name: (reputation, name, None) for name in ("TELLING", "LEARNT", "REPORTS", "CLEARLY")},
    **{f"RAMPS {name}": (reputation, "RAMPS", name) for name in ("reputation", "planted")},
    "TELL": (words, "TELL", None),
    "BEYOND": (words, "BEYOND", None),
    "1 - FORGET": (floor, "FORGET", None),
    "SHARP": (panel, "SHARP", None),
    **{name: (backdoor_probe, name, None) for name in ("FURTHER", "OF_EACH", "RECORDS", "STEPS", "LEAST", "SUSPECT")},
    **{name: (unlearning, name, None) for name in ("RIDGE", "AWAY")},
}
COUNTS = ("TELL", "OF_EACH", "RECORDS", "STEPS")
OPTIONS = {"slow": 0.05, "lose": 0.02}
HOSTILE = {"heart": 1, "five": 1, "breast": 2}


def scaled(value: Any, name: str, factor: float) -> Any:
    """
    >>> scaled((-0.5, -0.25), "RAMPS reputation", 2), scaled(0.75, "1 - FORGET", 2)
    ((-1.0, -0.5), 0.5)
    """
    if isinstance(value, tuple):
        return tuple(factor * part for part in value)
    if name == "1 - FORGET":
        return 1 - factor * (1 - value)
    return int(factor * value) if name in COUNTS else factor * value


@contextmanager
def changed(name: str, factor: float) -> Iterator[None]:
    """With one constant of the rule times a factor."""
    module, attribute, key = CONSTANTS[name]
    before = getattr(module, attribute)
    after = scaled(before, name, factor) if key is None else before | {key: scaled(before[key], name, factor)}
    setattr(module, attribute, after)
    try:
        yield
    finally:
        setattr(module, attribute, before)


def lost(lines: Lines, data: str, attack: str, seed: int, name: str, factor: float) -> float:
    """Points of one run with one constant, or option, changed."""
    settings = settings_of(data, "jury", attack, HOSTILE.get(data, 4), seed)
    if name in OPTIONS:
        settings["trust"] = {"name": "jury", name: min(1.0, factor * OPTIONS[name])}
        found = lines.get(settings)
    elif name in CONSTANTS:
        with changed(name, factor):
            found = lines.get(settings, f"{name} x {factor:g}")
    else:
        found = lines.get(settings)
    if found["backdoor"] is not None:
        return 100 * float(found["backdoor"])
    beside = ("fedavg", "none") if attack == "none" else ("jury", "away")
    yardstick = lines.get(settings_of(data, *beside, HOSTILE.get(data, 4), seed))
    return float(yardstick["accuracy"] - found["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", default="fashion,fashion-classes,breast")
    parser.add_argument("--attack", default="none,late,random")
    parser.add_argument("--constant", default=",".join(["as they are", *CONSTANTS, *OPTIONS]))
    parser.add_argument("--seed", default="200,201")
    parser.add_argument("--save", help="write the table to docs/results under this name")
    parser.add_argument("--out", type=Path, default=Path("runs/constants.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines, seeds = Lines(options.out), [int(seed) for seed in options.seed.split(",")]
    cells: dict[tuple[str, str], list[float]] = {}
    for name in options.constant.split(","):
        for factor in (0.5, 2.0) if name != "as they are" else (1.0,):
            row = name if factor == 1 else f"{name} x {factor:g}"
            for data in options.data.split(","):
                for attack in options.attack.split(","):
                    column = f"{data}, {DATA[data].get('clients', 4)} members: {attack}"
                    cells[row, column] = [lost(lines, data, attack, seed, name, factor) for seed in seeds]
                    print(f"{row:24} {column:30} {statistics.fmean(cells[row, column]):+5.1f}", flush=True)
    if options.save:
        wanted = ("data", "attack", "constant", "seed", "save")
        words = [word for key in wanted for word in (f"--{key}", getattr(options, key))]
        command = shlex.join(["python", "benchmarks/constants.py", *words])
        save(options.save, cells, seeds, corner="points lost", command=command)


if __name__ == "__main__":
    main()
