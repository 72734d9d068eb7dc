"""Schedules of the learning rate: its factor in each round, a pure function of the round and the number of rounds.

With `per_step` the factor of step k of a round's K is that of t + k / K, so it goes on from step to step.

    constant   1
    cosine     (1 + cos(pi t / T)) / 2                     Loshchilov and Hutter, ICLR 2017, without restarts
    step       factor^floor(t / every)

With `warmup` = W, round t < W (counted from 0) has (t + 1) / (W + 1), and the schedule begins after it: t - W of T - W
(Goyal et al. 2017). A user's own is any function of (round, rounds), named by import path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

Schedule = Callable[[float, int], float]  # rounds are whole unless it says per_step


@dataclass(frozen=True)
class Constant:
    """The same learning rate in every round.

    >>> [Constant(warmup=1)(t, 4) for t in range(4)]
    [0.5, 1.0, 1.0, 1.0]
    """

    warmup: int = field(default=0, kw_only=True)  # rounds in which the learning rate rises
    per_step: bool = field(default=False, kw_only=True)  # whether it goes on from step to step within a round

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise ValueError(f"warmup must not be negative, got {self.warmup}.")

    def __call__(self, round: float, rounds: int) -> float:
        if round < self.warmup:
            return (round + 1) / (self.warmup + 1)
        return self.after(round - self.warmup, rounds - self.warmup)

    def after(self, round: float, rounds: int) -> float:
        """The factor so many rounds after the warm-up."""
        return 1.0


@dataclass(frozen=True)
class Cosine(Constant):
    """From the full learning rate towards none, along half a cosine.

    >>> [round(Cosine()(t, 4), 2) for t in range(4)]
    [1.0, 0.85, 0.5, 0.15]
    """

    def after(self, round: float, rounds: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * round / rounds))


@dataclass(frozen=True)
class Step(Constant):
    """The learning rate times `factor` after every so many rounds.

    >>> [Step(2, factor=0.5)(t, 5) for t in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1 or not 0 < self.factor < math.inf:
            raise ValueError(f"every must be at least 1 and factor positive, got {self.every} and {self.factor}.")

    def after(self, round: float, rounds: int) -> float:
        return float(self.factor ** (round // self.every))


@dataclass(frozen=True)
class Within:
    """What becomes of a round's learning rate in its course: the factor once this share of its steps is done.

    >>> Within(Cosine(per_step=True), 1, 2)(0.0), round(Within(Cosine(per_step=True), 1, 2)(0.5), 3)
    (1.0, 0.293)
    """

    schedule: Schedule
    round: int
    rounds: int

    def __call__(self, done: float) -> float:
        return self.schedule(self.round + done, self.rounds) / self.schedule(self.round, self.rounds)


def within(schedule: Schedule, round: int, rounds: int) -> Within | None:
    """How the learning rate moves in a round; none: it does not."""
    return Within(schedule, round, rounds) if getattr(schedule, "per_step", False) else None


SCHEDULES: dict[str, type] = {"constant": Constant, "cosine": Cosine, "step": Step}
