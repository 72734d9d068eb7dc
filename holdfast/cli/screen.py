"""What commands print on, and small words that they share."""

from __future__ import annotations

from rich.console import Console

FAILED = 3  # exit code of what was done to its end and came to nothing


def screen(stderr: bool = False, wrap: bool = False) -> Console:
    """A console that prints words as they are: `sample:ten:` is a task's name and no picture of a digit.

    With `wrap` long lines are left to the terminal, so that a path can be copied.
    """
    return Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=wrap)
