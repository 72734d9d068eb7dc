"""What float16 on the wire does to accuracy: the same experiment without it, for updates, and for both ways.

python examples/flower-overhead/half.py [--seeds 0,1,2,3,4] [--rounds 12] [--save NAME]

The grid is in this process; every message goes through Flower's bytes and back, as between sites. --save keeps
the table as docs/results/NAME.json, with the benchmarks' own saved.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from holdfast.flower import client_app
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.flower.engine.moderator import play_over
from holdfast.runs.experiment import from_table

METHODS: dict[str, dict[str, Any]] = {
    "FedDig, features": {"model": "features", "absence": "feddig"},
    "FedAvg, cnn, 2,000 samples": {"model": "cnn", "samples": 2000},  # the cnn is slow
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--save", metavar="NAME")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    cells: dict[tuple[str, str], list[float]] = {}
    for name, method in METHODS.items():
        for half in ("none", "updates", "both"):
            found = [100 * play(int(seed), chosen.rounds, half, method) for seed in chosen.seeds.split(",")]
            cells[name, f"`half = {half}`"] = found
            listed = " ".join(f"{value:.1f}" for value in found)
            deviation = statistics.stdev(found) if len(found) > 1 else 0.0
            print(f"{name:27} half = {half:8} {statistics.fmean(found):.2f} ± {deviation:.2f}   ({listed})", flush=True)
    if chosen.save:
        sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
        from saved import save

        save(chosen.save, cells, [int(seed) for seed in chosen.seeds.split(",")])


def play(seed: int, rounds: int, half: str, method: dict[str, Any]) -> float:
    """The final accuracy of one run."""
    wanted = from_table({
        "clients": 4, "rounds": rounds, "scenario": "sequential", "evaluate_every": rounds, "seed": seed, **method,
    })  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        sites = {100 + i: {"site": f"site-{i}", "folder": f"{folder}/{i}"} for i in range(4)}
        history = play_over(
            InProcessGrid(client_app(wanted), sites), wanted, {"out": str(Path(folder) / "run"), "half": half}
        )
    return history.final_accuracy


if __name__ == "__main__":
    main()
