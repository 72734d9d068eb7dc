"""A federation by post: accuracy of heads made from one digest of each client, and of FedDig with rounds beside them.

    python benchmarks/oneshot.py                               (fashion-mini: 4 clients, Dirichlet 0.1, seeds 0-4)
    python benchmarks/oneshot.py --task fashion-mnist --data DATA --samples 12000 --only mixed --feddig 30
    python benchmarks/oneshot.py --seeds 200,201 --validation  (what settings were chosen on)

Only digests leave. Samples are encoded once for all seeds, which changes nothing.

Accuracy is on the test set, or with --validation on what clients hold out. `auto` is the head that
is chosen without test data. Noise is the system's, so figures with epsilon vary by a few tenths from run to run.
--save NAME writes docs/results/NAME.json.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from saved import save, text

import holdfast
from holdfast.absence.feddig import FedDig
from holdfast.context import About
from holdfast.core.randomness import rng
from holdfast.data.named import load_task
from holdfast.data.task import Samples, Task
from holdfast.digests.digest import open_digest
from holdfast.digests.moment_wire import open_moments
from holdfast.digests.release import make_release
from holdfast.digests.sums import is_sums, open_sums
from holdfast.encoders import Encoder, make_encoder
from holdfast.heads.choosing import HEADS, Noise, accuracy, choose_head, fit
from holdfast.privacy.noise import system
from holdfast.runs.deal import deal, first_samples

WHITE = "scattering:directions=192,power=0.5"  # drawn shapes have equal variances along all directions
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {  # what leaves: (encoder, digest options)
    "mixed rows, SpD 4": ("scattering", {"mode": "paper"}),
    "sums, no noise": ("scattering", {"mode": "sums"}),
    "sums, no noise, white features": (WHITE, {"mode": "sums"}),
    "moments, epsilon 10": (WHITE, {"mode": "moments", "epsilon": 10.0}),
    "moments, epsilon 3": (WHITE, {"mode": "moments", "epsilon": 3.0}),
    "moments, epsilon 1": (WHITE, {"mode": "moments", "epsilon": 1.0}),
}


def encoded(task: Task, encoder: Encoder) -> Task:
    """The task's samples as vectors of features."""
    parts = (Samples((encoder.encode(part.inputs[0]),), part.labels) for part in (task.train, task.test))
    return Task(task.name, *parts, task.class_names)


def digests_of(experiment: holdfast.Experiment, task: Task, encoder: Encoder, options: FedDig) -> list[Any]:
    """One digest of each client, of encoded samples."""
    about = About(task.name, task.classes, encoder.fingerprint, encoder.feature_shape, norm_bound=encoder.norm_bound)
    found = []
    for client, (train, _, _) in enumerate(deal(experiment, task)):
        part = task.train.take(train)
        generator = rng(experiment.seed, 0, client, "digest")
        sealed, _ = make_release(options, about, part.inputs[0], part.labels, generator, system())
        if options.mode == "moments":
            found.append(open_moments(sealed))
        else:
            found.append(open_sums(sealed) if is_sums(sealed) else open_digest(sealed))
    return found


def judge_of(experiment: holdfast.Experiment, task: Task, validation: bool) -> Samples:
    samples = task.test
    if validation:
        samples = task.train.take(torch.cat([torch.cat(parts[1:]) for parts in deal(experiment, task)]))
    return Samples(samples.inputs, torch.nn.functional.one_hot(samples.labels, task.classes).float())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="fashion-mini")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--feddig", type=int, default=0, help="rounds of FedDig beside them")
    parser.add_argument("--encoder", help="in place of scattering")
    parser.add_argument("--heads", default=",".join((*HEADS, "auto")))
    parser.add_argument("--only", help="settings whose name contains this")
    parser.add_argument("--save", metavar="NAME")
    given = parser.parse_args()
    torch.set_num_threads(1)
    task = load_task(given.task, given.data)
    if given.samples:
        task = replace(task, train=task.train.take(first_samples(task, given.samples)))
    rows: dict[tuple[str, str], list[float]] = {}
    sets: dict[str, tuple[Encoder, Task]] = {}

    def with_encoder(name: str) -> tuple[Encoder, Task]:
        if name not in sets:
            encoder = make_encoder(name, task.shape)
            sets[name] = encoder, encoded(task, encoder)
        return sets[name]

    for seed in map(int, given.seeds.split(",")):
        experiment = holdfast.Experiment(task=given.task, seed=seed)
        for name, (encoder_name, options) in SETTINGS.items():
            if (given.only and given.only not in name) or (given.encoder and encoder_name == WHITE and "sums" in name):
                continue
            encoder, vectors = with_encoder(given.encoder or encoder_name)
            digests = digests_of(experiment, vectors, encoder, FedDig(**options))
            judge = judge_of(experiment, vectors, given.validation)
            noise = Noise(bound=encoder.norm_bound)
            for head in given.heads.split(","):
                auto = head == "auto"
                network = choose_head(head, digests, noise, seed).network if auto else fit(head, digests, noise, seed)
                rows.setdefault((name, head), []).append(100 * accuracy(network, judge))
        if given.feddig:
            _, vectors = with_encoder(given.encoder or "scattering")
            run = holdfast.run(holdfast.Experiment(
                task=vectors, encoder="rounds:Given", absence="feddig", seed=seed, rounds=given.feddig, lr=0.05,
                schedule="cosine", workers=0, evaluate_every=given.feddig,
            ))  # fmt: skip
            rows.setdefault(("FedDig", f"{given.feddig} rounds"), []).append(100 * (run.records[-1].accuracy or 0.0))
        print(json.dumps({" / ".join(key): round(values[-1], 1) for key, values in rows.items()}), flush=True)
    for (name, head), values in rows.items():
        print(f"{name}, {head}: {text(values, 1)}")
    if given.save:
        save(given.save, rows, [int(seed) for seed in given.seeds.split(",")], corner="what leaves")


if __name__ == "__main__":
    main()
