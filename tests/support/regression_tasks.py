"""A regression on a line, own metrics and networks for it, and tasks that do not fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.data.kinds import Regression
from holdfast.data.metrics import Mae, Metric, Rmse
from holdfast.data.task import Samples, Task
from holdfast.runs.experiment import Experiment, from_table


def numbers(count: int, seed: int) -> Samples:
    """y = 2 x_0 - x_1 + 3 and a little noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator)
    return Samples((x,), 2 * x[:, 0] - x[:, 1] + 3 + 0.1 * torch.randn(count, generator=generator))


def line() -> Task:
    return Task("line", numbers(240, 1), numbers(80, 2), kind=Regression())


class Within(Metric):
    """The share of outputs that lie within 1 of the number."""

    name = "within one"
    unit = "%"

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        return [float(((output - labels).abs() <= 1).sum()), float(len(labels))]

    def value(self, sums: Sequence[float]) -> float:
        return sums[0] / sums[1]


def by_share() -> Task:
    return Task("line", numbers(240, 1), numbers(80, 2), kind=Regression(), metrics=(Within(), Mae()))


def flat_network() -> nn.Module:
    """Gives (N,) in place of (N, 1)."""
    return nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))


def flat() -> Task:
    return Task("line", numbers(40, 1), numbers(8, 2), kind=Regression(), model=flat_network)


class Wide(Rmse):
    width = 3


WIDE = Task("wide", numbers(40, 1), numbers(8, 2), kind=Regression(), metrics=(Wide(),))


class Nameless(Metric):
    pass


NO_NAME = Task("no name", numbers(40, 1), numbers(8, 2), kind=Regression(), metrics=(Nameless(),))
TWICE = Task("twice", numbers(40, 1), numbers(8, 2), kind=Regression(), metrics=(Rmse(), Rmse()))
NAMED = Task("named", numbers(40, 1), numbers(8, 2), ("a", "b"), kind=Regression())
NAMELESS = Task("nameless", numbers(40, 1), numbers(8, 2))
SEVERAL = Task("several", Samples((torch.zeros(4, 3),), torch.zeros(4, 2)), numbers(8, 2), kind=Regression())
INFINITE = Task("infinite", numbers(8, 1), Samples((torch.zeros(1, 3),), torch.tensor([math.inf])), kind=Regression())
HIGH = Task(
    "high", numbers(40, 1), Samples((torch.zeros(2, 3),), torch.tensor([1e30, -1e30])), kind=Regression(),
)  # fmt: skip


def wanted(task: str = "line", **keys: Any) -> Experiment:
    usual = {"clients": 4, "partition": "iid", "rounds": 4, "lr": 0.02, "workers": 0, "batch_size": 16}
    return from_table({"task": f"{__name__}:{task}", **usual, **keys})
