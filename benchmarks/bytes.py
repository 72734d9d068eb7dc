"""What fewer bytes cost: final accuracy and bytes up with each `compress`. `python benchmarks/bytes.py [seeds]`."""

from __future__ import annotations

import statistics
import sys

from saved import save

from holdfast.play import run
from holdfast.runs.experiment import from_table

RULES = ("none", "int8", "topk:0.1", "topk:0.01")


def main(seeds: list[int]) -> None:
    base = {"task": "fashion-mini", "model": "mlp:64", "samples": 3000, "evaluate_every": 24, "workers": 0}
    cells = {}
    for rule in RULES:
        done = [run(from_table({**base, "compress": rule, "seed": seed})) for seed in seeds]
        final = [100 * (history.accuracy[-1] or 0.0) for history in done]
        up = statistics.mean(record.bytes_up for history in done for record in history.records)
        spread = statistics.stdev(final) if len(final) > 1 else 0.0
        print(f"{rule:10} {statistics.mean(final):5.1f} ± {spread:.1f}   {up / 1000:7.1f} kB a round", flush=True)
        cells |= {(f"`{rule}`", "accuracy"): final, (f"`{rule}`", "kB up a round"): [up / 1000]}
    save("bytes", cells, seeds, corner="`compress`", digits={"accuracy": 1, "kB up a round": 0})


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1].split(",")] if len(sys.argv) > 1 else [0, 1, 2])
