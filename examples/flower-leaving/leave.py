"""The paper's scenario with real processes: sites are killed one after the other, and the curve is printed.

python examples/flower-leaving/leave.py [--rounds 12] [--method fedavg+feddig] [--method fedavg]

Four sites with the classes unevenly dealt out. At 1/3, 1/2 and 2/3 of the run a site's processes are killed, for good.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from holdfast.flower.deploy.app import write_app
from holdfast.flower.deploy.local import local
from holdfast.flower.engine.sites import usual_names
from holdfast.runs.experiment import from_table
from holdfast.runs.store import Run

BLOCKS = "▁▂▃▄▅▆▇█"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--method", action="append", help="fedavg or fedavg+feddig; both unless one is named")
    chosen = parser.parse_args()
    for method in chosen.method or ["fedavg", "fedavg+feddig"]:
        with tempfile.TemporaryDirectory() as folder:
            accuracy, away = play(Path(folder), method, chosen.rounds)
        print(f"{method:14} {''.join(BLOCKS[min(7, int(8 * a))] for a in accuracy)}  ends at {accuracy[-1]:.1%}")
        print(f"{'away':14} {''.join(str(count) if count else '.' for count in away)}")


def play(folder: Path, method: str, rounds: int) -> tuple[list[float], list[int]]:
    """Accuracy, and the number of sites away, of each round."""
    wanted = from_table({
        "clients": 4, "rounds": rounds, "model": "features", "algorithm": method.split("+")[0],
        "absence": "feddig" if method.endswith("feddig") else "none",
    })  # fmt: skip
    sites = usual_names(4)
    leaving = {rounds // 3: sites[2], rounds // 2: sites[0], 2 * rounds // 3: sites[3]}
    out = folder / "run"
    with local(folder, sites, secure=False) as here:  # on loopback, among ourselves
        here.begin(write_app(folder / "app", wanted), out=str(out))
        while here.goes_on(out):
            done = len(Run.open(out).records()) if (out / "rounds.jsonl").exists() else 0
            for round in [round for round in leaving if round <= done]:
                here.kill(leaving.pop(round))
            time.sleep(0.2)
        if not (out / "model.safetensors").exists():
            raise SystemExit(f"The run did not finish:\n{here.log('moderator').read_text()[-2000:]}")
    records = Run.open(out).records()
    return [record.accuracy or 0.0 for record in records], [len(record.absent) for record in records]


if __name__ == "__main__":
    main()
