"""Runs made up in a moment: folders with the records a test needs, without any learning."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from holdfast.data.metrics import ACCURACY
from holdfast.record import Record
from holdfast.runs.experiment import Experiment, from_table
from holdfast.runs.records import record_to_json
from holdfast.runs.store import Run

CLASSES = ("zero", "one", "two")


def record(round: int, **changes: Any) -> Record:
    """A round (counted from 1) of two clients in which nothing happened."""
    values: dict[str, Any] = {
        "round": round,
        "absent": {},
        "refused": {},
        "stand_ins": [],
        "weights": {0: 0.25, 1: 0.75},
        "scores": {},
        "suspects": {},
        "loss": 0.5,
        "bytes_up": 1000,
        "bytes_down": 2000,
        "seconds": {"clients": 0.5, "stand_ins": 0.0, "trust": 0.0, "server_step": 0.125, "evaluate": 0.25},
    }
    return Record(**{**values, **changes})


def judged(round: int, accuracy: float, **changes: Any) -> Record:
    """The same, with the model tested: all classes and clients alike."""
    parts = {"class_accuracy": [accuracy] * len(CLASSES), "client_accuracy": {0: accuracy, 1: accuracy}}
    return record(round, **by_accuracy(accuracy=accuracy, **{**parts, **changes}))


def by_accuracy(
    accuracy: float, class_accuracy: Sequence[float | None], client_accuracy: dict[int, float], **others: Any
) -> dict[str, Any]:
    """The fields of a record of a model that was tested."""
    return {
        "measure": ACCURACY,
        "metrics": {"accuracy": accuracy},
        "class_metrics": {"accuracy": class_accuracy},
        "client_metrics": {"accuracy": client_accuracy},
        **others,
    }


def leaving(experiment: Experiment, before: float, after: float, stand_ins: bool) -> list[Record]:
    """Everybody leaves at half of the rounds."""
    clients = range(experiment.clients)
    half = experiment.rounds // 2
    away = dict.fromkeys(clients, "away (sequential)")
    return [
        judged(t, before)
        if t <= half
        else judged(t, after, absent=away, stand_ins=list(clients) if stand_ins else [], bytes_up=0, bytes_down=0)
        for t in range(1, experiment.rounds + 1)
    ]


def make_run(
    folder: Path, records: Sequence[Record], finished: bool = True, classes: Sequence[str] = CLASSES, **keys: Any
) -> Path:
    """A run's folder that holds these records."""
    experiment = from_table({"clients": 2, "rounds": max(1, len(records)), **keys})
    run = Run.create(folder, experiment)
    text = "".join(json.dumps(record_to_json(one)) + "\n" for one in records)
    (folder / "rounds.jsonl").write_text(text)
    if finished:
        about = {"task": experiment.task, "model": "mlp", "classes": "\n".join(classes)}
        run.finish({"w": torch.zeros(1)}, {}, about)
    run.close()
    return folder


def busy_run(folder: Path, rounds: int, clients: int, seed: int, number: int, trust: str = "auto") -> Path:
    """A large run in which everything happens: absences, stand-ins, suspects, refusals, scores, notes."""
    draw = torch.Generator().manual_seed(1000 * number + seed)
    records = []
    for t in range(1, rounds + 1):
        luck = torch.rand(clients, generator=draw).tolist()
        absent = {c: "away (dropout:0.2)" for c in range(clients) if luck[c] < 0.2}
        refused = {c: f"its update has norm {100 * luck[c]:.3f}" for c in range(clients) if 0.2 <= luck[c] < 0.22}
        suspects = {c: f"score {luck[c]:.4f} is far below" for c in range(clients) if 0.22 <= luck[c] < 0.27}
        level = 0.1 + 0.7 * (1 - math.exp(-t / (20 + 5 * number)))
        heard = [c for c in range(clients) if c not in absent]
        wobble = torch.rand(clients + 10, generator=draw).tolist()
        records.append(
            judged(
                t,
                level + 0.02 * wobble[0],
                absent=absent,
                refused=refused,
                stand_ins=[c for c in absent if c % 2],
                weights={c: wobble[c] / clients for c in heard},
                scores={c: wobble[c] - 0.5 for c in heard},
                credibility={c: wobble[c] for c in heard[::2]},
                suspects=suspects,
                class_accuracy=[min(1.0, level + 0.2 * w) for w in wobble[clients:]],
                client_accuracy={c: min(1.0, level + 0.15 * wobble[c]) for c in range(clients)},
                notes=["client 3's clock is wrong"] if t % 50 == 7 else [],
            )
        )
    names = [f"class {number}" for number in range(10)]
    keys = {"clients": clients, "scenario": "dropout:0.2", "seed": seed, "algorithm": f"fedprox:0.{number + 1}"}
    return make_run(
        folder, records, classes=names, trust=trust, attack="signflip", attackers=max(1, clients // 16), **keys
    )


SITES = ["north", "south", "west", "<b>east</b>"]
MODERATED = [
    judged(1, 0.5, suspects={}, weights={}),
    judged(
        2, 0.6, suspects={3: "its update is far from the others'"}, absent={1: "is paused by its people"}, weights={}
    ),
    judged(3, 0.7, suspects={3: "its update is too long"}, absent={1: "is paused by its people"}, weights={}),
]


def moderated(folder: Path, rounds: int = 3) -> Path:
    """A run of four named sites that goes on."""
    return make_run(folder, MODERATED[:rounds], finished=False, clients=4, names=SITES, partition="iid", rounds=9)
