"""How many rounds FedDig needs for what FedAvg reaches in 40, with everybody there (FedTest promised five times fewer).

    python benchmarks/rounds.py --data DATA --out runs/rounds [--sets fashion-mini] [--clients 4,20] [--seed 0,1,2,3,4]

DATA holds the files of fashion-mnist and cifar10, and ocr-letters.npz (`x` 16 x 8, `y`, `fold` 0 to 9).
Both methods have the same features (scattering; of CIFAR-10 the pretrained network's), model (FedDig's usual one), data
and seeds; Dirichlet 0.1, lr 0.05 falling along a cosine.

target   99 % of FedAvg's final accuracy (the mean of its last four rounds) with the same seed
rounds   the first round from which on the mean of three rounds is at the target; 40 if none is
gain     the mean over the seeds of FedAvg's rounds, over that of FedDig's; of a set and of all: the same of the means

Curves are kept under --out, one file a run: a second call goes on, and prints the table of all that is there. Samples
are encoded once for all runs of a set; the runs read the encoded vectors, which changes nothing. --save NAME writes
docs/results/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from saved import save, text
from torch import nn

import holdfast
from holdfast.data.named import load_task
from holdfast.data.task import Samples, Task
from holdfast.encoders import Encoder, make_encoder
from holdfast.reproduce.baselines import centralised
from holdfast.runs.deal import first_samples
from holdfast.runs.experiment import Experiment

ROUNDS = 40
SAMPLES = {"fashion-mini": None, "fashion-mnist": 12_000, "cifar10": None, "ocr-letters": None}  # none: all
USUAL = ("fashion-mini", "fashion-mnist", "cifar10", "ocr-letters")
CENTRALISED = "centralised"
ENCODERS = {"cifar10": "pretrained"}  # of the others: scattering
QUANTILE = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # seeds -> Student's 97.5 %
MEANS = ("difference", "rounds, FedAvg", "rounds, FedDig")
METHODS = {"fedavg": "none", "feddig": "feddig"}


@dataclass(frozen=True)
class Given:
    """The encoder of samples that are encoded already."""

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        return Encoder("given", shape, shape, f"given {shape}", nn.Identity(), norm_bound=1.0)


def letters(path: Path) -> Task:
    """Every fourth of the handwritten letters of folds 1 to 9, padded to 16 x 16; fold 0 to test."""
    with np.load(path, allow_pickle=False) as file:
        images = nn.functional.pad(torch.from_numpy(file["x"]).mul(255)[:, None], (4, 4))
        whole = Samples((images,), torch.from_numpy(file["y"]).long())
        fold = torch.from_numpy(file["fold"].astype(int))
    train, test = fold.nonzero().flatten()[::4], (fold == 0).nonzero().flatten()
    return Task("ocr-letters", whole.take(train), whole.take(test), tuple("abcdefghijklmnopqrstuvwxyz"))


def encoded(name: str, data: Path | None, encoder: str) -> Task:
    """A set's samples as vectors of features."""
    task = letters(data / "ocr-letters.npz") if name == "ocr-letters" and data else load_task(name, data)
    if samples := SAMPLES[name]:
        task = replace(task, train=task.train.take(first_samples(task, samples)))
    network = make_encoder(encoder, task.shape)
    parts = (Samples((network.encode(part.inputs[0]),), part.labels) for part in (task.train, task.test))
    return Task(name, *parts, task.class_names)


def experiment(task: Task, clients: int, method: str, scenario: str, seed: int, model: str) -> Experiment:
    usual = Experiment(
        task=task, model=model, encoder="rounds:Given", clients=clients, partition="dirichlet:0.1", lr=0.05,
        schedule="cosine", rounds=ROUNDS, seed=seed, workers=0, scenario=scenario, absence=METHODS.get(method, "none"),
    )  # fmt: skip
    return centralised(usual) if method == CENTRALISED else usual


def reached(curve: list[float], target: float) -> int:
    """The first round from which on the mean of three rounds is at the target.

    >>> reached([0.1, 0.5, 0.6, 0.7, 0.7], 0.6), reached([0.1, 0.1, 0.1], 0.6)
    (2, 3)
    """
    means = [statistics.fmean(curve[r : r + 3]) for r in range(len(curve) - 2)]
    return next((r + 1 for r, mean in enumerate(means) if mean >= target), len(curve))


def final(curve: list[float]) -> float:
    return statistics.fmean(curve[-ROUNDS // 10 :])


def cells(out: Path, sets: list[str], clients: list[int], seeds: list[int]) -> dict[tuple[str, str], list[float]]:
    """A row for each set and number of clients of which all runs are there, for each set, and for all."""
    found: dict[tuple[str, str], list[float]] = {}
    whole: list[tuple[float, float, float]] = []
    for name in sets:
        here: list[tuple[float, float, float]] = []
        for count in clients:
            row = columns_of(out, name, count, seeds)
            if row:
                found |= {(f"{name}, {count} clients", column): values for column, values in row.items()}
                here.append(tuple(statistics.fmean(row[column]) for column in MEANS))  # type: ignore[arg-type]
        whole += here
        found |= mean_of(f"{name}, mean", here) if len(here) > 1 else {}
    return found | (mean_of("all, mean", whole) if len(sets) > 1 and whole else {})


def columns_of(out: Path, name: str, count: int, seeds: list[int]) -> dict[str, list[float]]:
    plain, digests, whole = ([read(out, name, count, m, "none", s) for s in seeds] for m in (*METHODS, CENTRALISED))
    if not all((*plain, *digests)):
        return {}
    targets = [0.99 * final(curve) for curve in plain]
    gaps = [100 * (final(d) - final(p)) for d, p in zip(digests, plain, strict=True)]
    half = QUANTILE[len(gaps)] * statistics.stdev(gaps) / len(gaps) ** 0.5
    rounds = [[reached(curve, t) for curve, t in zip(curves, targets, strict=True)] for curves in (plain, digests)]
    return {
        "FedAvg": [100 * final(curve) for curve in plain],
        "FedDig": [100 * final(curve) for curve in digests],
        **({"all data in one place": [100 * final(curve) for curve in whole]} if all(whole) else {}),
        "difference": gaps,
        "95 %, from": [statistics.fmean(gaps) - half],
        "to": [statistics.fmean(gaps) + half],
        "rounds, FedAvg": [float(number) for number in rounds[0]],
        "rounds, FedDig": [float(number) for number in rounds[1]],
        "gain": [sum(rounds[0]) / sum(rounds[1])],
    }


def mean_of(row: str, means: list[tuple[float, float, float]]) -> dict[tuple[str, str], list[float]]:
    gap, plain, digests = (statistics.fmean(values) for values in zip(*means, strict=True))
    values = dict(zip((*MEANS, "gain"), (gap, plain, digests, plain / digests), strict=True))
    return {(row, column): [value] for column, value in values.items()}


def file_of(out: Path, name: str, clients: int, method: str, scenario: str, seed: int) -> Path:
    return out / f"{name}-{clients}-{method}-{scenario}-{seed}.json"


def read(out: Path, *which: object) -> list[float]:
    path = file_of(out, *which)  # type: ignore[arg-type]
    return json.loads(path.read_text()) if path.exists() else []  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the sets' files")
    parser.add_argument("--out", type=Path, default=Path("runs/rounds"))
    parser.add_argument("--sets", default=",".join(USUAL))
    parser.add_argument("--clients", default="4,20")
    parser.add_argument("--seed", default="0,1,2,3,4")
    parser.add_argument("--methods", default="fedavg,feddig", help="also: centralised")
    parser.add_argument("--scenario", default="none")
    parser.add_argument("--encoder", help="in place of the set's own")
    parser.add_argument("--save", metavar="NAME")
    parser.add_argument("--model", default="features:512")
    told = parser.parse_args()
    torch.set_num_threads(1)
    told.out.mkdir(parents=True, exist_ok=True)
    sets, seeds = told.sets.split(","), [int(seed) for seed in told.seed.split(",")]
    clients = [int(count) for count in told.clients.split(",")]
    for name in sets:
        task = encoded(name, told.data, told.encoder or ENCODERS.get(name, "scattering"))
        for seed in seeds:
            for count in clients:
                for method in told.methods.split(","):
                    path = file_of(told.out, name, count, method, told.scenario, seed)
                    if path.exists():
                        continue
                    history = holdfast.run(experiment(task, count, method, told.scenario, seed, told.model))
                    path.write_text(json.dumps(history.accuracy))
                    print(path.stem, f"{100 * final(list(history.accuracy)):.1f}", flush=True)
    found = cells(told.out, sets, clients, seeds)
    for row in dict.fromkeys(row for row, _ in found):
        print(row, {column: text(values, 1) for (of, column), values in found.items() if of == row})
    if told.save:
        save(told.save, found, seeds, corner="set")


if __name__ == "__main__":
    main()
