"""What late updates are worth: a third of the clients answers late. `python benchmarks/late.py [seeds]`."""

from __future__ import annotations

import statistics
import sys

from saved import save

from holdfast.core.names import plural
from holdfast.play import run
from holdfast.runs.experiment import from_table

RULES = ("none", "fedbuff", "fedasync", "fedbuff:a=0", "fedasync:a=0")


def main(seeds: list[int]) -> None:
    base = {
        "task": "fashion-mini",
        "model": "mlp:64",
        "samples": 3000,
        "clients": 9,
        "partition": "dirichlet:0.1",
        "evaluate_every": 24,
        "workers": 0,
    }
    delays = {f"{plural(delay, 'round')} late": f"slow:share=0.33,delay={delay}" for delay in (1, 2, 5)}
    cells = {}
    for column, scenario in {**delays, "all in time": "none"}.items():
        for rule in RULES if scenario != "none" else ("none",):
            keys = {**base, "scenario": scenario, "late": rule}
            final = [100 * (run(from_table({**keys, "seed": seed})).accuracy[-1] or 0.0) for seed in seeds]
            spread = statistics.stdev(final) if len(final) > 1 else 0.0
            print(f"{scenario:26} late = {rule:14} {statistics.mean(final):5.1f} ± {spread:.1f}", flush=True)
            cells[f"`{rule}`", column] = final
    save("late", cells, seeds, corner="`late`")


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1].split(",")] if len(sys.argv) > 1 else [0, 1, 2])
