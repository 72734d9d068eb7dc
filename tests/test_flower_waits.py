"""Shorter waits than Flower's own: they take hold in the Flower that is pinned, and do no harm in another one."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from importlib import import_module
from itertools import pairwise

import pytest
from flower_helpers import Clock

from holdfast.engines.flower.waits import Sleep, bind, pace, shorten_node

LOOK = """
import time
from holdfast.engines.flower import waits
waits.shorten_node(), waits.shorten_app(), waits.shorten_grid()
from flwr.supercore import heartbeat
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.runtime import run_clientapp
from flwr.superlink.grid import http_grid
print(isinstance(start_client_internal.time.sleep, waits.Sleep), time.sleep is not start_client_internal.time.sleep)
print(heartbeat.HEARTBEAT_DEFAULT_INTERVAL, fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL)
pulls = start_client_internal.pull_objects, http_grid.pull_objects, run_clientapp.pull_and_inflate_object_from_tree
print(*[pull.keywords["initial_backoff"] for pull in pulls])
waits.shorten_grid()
print(hasattr(http_grid.pull_objects.func, "keywords"))
"""


def test_the_flower_that_is_pinned_waits_by_these_names() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "10", "10", "0.05", "0.05", "0.05", "False"]
    assert not done.stderr


def test_another_flower_is_left_as_it_is_with_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert not bind("flwr.supernode.no_such_module", "time", lambda old: None)
        assert not bind("flwr.supercore.heartbeat", "NO_SUCH_NAME", lambda old: None)
    assert len(caplog.messages) == 2
    assert all("waits by other names" in line for line in caplog.messages)


def test_flowers_own_waits_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_WAITS", "flower")
    shorten_node()
    assert import_module("flwr.supercore.heartbeat").HEARTBEAT_DEFAULT_INTERVAL == 30
    assert import_module("flwr.supernode.start_client_internal").time is time


def test_an_idle_node_looks_often_at_first_and_is_never_late_by_more_than_a_tenth() -> None:
    clock = Clock()
    sleep = Sleep(clock, clock.sleep)
    looks = [clock()]
    while clock() < 60:
        sleep(3)
        looks.append(clock())
    assert looks[1] - looks[0] == pytest.approx(0.1)
    assert all(b - a <= max(0.1, 0.1 * a) + 1e-9 for a, b in pairwise(looks))
    assert len(looks) < 100  # a poll every 0.1 s would make 600 of them
    before = clock()
    sleep(0.5)  # it has had work, and waits for its app
    assert clock() - before == pytest.approx(0.05)
    before = clock()
    sleep(3)
    assert clock() - before == pytest.approx(0.1)
    assert pace(1e6) == 1.0
