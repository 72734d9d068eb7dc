"""Shorter waits than Flower's own: an exchange then costs tenths of a second, not seconds.

A SuperNode asks for work every 3 s and looks for its app's reply every 0.5 s; whoever finds a message whose parts are
still on their way, here or at the moderator, waits a second and then longer. A node that was killed is missed, and let
in again, after two heartbeats of 30 s. None of this can be set, so in Holdfast's own processes the names that Flower
waits by are bound anew. A Flower without these names waits as it likes: that is one line in the log, and slower.
HOLDFAST_WAITS=flower in the environment leaves all waits as they are.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import SimpleNamespace

log = logging.getLogger("holdfast")
LEAST, MOST = 0.1, 1.0  # seconds between two looks at the SuperLink
NEAR = 0.05  # seconds between two looks at one's own SuperNode
SHARE = 0.1  # of what was waited already: how long to wait for the next look
HEARTBEAT = 10  # seconds, the least that a SuperLink takes: a node is missed after two of them
IDLE = 1.0  # seconds: who would sleep longer than this has no work


def pace(waited: float, least: float = LEAST, most: float = MOST) -> float:
    """Seconds until the next look: soon after the start, seldom in a long wait, never late by more than a tenth.

    >>> pace(0.2), pace(3.0), round(pace(60.0), 2)
    (0.1, 0.30000000000000004, 1.0)
    """
    return min(most, max(least, SHARE * waited))


class Sleep:
    """A sleep in place of a SuperNode's: a tenth of its idle time so far while it has no work, else hardly any."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._idle_since: float | None = None

    def __call__(self, seconds: float) -> None:
        if seconds < IDLE:  # it waits for its app
            self._idle_since = None
            self._sleep(min(seconds, NEAR))
            return
        now = self._clock()
        if self._idle_since is None:
            self._idle_since = now
        self._sleep(min(seconds, pace(now - self._idle_since)))


def shorten_node() -> None:
    """Let the SuperNode of this process wait for less long."""
    if as_flower_does():
        return
    module = "flwr.supernode.start_client_internal"
    bind(module, "time", lambda flowers: SimpleNamespace(**{**vars(flowers), "sleep": Sleep()}))
    bind(module, "pull_objects", impatient)
    name = "HEARTBEAT_DEFAULT_INTERVAL"
    if bind("flwr.supercore.heartbeat", name, lambda _: HEARTBEAT):  # sent so often; only then may it be promised
        bind("flwr.supernode.fleet_http_connection", name, lambda _: HEARTBEAT)


def shorten_app() -> None:
    """Let the process that works for a SuperNode wait for less long."""
    if not as_flower_does():
        pull = "pull_and_inflate_object_from_tree"
        bind("flwr.supernode.runtime.run_clientapp", pull, impatient)


def shorten_grid() -> None:
    """Let the moderator of this process wait for less long."""
    if not as_flower_does():
        bind("flwr.superlink.grid.http_grid", "pull_objects", impatient)


def as_flower_does() -> bool:
    return os.environ.get("HOLDFAST_WAITS") == "flower"


def impatient(pull: Callable[..., object]) -> Callable[..., object]:
    """A function of Flower's that pulls a message's parts; it now looks again soon, and for as long as ever."""
    return partial(pull, initial_backoff=NEAR, backoff_cap=MOST / 2, max_tries_per_object=None)


def bind(module: str, name: str, change: Callable[..., object]) -> bool:
    """Bind a name of Flower's anew, once; a Flower that has no such name is left as it is. Whether it is bound."""
    try:
        home = import_module(module)
        found = getattr(home, name)
    except (ImportError, AttributeError) as error:
        log.warning("This Flower waits by other names, so exchanges take some seconds longer (%s).", error)
        return False
    if not getattr(home, f"_holdfast_{name}", False):
        setattr(home, name, change(found))
        setattr(home, f"_holdfast_{name}", True)
    return True
