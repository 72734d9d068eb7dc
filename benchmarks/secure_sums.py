"""One message with each member's own noise, and with a secure sum: accuracy, bytes and seconds.

python benchmarks/secure_sums.py            (fashion-mini, seeds 0-4)
python benchmarks/secure_sums.py 200,201    (other seeds)
"""

from __future__ import annotations

import statistics
import sys

import holdfast


def main() -> None:
    seeds = [int(seed) for seed in (sys.argv[1] if len(sys.argv) > 1 else "0,1,2,3,4").split(",")]
    print("| clients | partition | epsilon | protect | accuracy | kB up a member | seconds |")
    print("|---|---|---|---|---|---|---|")
    for clients in (4, 20):
        for partition in ("iid", "dirichlet:0.1"):
            for epsilon in (3.0, 1.0):
                for protect in ("none", "secure-sum"):
                    row(clients, partition, epsilon, protect, seeds)


def row(clients: int, partition: str, epsilon: float, protect: str, seeds: list[int]) -> None:
    found = []
    for seed in seeds:
        experiment = holdfast.Experiment(
            algorithm="oneshot", rounds=1, clients=clients, partition=partition, seed=seed, workers=0, protect=protect,
            absence={"name": "feddig", "mode": "moments", "epsilon": epsilon},
        )  # fmt: skip
        record = holdfast.run(experiment).records[-1]
        found.append((100 * (record.accuracy or 0.0), record.bytes_up / clients / 1e3, sum(record.seconds.values())))
    accuracy, size, seconds = (statistics.mean(column) for column in zip(*found, strict=True))
    spread = statistics.stdev([one[0] for one in found]) if len(found) > 1 else 0.0
    said = f"{accuracy:.1f} ± {spread:.1f} | {size:.1f} | {seconds:.1f}"
    print(f"| {clients} | {partition} | {epsilon:g} | {protect} | {said} |", flush=True)


if __name__ == "__main__":
    main()
