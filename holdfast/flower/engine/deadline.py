"""When a round closes: a pure function of what has been answered, and when."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.errors import HoldfastError


@dataclass(frozen=True)
class Deadline:
    """A round closes at `times` the median of its replies, at least `least` seconds, or when `enough` have answered.

    Until half of those asked have answered, their median is not known: then twice that of the last such exchange
    counts, and without one `longest`. Nothing waits beyond `longest`.
    """

    times: float = 2.0
    least: float = 10.0
    longest: float = 600.0
    enough: int | None = None  # k of n: do not wait for more replies than this

    def __post_init__(self) -> None:
        if self.times < 1 or self.least <= 0 or self.longest < self.least:
            raise HoldfastError(
                f"deadline: times must be at least 1 and 0 < least <= longest, got {self.times}, {self.least}, "
                f"{self.longest}."
            )
        if self.enough is not None and self.enough < 1:
            raise HoldfastError(f"deadline: enough must be at least 1, got {self.enough}.")

    def seconds(self, asked: int, answered: Sequence[float], last: float | None) -> float:
        """Seconds after the start at which the exchange closes.

        asked: how many were asked; answered: seconds of each reply so far; last: the median of the exchange before.

        >>> usual = Deadline()
        >>> usual.seconds(3, [8.0], None), usual.seconds(3, [8.0], 9.0), usual.seconds(3, [8.0, 9.0], 9.0)
        (600.0, 36.0, 18.0)
        """
        if self.enough is not None and len(answered) >= min(self.enough, asked):
            return 0.0
        if 0 < asked <= 2 * len(answered):
            # Those still silent count as slower than all: the median of everybody is then among the known.
            median = sorted(answered)[(asked + 1) // 2 - 1]
        elif last is not None:
            median = 2 * last
        else:
            median = math.inf
        return min(self.longest, max(self.least, self.times * median))


def median_of(answered: Sequence[float]) -> float | None:
    return statistics.median(answered) if answered else None
