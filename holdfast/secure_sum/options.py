"""What an experiment says of secure sums: protect = "secure-sum"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SecureSum:
    """The moderator learns the members' total alone; noise is added once for all of them."""

    colluding: int = 1  # t: members that may be in league with the moderator, drop out of a sum or add no noise, in all

    def __post_init__(self) -> None:
        if self.colluding < 0:
            raise ValueError(f"colluding must not be negative, got {self.colluding}.")
