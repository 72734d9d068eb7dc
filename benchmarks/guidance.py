"""Does guidance (P_G and F_R) add anything to features alone where images are hard?

    python benchmarks/guidance.py --data DATA [--seed 0,1,2] [--save NAME] [--pictures FOLDER]

FedDig with model `features` and with `full:width=8`, the same encoder, 1,000 samples, 4 clients, 8 rounds, lr 0.05
along a cosine; nobody leaves, or all do, one after the other. CIFAR-10: accuracy in %, Dirichlet 0.1; pneumoniamnist:
AUROC x 100, Dirichlet 0.5. --pictures draws what the last producer of each set makes of mixed rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from saved import save, text

import holdfast
from holdfast.report.pictures import save_pictures

SETS = {"cifar10": ("CIFAR-10", "dirichlet:0.1"), "pneumoniamnist": ("pneumoniamnist", "dirichlet:0.5")}
MEASURED = {"cifar10": "accuracy", "pneumoniamnist": "auroc"}
MODELS = {"features": "features alone", "full:width=8": "with guidance"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seed", default="0,1,2")
    parser.add_argument("--save", metavar="NAME")
    parser.add_argument("--pictures", type=Path)
    told = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in told.seed.split(",")]
    cells: dict[tuple[str, str], list[float]] = {}
    for task, (name, partition) in SETS.items():
        for model, what in MODELS.items():
            for seed in seeds:
                for scenario in ("none", "sequential"):
                    history = holdfast.run(
                        holdfast.Experiment(
                            task=task,
                            data=told.data,
                            samples=1000,
                            clients=4,
                            partition=partition,
                            model=model,
                            absence="feddig",
                            scenario=scenario,
                            rounds=8,
                            lr=0.05,
                            schedule="cosine",
                            seed=seed,
                            workers=0,
                        )
                    )
                    cells.setdefault((f"{name}, {what}", scenario), []).append(100 * (history.final or 0.0))
                    if scenario == "sequential":
                        away = history.records[-1].absent_metrics[MEASURED[task]]
                        cells.setdefault((f"{name}, {what}", "sequential, of those who left"), []).append(100 * away)
            print({key: text(values, 1) for key, values in cells.items()}, flush=True)
        if told.pictures:
            print(save_pictures(history, told.pictures / task))
    if told.save:
        save(told.save, cells, seeds)


if __name__ == "__main__":
    main()
