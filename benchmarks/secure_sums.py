"""Secure sums: of digests against each member's own noise, and of updates against plain averaging.

python benchmarks/secure_sums.py            (digests: fashion-mini, seeds 0-4)
python benchmarks/secure_sums.py 200,201    (other seeds)
python benchmarks/secure_sums.py 0,1 updates
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import holdfast


def main() -> None:
    seeds = [int(seed) for seed in (sys.argv[1] if len(sys.argv) > 1 else "0,1,2,3,4").split(",")]
    if sys.argv[2:] == ["updates"]:
        print("| clients | protect | accuracy | kB up a member and round | seconds a round |")
        print("|---|---|---|---|---|")
        for clients in (5, 20):
            for protect in ("none", "secure-sum"):
                print(f"| {clients} | {protect} | {updates(clients, protect, seeds)} |", flush=True)
        return
    print("| clients | partition | epsilon | protect | accuracy | kB up a member | seconds |")
    print("|---|---|---|---|---|---|---|")
    for clients in (4, 20):
        for partition in ("iid", "dirichlet:0.1"):
            for epsilon in (100.0, 3.0, 1.0):  # 100: hardly any noise
                for protect in ("none", "secure-sum"):
                    said = digests(clients, partition, epsilon, protect, seeds)
                    print(f"| {clients} | {partition} | {epsilon:g} | {protect} | {said} |", flush=True)


def digests(clients: int, partition: str, epsilon: float, protect: str, seeds: list[int]) -> str:
    absence = {"name": "feddig", "mode": "moments", "epsilon": epsilon}
    settings = {"algorithm": "oneshot", "rounds": 1, "partition": partition, "absence": absence}
    return measured(seeds, clients=clients, protect=protect, **settings)


def updates(clients: int, protect: str, seeds: list[int]) -> str:
    return measured(seeds, clients=clients, protect=protect, rounds=5, samples=2000, model="mlp:64", evaluate_every=5)


def measured(seeds: list[int], **settings: Any) -> str:
    """Accuracy, kB that a member sends and seconds of a round, as means over seeds."""
    found = []
    for seed in seeds:
        records = holdfast.run(holdfast.Experiment(seed=seed, workers=0, **settings)).records
        size = statistics.mean(record.bytes_up for record in records) / settings["clients"] / 1e3
        seconds = statistics.mean(sum(v for k, v in record.seconds.items() if k != "evaluate") for record in records)
        found.append((100 * (records[-1].accuracy or 0.0), size, seconds))
    accuracy, size, seconds = (statistics.mean(column) for column in zip(*found, strict=True))
    spread = statistics.stdev([one[0] for one in found]) if len(found) > 1 else 0.0
    return f"{accuracy:.1f} ± {spread:.1f} | {size:.1f} | {seconds:.1f}"


if __name__ == "__main__":
    main()
