"""The process that workers are forked from: a command begins it before it imports torch itself, so both do at once."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections.abc import Iterable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

NO_WORKERS = re.compile(r'\s*"?workers"?\s*[=:]\s*0\s*,?\s*')


def forking() -> ForkServerContext:
    """Where worker processes come from: forked from one that has imported what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["holdfast.engines.worker"])
    return context


def begin_ahead(file: Path | None, said: Iterable[str] = ()) -> None:
    """Begin that process now, unless the experiment in this file, or what is said besides, has no workers.

    Where torch is imported already nothing would be gained.
    """
    if "torch" in sys.modules or sys.platform == "win32" or os.environ.get("HOLDFAST_WORKERS") == "0":
        return
    try:
        lines = [] if file is None else file.read_text().splitlines()
    except (OSError, UnicodeError):  # the command itself will say so
        return
    if not any(map(NO_WORKERS.fullmatch, [*lines, *said])):
        forking()
        forkserver.ensure_running()
