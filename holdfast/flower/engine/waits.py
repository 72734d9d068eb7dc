"""How often Holdfast looks for news, and whether its faster way with Flower fits the Flower that is installed."""

from __future__ import annotations

import logging
import os
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Any

log = logging.getLogger("holdfast")
LEAST, MOST = 0.1, 1.0  # seconds between two looks at the SuperLink
NEAR = 0.05  # seconds between two looks at one's own SuperNode
SHARE = 0.1  # of what was waited already: how long to wait for the next look
PLAIN = "Flower's own way is used"  # begins the note


def pace(waited: float, least: float = LEAST, most: float = MOST) -> float:
    """Seconds until the next look: soon after the start, seldom in a long wait, never late by more than a tenth.

    >>> pace(0.2), pace(3.0), round(pace(60.0), 2)
    (0.1, 0.30000000000000004, 1.0)
    """
    return min(most, max(least, SHARE * waited))


@cache
def faster() -> Any | None:
    """The module fast.py, or None with a note in the log: where it does not fit, or with HOLDFAST_FLOWER=plain."""
    try:
        if os.environ.get("HOLDFAST_FLOWER") == "plain":
            raise ImportError("HOLDFAST_FLOWER is plain")
        return import_module("holdfast.flower.engine.fast")
    except (ImportError, AttributeError, TypeError) as misfit:  # a name is gone, or something else has it now
        log.warning("%s, seconds slower for each message: flwr %s, %s.", PLAIN, version("flwr"), misfit)
        return None
