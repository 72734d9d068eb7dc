"""FedAvgM, FedAdam, FedYogi and FedAdagrad with a server's learning rate chosen on other seeds than those reported.

    python benchmarks/server_optimizers.py [--seed 0,1,2,3,4] [--choose 200,201] [--out build/server-optimizers]

fashion-mini, 3,000 samples, mlp:64, 24 rounds, two federations: 4 clients, Dirichlet 0.1, all asked; and 20 clients,
Dirichlet 0.3, 5 asked in a round. Accuracy is the mean of the last four rounds, in percent. What each run found is kept
under --out: a second call goes on, and --only plays one of the two.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from saved import save

from holdfast.play import run
from holdfast.runs.experiment import from_table

RATES = {
    "none": (1.0,),
    "momentum": (0.1, 0.3, 1.0),
    "adam": (0.001, 0.003, 0.01, 0.03, 0.1),
    "yogi": (0.001, 0.003, 0.01, 0.03, 0.1),
    "adagrad": (0.003, 0.01, 0.03, 0.1),
}
SETTINGS = {
    "4 clients": {"clients": 4, "partition": "dirichlet:0.1"},
    "5 of 20 clients": {"clients": 20, "partition": "dirichlet:0.3", "selection": "uniform:5"},
}


def final(out: Path, setting: str, name: str, lr: float, seed: int) -> float:
    kept = out / f"{setting}-{name}-{lr}-{seed}.json"
    if not kept.exists():
        kept.write_text(json.dumps(played(setting, name, lr, seed)))
    return float(json.loads(kept.read_text()))


def played(setting: str, name: str, lr: float, seed: int) -> float:
    keys = {"task": "fashion-mini", "samples": 3000, "model": "mlp:64", "rounds": 24, "workers": 0, "seed": seed}
    chosen = {} if name == "none" else {"server_optimizer": {"name": name, "lr": lr}}
    history = run(from_table({**keys, **SETTINGS[setting], **chosen}))
    return 100 * statistics.fmean(one or 0.0 for one in history.accuracy[-4:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="0,1,2,3,4")
    parser.add_argument("--choose", default="200,201")
    parser.add_argument("--only", choices=SETTINGS)
    parser.add_argument("--out", type=Path, default=Path("build/server-optimizers"))
    told = parser.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    seeds, others = ([int(seed) for seed in text.split(",")] for text in (told.seed, told.choose))
    cells: dict[tuple[str, str], list[float]] = {}
    for setting in [told.only] if told.only else SETTINGS:
        for name, rates in RATES.items():
            tried = {lr: statistics.fmean(final(told.out, setting, name, lr, seed) for seed in others) for lr in rates}
            best = max(tried, key=lambda lr: tried[lr])
            found = [final(told.out, setting, name, best, seed) for seed in seeds]
            print(setting, name, {lr: round(value, 1) for lr, value in tried.items()}, best, found, flush=True)
            cells[f"`{name}`", setting] = found
            cells[f"`{name}`", f"lr, {setting}"] = [best]
    if told.only:
        return
    digits = dict.fromkeys(SETTINGS, 1) | {f"lr, {setting}": 3 for setting in SETTINGS}
    command = f"python benchmarks/server_optimizers.py --seed {told.seed} --choose {told.choose}"
    save("server-optimizers", cells, seeds, corner="`server_optimizer`", digits=digits, command=command)


if __name__ == "__main__":
    main()
