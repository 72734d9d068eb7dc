"""What an experiment says of secure sums: protect = "secure-sum"."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class SecureSum:
    """The moderator learns the members' total alone: of updates, or of digests with noise added once for all."""

    colluding: int = 1  # t: members that may be in league with the moderator, drop out of a sum or add no noise, in all
    clip: float = 10.0  # in rounds: a longer update is shortened to this by its member

    def __post_init__(self) -> None:
        if self.colluding < 0:
            raise ValueError(f"colluding must not be negative, got {self.colluding}.")
        if not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be positive, got {self.clip}.")
