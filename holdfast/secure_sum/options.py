"""What an experiment says of secure sums: protect = "secure-sum"."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class SecureSum:
    """The moderator learns the members' total alone: of updates, or of digests with noise added once for all."""

    colluding: int = 1  # t: members that may be in league with the moderator or add no noise
    dropouts: int | None = None  # of digests: members that may drop out of a sum once begun; left out: a twentieth
    clip: float = 10.0  # in rounds: a longer update is shortened to this by its member

    def __post_init__(self) -> None:
        if self.colluding < 0:
            raise ValueError(f"colluding must not be negative, got {self.colluding}.")
        if self.dropouts is not None and self.dropouts < 0:
            raise ValueError(f"dropouts must not be negative, got {self.dropouts}.")
        if not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be positive, got {self.clip}.")

    def allowed(self, members: int) -> int:
        """Members that may drop out of a sum of digests, of so many.

        >>> [SecureSum().allowed(members) for members in (4, 20, 100)], SecureSum(dropouts=2).allowed(7)
        ([0, 1, 5], 2)
        """
        return members // 20 if self.dropouts is None else self.dropouts
