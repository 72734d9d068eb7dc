"""Units that a network need not learn: its columns standardised first, and its target's public range put on last."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Columns:
    """Where the numbers of a table lie in what a network reads, as its public schema says."""

    width: int  # of an encoded record
    numbers: tuple[int, ...]  # positions of numbers and dates
    flags: tuple[int | None, ...]  # of each of them: the position of the indicator that a cell is missing
    unit: float = 1.0  # what 1 of an encoded record is in what the network reads

    @property
    def flagged(self) -> list[int]:
        """Which of the numbers have an indicator."""
        return [which for which, flag in enumerate(self.flags) if flag is not None]

    @property
    def width_of_sums(self) -> int:
        """Of each number the sum and the sum of squares; where cells may be missing, also how many are."""
        return len(self.flagged) + 2 * len(self.numbers)

    @property
    def most_moved(self) -> float:
        """How far replacing one record moves these sums in L2 norm: 2 sqrt(k) of k numbers, each in [-1, 1].

        From x to y a number's sums move by (0, y - x, y^2 - x^2), of squared length (y - x)^2 (1 + (y + x)^2): with
        d = y - x and s = y + x, d^2 (1 + s^2) where |d| + |s| <= 2, so at most d^2 (1 + (2 - d)^2) = 4 at d = 2. A
        cell that goes missing moves them by (1, x, x^2), at most sqrt(3).
        """
        return 2.0 * math.sqrt(len(self.numbers))


class Scaling(nn.Module):
    """(x - mean) / deviation, and 0 where the indicator says that the cell is missing: linear in x."""

    def __init__(self, columns: Columns) -> None:
        super().__init__()
        self.columns = columns
        self.mean = nn.Parameter(torch.zeros(columns.width), requires_grad=False)
        self.deviation = nn.Parameter(torch.ones(columns.width), requires_grad=False)
        self._flag = torch.arange(columns.width)  # constants, which need not travel: no buffers
        self._has_flag = torch.zeros(columns.width)
        for number, flag in zip(columns.numbers, columns.flags, strict=True):
            if flag is not None:
                self._flag[number], self._has_flag[number] = flag, 1.0 / columns.unit

    def forward(self, x: Tensor) -> Tensor:
        missing = x[:, self._flag.to(x.device)] * self._has_flag.to(x.device)
        return (x - self.mean * (1.0 - missing)) / self.deviation


class Standardised(nn.Module):
    """A network behind its scaling."""

    def __init__(self, scaling: Scaling, network: nn.Module) -> None:
        super().__init__()
        self.scaling, self.network = scaling, network

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.network(self.scaling(x))
        return output


def standardised(build: Callable[[], nn.Module], columns: Columns) -> Standardised:
    return Standardised(Scaling(columns), build())


def scaled_columns(model: nn.Module) -> Columns | None:
    """The columns that a model standardises, if it does."""
    return model.scaling.columns if isinstance(model, Standardised) else None


@dataclass(frozen=True)
class InRange:
    """A network's output of -1 to 1 as a target's public range: what lr does does not depend on the target's unit.

    >>> InRange(0.0, 350.0)(nn.Identity(), (), torch.tensor([[-1.0], [0.0], [1.0]])).flatten().tolist()
    [0.0, 175.0, 350.0]
    """

    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    def __call__(self, network: nn.Module, inputs: object, output: Tensor) -> Tensor:
        return (self.low + self.high) / 2 + self.half * output


def in_range(build: Callable[[], nn.Module], range: InRange) -> nn.Module:
    """The network, its weights called as before."""
    network = build()
    network.register_forward_hook(range)
    return network
