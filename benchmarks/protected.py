"""What a promise costs in accuracy: noised digests, noised updates, and both.

    python benchmarks/protected.py digests --data FOLDER [--seed 0,1,2,3,4] [--save NAME]
    python benchmarks/protected.py updates [--save NAME]
    python benchmarks/protected.py both [--save NAME]

Without --data the column of Fashion-MNIST is left out. Noise comes from the operating system, so a repeat differs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from saved import Cells, save, text

from holdfast.play import run
from holdfast.runs.experiment import from_table
from holdfast.runs.presets import with_method

USUAL: dict[str, Any] = {"clients": 4, "schedule": "cosine", "workers": 0}
LEAVING = {**USUAL, "partition": "dirichlet:0.1", "scenario": "sequential"}
DIGESTS = {**LEAVING, "rounds": 18, "lr": 0.05}
MINI, LARGE = "fashion-mini (5,000 images)", "Fashion-MNIST, 12,000 images"
STEPS = {**USUAL, "partition": "iid", "model": "features"}
NOISED = {**STEPS, "batch_size": 250, "momentum": 0.0}
Rows = dict[str, tuple[dict[str, str], dict[str, Any]]]  # a row's name, what it says, its settings


def moments(epsilon: float) -> dict[str, Any]:
    return {"name": "feddig", "mode": "moments", "epsilon": epsilon}


def noised(epsilon: float, clip: float) -> dict[str, Any]:
    return {"name": "dp-sgd", "epsilon": epsilon, "clip": clip}


ROWS: dict[str, Rows] = {
    "digests": {
        "paper's mixture, SpD 4, no noise": (
            {"true epsilon": "infinite"},
            {**DIGESTS, "model": "features", "absence": "feddig"},
        ),
        **{
            f"moments, epsilon {e}": (
                {"true epsilon": f"{e}"},
                {**DIGESTS, "model": "features", "absence": moments(e)},
            )
            for e in (10, 3, 1)
        },
        "preset `feddig-paper`, as printed": (
            {"true epsilon": "infinite (nominal .005)"},
            with_method(DIGESTS, "feddig-paper", []),
        ),
        "FedAvg, the printed model": (
            {"true epsilon": "-"},
            {**DIGESTS, "model": "full", "encoder": "autoencoder", "trust": "uniform"},
        ),
    },
    "updates": {
        "none": (
            {"settings": "10 rounds, batches of 32, lr 0.05, momentum 0.9"},
            {**STEPS, "rounds": 10, "lr": 0.05},
        ),
        "10": ({"settings": "clip 4, lr 1, 20 rounds"}, {**NOISED, "rounds": 20, "lr": 1.0, "protect": noised(10, 4)}),
        "3": ({"settings": "clip 4, lr 1, 10 rounds"}, {**NOISED, "rounds": 10, "lr": 1.0, "protect": noised(3, 4)}),
        "1": ({"settings": "clip 1, lr 2, 10 rounds"}, {**NOISED, "rounds": 10, "lr": 2.0, "protect": noised(1, 1)}),
    },
    "both": {
        total: (
            {"digest, updates": f"{digest}, {updates}", "batch, lr": f"{batch}, {lr}"},
            {**LEAVING, "model": "features", "rounds": 6, "batch_size": batch, "lr": lr, "absence": moments(digest)}
            | {"protect": {"name": "dp-sgd", "epsilon": updates}},
        )
        for total, digest, updates, batch, lr in (("3", 2.826, 0.8349, 32, 0.02), ("1", 0.9438, 0.2845, 256, 0.05))
    },
}
CORNERS = {"digests": "digest", "updates": "epsilon of all updates", "both": "total epsilon"}


def play(settings: dict[str, Any], seeds: Sequence[int]) -> list[float]:
    return [100 * run(from_table({**settings, "seed": seed})).final_accuracy for seed in seeds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(ROWS))
    parser.add_argument("--data")
    parser.add_argument("--seed", default="0,1,2,3,4")
    parser.add_argument("--save", metavar="NAME", help="keep the table as docs/results/NAME.json")
    said = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in said.seed.split(",")]
    sets = {MINI: {}} if said.what == "digests" else {"accuracy": {}}
    if said.data:
        sets[LARGE] = {"task": "fashion-mnist", "data": said.data, "samples": 12_000}
    cells: dict[tuple[str, str], list[float] | str] = {}
    for row, (words, settings) in ROWS[said.what].items():
        cells |= {(row, column): told for column, told in words.items()}
        for column, task in sets.items():
            if column == LARGE and settings["model"] != "features":  # hours with the printed model
                continue
            cells[row, column] = found = play({**settings, **task}, seeds)
            print(f"{row:36} {column:30} {text(found, 1)}", flush=True)
    if said.save:
        kept: Cells = cells
        print(save(said.save, kept, seeds, corner=CORNERS[said.what]))


if __name__ == "__main__":
    main()
