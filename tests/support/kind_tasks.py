"""A small task of each kind of target, and experiments on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.data.contract import Kind
from holdfast.data.kinds import Classes, Counts, Hazards, Labels, Regression, Survival
from holdfast.data.task import Samples, Task
from holdfast.runs.experiment import Experiment, from_table

NAMES = {"classes": ("well", "ill"), "labels": ("fever", "cough", "rash")}


def targets(kind: Kind, x: Tensor, g: torch.Generator) -> Tensor:
    """What depends on the first column."""
    noisy = 2 * x[:, 0] + 0.3 * torch.randn(len(x), generator=g)
    if isinstance(kind, Classes):
        return (noisy > 0.8).long()
    if isinstance(kind, Labels):
        return torch.stack([noisy > 0, noisy < 0.5, x[:, 1] > 0], 1).float()
    if isinstance(kind, Counts):
        return torch.poisson(noisy.exp().clamp(max=20), generator=g)
    if isinstance(kind, Survival):
        time = torch.empty(len(x)).exponential_(generator=g) * torch.exp(-noisy)
        return torch.stack([time.clamp(max=3), (time < 3).float()], 1)
    return noisy


def samples(kind: Kind, count: int, seed: int) -> Samples:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=g)
    return Samples((x,), targets(kind, x, g))


def make(kind: Kind) -> Task:
    return Task(kind.name, samples(kind, 320, 1), samples(kind, 200, 2), NAMES.get(kind.name, ()), kind=kind)


def classes() -> Task:
    return make(Classes())


def labels() -> Task:
    return make(Labels())


def regression() -> Task:
    return make(Regression())


def counts() -> Task:
    return make(Counts())


def survival() -> Task:
    return make(Survival())


def hazards() -> Task:
    return make(Hazards((0.25, 0.5, 1.0, 2.0)))


def wanted(task: str, **keys: Any) -> Experiment:
    usual = {"clients": 3, "partition": "iid", "rounds": 6, "lr": 0.05, "workers": 0, "model": "linear"}
    return from_table({"task": f"{__name__}:{task}", **usual, **keys})


def wide() -> torch.nn.Module:
    """A network with more outputs than any of these tasks wants."""
    return torch.nn.Linear(4, 7)
