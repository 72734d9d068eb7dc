"""Secure sums: of digests against each member's own noise, and of updates against plain averaging.

python benchmarks/secure_sums.py            (digests: fashion-mini, seeds 0-4)
python benchmarks/secure_sums.py --seed 200,201 --clients 20 --partition iid --encoder both --epsilon 3,1
python benchmarks/secure_sums.py updates --seed 0,1
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

from saved import save, text

import holdfast

DIGITS = {"accuracy": 1, "kB up a member": 1, "seconds": 1}
Cells = dict[tuple[str, str], list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("digests", "updates"), default="digests")
    parser.add_argument("--seed", default="0,1,2,3,4")
    parser.add_argument("--clients", default=None, help="4,20 for digests, 5,20 for updates")
    parser.add_argument("--partition", default="iid,dirichlet:0.1")
    parser.add_argument("--epsilon", default="100,3,1", help="100: hardly any noise")
    parser.add_argument("--protect", default="none,secure-sum")
    parser.add_argument("--encoder", default="auto")
    parser.add_argument("--save", default=None, metavar="NAME", help="write docs/results/NAME.json")
    said = parser.parse_args()
    seeds, cells = [int(seed) for seed in said.seed.split(",")], Cells()
    clients = [int(count) for count in (said.clients or ("4,20" if said.what == "digests" else "5,20")).split(",")]
    for count in clients:
        for protect in said.protect.split(","):
            if said.what == "updates":
                cells |= show(f"{count} clients, {protect}", seeds, clients=count, protect=protect, **UPDATES)
                continue
            for partition in said.partition.split(","):
                for epsilon in map(float, said.epsilon.split(",")):
                    absence = {"name": "feddig", "mode": "moments", "epsilon": epsilon}
                    settings = {"algorithm": "oneshot", "rounds": 1, "partition": partition, "absence": absence}
                    name = f"{count} clients, {partition}, epsilon {epsilon:g}, {protect}"
                    cells |= show(name, seeds, clients=count, protect=protect, encoder=said.encoder, **settings)
    if said.save is not None:
        print(save(said.save, cells, seeds, digits=DIGITS))


UPDATES: dict[str, Any] = {"rounds": 5, "samples": 2000, "model": "mlp:64", "evaluate_every": 5}


def show(name: str, seeds: Sequence[int], **settings: Any) -> Cells:
    """Accuracy, kB that a member sends and seconds of a round without its tests, of each seed."""
    cells: Cells = {(name, column): [] for column in DIGITS}
    for seed in seeds:
        records = holdfast.run(holdfast.Experiment(seed=seed, workers=0, **settings)).records
        sent = statistics.mean(record.bytes_up for record in records) / settings["clients"] / 1e3
        taken = statistics.mean(sum(v for k, v in record.seconds.items() if k != "evaluate") for record in records)
        for column, value in zip(DIGITS, (100 * (records[-1].accuracy or 0.0), sent, taken), strict=True):
            cells[name, column].append(value)
    print(name, *(f"{column} {text(cells[name, column], 1)}" for column in DIGITS), sep=" | ", flush=True)
    return cells


if __name__ == "__main__":
    main()
