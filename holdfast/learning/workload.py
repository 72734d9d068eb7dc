"""Work by speed: each client takes as many steps as its speed allows, so that all finish together (FedAda's idea).

With K_i the usual steps of client i, and p_i its seconds a step by the moderator's own clock, messages included:

    H_i = T / p_i   within [K_i / most, most K_i]         T = `seconds` or, if none are said, the median of K_i p_i

p_i is the mean of the last measurement and the p_i before it. What takes the same time whatever the steps (messages)
makes p_i fall as H_i grows; the next H_i answers to that, so that all rounds come to T. A client's first round has K_i.
More steps are no more say: algorithms that do not normalise by steps are refused. What a client says of its speed does
not count, and whoever answers slowly on purpose gets fewer steps, at least K_i / most. Seconds differ from run to run,
so such a run does not repeat its bits. After Zhang et al., World Wide Web 2022 (its abstract).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Workload:
    """Each client takes the steps that its samples make."""

    by_speed: ClassVar[bool] = False

    def assign(self, usual: Mapping[int, int], pace: Mapping[int, float]) -> dict[int, int]:
        """The steps of clients that take others than usual, given seconds a step of those that were measured."""
        return {}

    def allows(self, steps: int, usual: int) -> bool:
        """Whether a client with so many usual steps may be asked for this number."""
        return False

    def measured(
        self, pace: Mapping[int, float], seconds: Mapping[int, float], steps: Mapping[int, int]
    ) -> dict[int, float]:
        """Seconds a step of each client, after a round in which some took so long for so many steps."""
        return {}


@dataclass(frozen=True)
class BySpeed(Workload):
    """As many steps as a client's speed allows, so that all finish together.

    Usually 10 steps each, at 1, 2 and 8 seconds a step: the median of 10, 20 and 80 seconds is 20, so 20, 10 and 2.5
    steps, of which at least 10 / 4 are asked for: 3.

    >>> BySpeed().assign({0: 10, 1: 10, 2: 10, 3: 10}, {0: 1.0, 1: 2.0, 2: 8.0})
    {0: 20, 1: 10, 2: 3}
    >>> BySpeed(seconds=30.0).assign({0: 10, 1: 10}, {0: 1.0, 1: 2.0})
    {0: 30, 1: 15}
    """

    by_speed: ClassVar[bool] = True
    seconds: float = 0.0  # that a round is to take each client; 0: the median of what their usual work takes
    most: float = 4.0  # times the usual steps, up or down

    def __post_init__(self) -> None:
        if not (0 <= self.seconds < math.inf and 1 <= self.most < math.inf):
            raise ValueError(f"seconds must not be negative and most at least 1, got {self.seconds} and {self.most}.")

    def assign(self, usual: Mapping[int, int], pace: Mapping[int, float]) -> dict[int, int]:
        known = [client for client in usual if client in pace]
        if not known:
            return {}
        goal = self.seconds or statistics.median(usual[client] * pace[client] for client in known)
        return {client: self._within(goal / pace[client], usual[client]) for client in known}

    def _within(self, steps: float, usual: int) -> int:
        least, largest = max(1, math.ceil(usual / self.most)), int(usual * self.most)
        return int(min(max(round(min(steps, largest)), least), largest))

    def allows(self, steps: int, usual: int) -> bool:
        return 1 <= steps <= int(usual * self.most)

    def measured(
        self, pace: Mapping[int, float], seconds: Mapping[int, float], steps: Mapping[int, int]
    ) -> dict[int, float]:
        found = {client: took / steps[client] for client, took in seconds.items() if client in steps and took > 0}
        return {**pace, **{client: (pace.get(client, new) + new) / 2 for client, new in found.items()}}


WORKLOADS: dict[str, type[Workload]] = {"usual": Workload, "by-speed": BySpeed}
