"""Letters of a moderator that tries everything, to two sites that differ in one held-out record.

Whatever both answer alike, byte for byte, tells nothing of that record, however the letters were chosen.

    PYTHONPATH=tests/support python tests/support/curious_letters.py 10000
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from curious_helpers import Curious
from engine_helpers import experiment

from holdfast.core.types import Tensors, pack
from holdfast.data.task import Samples
from holdfast.runs.build import make_plan

STRICTEST = """
experiments = ["{fingerprint}"]
max_rounds = 1
min_records = 0
digest = false
[privacy]
max_epsilon = 1.0
delta = 1e-5
modes = ["moments"]
protect_updates = true
"""
JOBS = ("train", "evaluate", "test", "panel", "replay", "confirm", "digest", "secure-sum", "hello", "everything")
METHODS: tuple[dict[str, Any], ...] = (
    {"trust": "fedtest"},
    {"trust": "jury"},
    {"trust": "jury", "absence": "feddig", "model": "features", "task": "engine_helpers:pictures", "partition": "iid"},
    {"algorithm": "scaffold", "evaluate_every": 1},
)


def two_sites(folder: Path, changes: Mapping[str, Any]) -> list[Curious]:
    """The same site twice, but for one record: the last in its file has other values and another class."""
    wanted, sites = experiment(**changes), []
    for number in range(2):
        own = make_plan(wanted).task.train.take(torch.arange(40))
        inputs, labels = own.inputs[0].clone(), own.labels.clone()
        if number:
            inputs[-1], labels[-1] = inputs[0], (labels[-1] + 1) % 3
        read = partial(keep, Samples((inputs,), labels))
        sites.append(Curious(folder / str(number), wanted, STRICTEST, samples=read))
    return sites


def keep(samples: Samples, config: Mapping[str, Any]) -> Samples:
    return samples


def letter(model: Tensors, draw: random.Random) -> tuple[str, Tensors, dict[str, Any], dict[str, int]]:
    """One letter: an ordinary question, or one with vectors, numbers and words that nobody agreed on."""
    generator = torch.Generator().manual_seed(draw.getrandbits(32))

    def vectors() -> Tensors:
        shape = draw.choice(("noise", "one", "huge", "zero", "as it is"))
        found = {}
        for name, weight in model.items():
            value = torch.zeros_like(weight)
            if shape in ("noise", "huge"):
                value = torch.randn(weight.shape, generator=generator) * (1e6 if shape == "huge" else 1.0)
            elif shape == "one":
                value.view(-1)[draw.randrange(value.numel())] = 1.0
            elif shape == "as it is":
                value = weight.clone()
            found[name] = value
        return found

    job = draw.choice(JOBS)
    tensors = pack(model=vectors())
    usual: dict[str, Any] = {"accepted": -1, "lr": 0.05, "digest": False}
    scalars = usual if job == "train" else {}
    if job in ("test", "panel", "replay", "confirm") or draw.random() < 0.2:
        for client in draw.sample(range(6), draw.randrange(1, 4)):
            tensors |= pack(**{f"delta/{client}": vectors()})
    if draw.random() < 0.2:
        units = {name: torch.stack([value, value]) for name, value in vectors().items()}
        tensors |= pack(units=units) | {"order": torch.tensor([1, 2])}
    if draw.random() < 0.3:
        odd = ({"most": 1}, {"epochs": 99}, {"lr": 100.0}, {"records": [0]}, {"digest": True}, {"accepted": 3})
        scalars = scalars | draw.choice(odd)
    return job, tensors, scalars, {"round": draw.randrange(5), "client": draw.choice((1, 1, 1, 1, 0))}


def write_letters(folder: Path, count: int, seed: int = 0) -> Counter[str]:
    """Send so many letters; the codes of the refusals. Whatever else comes back is an error."""
    draw, codes = random.Random(seed), Counter[str]()
    for number, changes in enumerate(METHODS):
        sites = two_sites(folder / str(number), changes)
        for _ in range(count // len(METHODS)):
            job, tensors, scalars, about = letter(sites[0].state.model, draw)
            answers = [site.ask(job, tensors, scalars, **about) for site in sites]
            assert answers[0].error, f"{job}: {answers[0].scalars} leaves"
            assert not any(answer.tensors for answer in answers), f"{job}: {sorted(answers[0].tensors)} leave"
            assert answers[0] == answers[1], f"{job}: the answer depends on the record"
            codes[answers[0].error] += 1
        assert not any((site.site / "privacy-ledger.json").exists() for site in sites)
    return codes


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        sys.stdout.write(f"{dict(write_letters(Path(folder), int(sys.argv[1])))}\n")
