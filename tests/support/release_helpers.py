"""What the tests of releases share: a task whose features have unit length, and a client without a federation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from feddig_helpers import corners
from torch import Tensor, nn

from holdfast.absence import FedDig
from holdfast.algorithms.fedavg import FedAvg
from holdfast.client import Client
from holdfast.context import About, Bench
from holdfast.core.memory import Memory
from holdfast.data.kinds import Classes
from holdfast.data.task import Samples, Task
from holdfast.encoders.contract import Encoder
from holdfast.learning.settings import Learning
from holdfast.method import Method
from holdfast.runs.experiment import Experiment, from_table
from holdfast.trust.base import Uniform

ABOUT = About("corners", 4, "finger", (9,))


class Unit(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.normalize(features - features.mean(1, keepdim=True), dim=1)


@dataclass(frozen=True)
class UnitMeans:
    """Means of a picture on a 3 x 3 grid, as nine flat features of unit length."""

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        network = nn.Sequential(nn.AdaptiveAvgPool2d(3), nn.Flatten(), Unit())
        return Encoder("unit", shape, (9 * shape[0],), f"unit {shape}", network, norm_bound=1.0)


@dataclass(frozen=True)
class Unbounded:
    """The same as a map, with no bound known."""

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        return Encoder("map", shape, (shape[0], 3, 3), f"map {shape}", nn.AdaptiveAvgPool2d(3))


def many_corners() -> Task:
    return corners(800, held_out=200)


def experiment(**changes: object) -> Experiment:
    """Three clients with all classes; FedDig with moment digests."""
    usual: dict[str, object] = {
        "task": "release_helpers:many_corners",
        "partition": "iid",
        "encoder": "release_helpers:UnitMeans",
        "absence": {"name": "feddig", "mode": "moments", "epsilon": 3.0},
        "model": "features:8",
        "scenario": "sequential",
        "clients": 3,
        "rounds": 6,
        "batch_size": 16,
        "lr": 0.05,
        "workers": 0,
    }
    return from_table({**usual, **changes})


def records(count: int = 400, seed: int = 0) -> Samples:
    """Features of unit length around four centres, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    features = 3 * torch.eye(9)[labels] + torch.randn(count, 9, generator=generator)
    return Samples((nn.functional.normalize(features, dim=1) * (1 - 2**-20),), labels)


def client(absence: FedDig, samples: Samples | None = None, folder: Path | None = None, id: int = 0) -> Client:
    """A data owner with these records, who keeps its things in this folder."""
    own = samples or records()
    model = nn.Linear(9, 4)
    return Client(
        id=id, seed=0, train=own, validation=own, model=model, loss=nn.functional.cross_entropy,
        metrics=Classes().metrics, learning=Learning(), algorithm=FedAvg(), absence=absence, about=ABOUT,
        memory=Memory(folder),
    )  # fmt: skip


def method(absence: FedDig) -> Method:
    bench = Bench(nn.Linear(9, 4), about=ABOUT)
    return Method(
        algorithm=FedAvg(), absence=absence, trust=Uniform(), learning=Learning(), rounds=9, clients=2, seed=0,
        bench=bench,
    )  # fmt: skip
