"""A bar over the rounds where a run is started in a notebook."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable
from typing import Any

from holdfast.core.names import plural
from holdfast.record import Record


def notebook_bar(rounds: int) -> Callable[[Record], None] | None:
    """What shows each round in the notebook's cell; none where this is no notebook."""
    ipython: Any = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return None
    shown = ipython.display.display(ipython.display.HTML(bar(0, rounds, "")), display_id=True)

    def show(record: Record) -> None:
        value = "" if record.leading is None or record.measure is None else record.measure.said(record.leading)
        shown.update(ipython.display.HTML(bar(record.round, rounds, value)))

    return show


def bar(done: int, rounds: int, said: str) -> str:
    """
    >>> bar(2, 6, "AUROC 0.931")
    '<progress max="6" value="2"></progress> 2 of 6 rounds: AUROC 0.931'
    """
    told = f": {html.escape(said)}" if said else ""
    return f'<progress max="{rounds}" value="{done}"></progress> {done:,} of {plural(rounds, "round")}{told}'
