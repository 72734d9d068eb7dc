"""Errors that are sentences for the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NOT_DONE = "Not done:"  # how the line of a refusal begins in a site's log


class HoldfastError(Exception):
    """What is wrong, where, and what to do: one sentence, shown to the user without a traceback."""

    code = "internal"  # what others may be told of it: see failures.py


def nearest(word: str, known: Iterable[str]) -> str:
    """A closing half-sentence that names the known word most like this one.

    >>> nearest("fedporx", ["fedavg", "fedprox"])
    "did you mean 'fedprox'?"
    >>> nearest("zzz", ["fedavg", "fedprox"])
    'known: fedavg, fedprox'
    """
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(known)
