"""Backdoors of several shapes x rules: how often the stamp works, and the accuracy without it; 4 of 20 are hostile.

    python benchmarks/stamps.py --seed 0,1,2                      # fashion-mini, model features
    python benchmarks/stamps.py --data fashion-cnn --rule fedavg,jury --stamp "stripe;wave" --seed 0 --save stamps-cnn

"Both" stands for updates and digests. Each run is one line of the --out file, and is not played again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from adversary import DATA, RULES, Lines
from saved import save

STAMPS = {
    "bright square": "shape=square",
    "stripe": "shape=stripe",
    "blended pattern": "shape=blend",
    "inversion": "shape=invert",
    "wave": "shape=wave",
    "corner cut, 14 points": "shape=corner,size=14",
    "stripe, every second round": "shape=stripe,every=2",
    "stripe, a tenth of the records": "shape=stripe,fraction=0.1",
    "stripe, updates four times as long": "shape=stripe,boost=4",
}


def settings_of(data: str, rule: str, stamp: str | None, into: str, seed: int) -> dict[str, Any]:
    base = {**DATA[data], **RULES[rule], "seed": seed}
    return base if stamp is None else {**base, "attack": f"backdoor:{STAMPS[stamp]},into={into}", "attackers": 4}


def columns_of(rules: str) -> list[tuple[str, str, str]]:
    """(heading, rule, into): digests are poisoned where there are some."""
    found = []
    for rule in rules.split(","):
        ways = ("both", "updates", "digests") if "feddig" in rule else ("both",)
        found += [(f"{rule}: {into}" if len(ways) > 1 else rule, rule, into) for into in ways]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", default="fashion", help=", ".join(DATA))
    parser.add_argument("--rule", default="fedavg,jury,feddig+jury", help=", ".join(RULES))
    parser.add_argument("--stamp", default="all", help="all, or some, with a semicolon between")
    parser.add_argument("--seed", default="201,202")
    parser.add_argument("--out", type=Path, default=Path("runs/stamps.jsonl"))
    parser.add_argument("--save", help="name of the file in docs/results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines, seeds = Lines(options.out), [int(seed) for seed in options.seed.split(",")]
    cells: dict[tuple[str, str], list[float]] = {}
    stamps = [name for name in STAMPS if name in options.stamp.split(";") or options.stamp == "all"]
    for heading, rule, into in columns_of(options.rule):
        for stamp in [None, *stamps]:
            found = [lines.get(settings_of(options.data, rule, stamp, into, seed)) for seed in seeds]
            named = sum(one["honest_named"] for one in found)
            accuracy = [one["accuracy"] for one in found]
            if stamp is None:
                cells["no attack: accuracy", heading] = accuracy
                success: list[float] = []
            else:
                success = [100 * one["backdoor"] for one in found]
                cells[f"{stamp}: success", heading] = success
                cells[f"{stamp}: accuracy", heading] = accuracy
            print(
                f"{heading:22} {stamp or 'no attack':36} accuracy {accuracy} success {success} named {named}",
                flush=True,
            )
    if options.save:
        print(save(options.save, cells, seeds, corner="%"))


if __name__ == "__main__":
    main()
