"""What bfloat16 costs in accuracy: the same runs in both precisions, seed by seed.

    python benchmarks/precision.py --data DATA [--out build/precision] [--sets cifar10,fashion-mnist] [--seed 0,1,2]
                                   [--save NAME]

DATA holds cifar10-12k.npz, of which 3,000 images are taken, and the files of fashion-mnist (60,000 + 10,000). Model
`cnn`, four clients, Dirichlet 1.0, batches of 32, lr 0.01; what was measured is kept under --out, and a second call
goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from saved import save

from holdfast.play import run
from holdfast.runs.experiment import from_table

PRECISIONS = ("float32", "bfloat16")
ROUNDS = {"cifar10": 4, "fashion-mnist": 1}
SAMPLES = {"cifar10": 3000, "fashion-mnist": None}  # none: all


def final(name: str, data: Path, precision: str, seed: int) -> float:
    """Accuracy in percent at the end, the mean of the last two rounds."""
    task = {"task": str(data / "cifar10-12k.npz")} if name == "cifar10" else {"task": name, "data": str(data)}
    keys = {"model": "cnn", "clients": 4, "partition": "dirichlet:1.0", "lr": 0.01, "samples": SAMPLES[name]}
    history = run(from_table({**task, **keys, "rounds": ROUNDS[name], "precision": precision, "seed": seed}))
    return 100 * statistics.fmean(one or 0.0 for one in history.accuracy[-2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("build/precision"))
    parser.add_argument("--sets", default=",".join(ROUNDS))
    parser.add_argument("--seed", default="0,1,2")
    parser.add_argument("--save", metavar="NAME", default="precision", help="as docs/results/NAME.json")
    told = parser.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    seeds = [int(seed) for seed in told.seed.split(",")]
    cells: dict[tuple[str, str], list[float]] = {}
    for name in told.sets.split(","):
        for seed in seeds:
            for precision in PRECISIONS:
                kept = told.out / f"{name}-{precision}-{seed}.json"
                if not kept.exists():
                    kept.write_text(json.dumps(final(name, told.data, precision, seed)))
                value = json.loads(kept.read_text())
                print(name, seed, precision, f"{value:.2f}", flush=True)
                cells.setdefault((f"{name}, {ROUNDS[name]} rounds", precision), []).append(value)
        pair = [cells[f"{name}, {ROUNDS[name]} rounds", precision] for precision in PRECISIONS]
        gaps = [half - full for full, half in zip(*pair, strict=True)]
        cells[f"{name}, {ROUNDS[name]} rounds", "difference by seed"] = gaps
    command = f"python benchmarks/precision.py --data DATA --sets {told.sets} --seed {told.seed}"
    save(told.save, cells, seeds, corner="set", digits=1, command=command)


if __name__ == "__main__":
    main()
