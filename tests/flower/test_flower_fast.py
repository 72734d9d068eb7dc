"""The faster way with Flower takes hold where Flower is as expected, and steps aside with a note where it is not."""

from __future__ import annotations

import ast
import importlib
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import flwr
import pytest
from engine_helpers import GENEROUS, environment, experiment, marked, same_bits
from flower_helpers import Clock
from flwr.app import ConfigRecord, RecordDict
from flwr.app import Message as Packet
from flwr.clientapp import ClientApp

import holdfast
from holdfast.flower.deploy.app import write_app
from holdfast.flower.engine import waits
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.flower.engine.waits import PLAIN, faster, pace
from holdfast.play import resume, run
from holdfast.runs.experiment import load

FAST = "holdfast.flower.engine.fast"
LOOK = """
import sys, time
from holdfast.flower.engine import fast
fast.flower_supernode = lambda: None
fast.main(), fast.shorten_grid(), fast.shorten_grid(), fast.Executor("127.0.0.1:1", lambda: None, "failed")
print(isinstance(fast.node.time.sleep, fast.Sleep), time.sleep is not fast.node.time.sleep)
print(fast.heartbeat.HEARTBEAT_DEFAULT_INTERVAL, fast.fleet.HEARTBEAT_DEFAULT_INTERVAL)
pulls = fast.node.pull_objects, fast.link.pull_objects, fast.work.pull_and_inflate_object_from_tree
print(*[pull.keywords["initial_backoff"] for pull in pulls], hasattr(fast.link.pull_objects.func, "keywords"))
print("torch" in sys.modules)
"""
STRANGE = """
import holdfast.flower
from holdfast.flower.engine.waits import faster
print(faster(), faster())
try:
    holdfast.flower.InProcessGrid(None, {})
except holdfast.HoldfastError as error:
    print(error)
"""
RENAMED = (
    "pull_task_input|_pull_and_store_message|pull_objects|HEARTBEAT_DEFAULT_INTERVAL|TaskIdentity|ErrorCode|"
    "get_load_client_app_fn|install_from_fab"
)
COMMAND = [sys.executable, "-c", "from holdfast.cli import main; main()", "flower"]
EXPERIMENT = """
task = "engine_helpers:pictures"
partition = "iid"
model = "mlp:8"
rounds = 1
clients = 1
batch_size = 32
workers = 0
"""


PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}


def test_no_other_file_needs_more_than_flowers_public_api() -> None:
    """Late imports are not seen here: the strange Flower below shows that nothing depends on them."""
    needed = set()
    for path in Path(holdfast.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            needed |= {path.name for name in names if name.split(".")[0] == "flwr" and name not in PUBLIC}
    assert needed == {"fast.py"}


def test_the_flower_that_is_installed_fits() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "10", "10", "0.05", "0.05", "0.05", "False", "False"]
    assert not done.stderr


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """fast.py is looked for as if for the first time."""
    importlib.import_module(FAST)
    monkeypatch.delitem(sys.modules, FAST)
    faster.cache_clear()
    yield
    faster.cache_clear()


GONE = [
    ("flwr.supernode.runtime.run_clientapp", "push_message", None, "push_message"),
    ("flwr.supernode.runtime.run_clientapp", "push_message", lambda client, words: None, "takes no context"),
    ("flwr.superlink.grid.http_grid", "pull_objects", lambda ids: None, "takes no backoff_cap"),
    ("flwr.supernode.start_client_internal", "time", None, "time"),
    ("flwr.supernode.start_client_internal", "_pull_and_store_message", "text", "has no attribute"),
    ("flwr.supercore.heartbeat", "HEARTBEAT_DEFAULT_INTERVAL", 60, "waits by other names"),
]


@pytest.mark.parametrize(("module", "name", "other", "why"), GONE)
@pytest.mark.usefixtures("anew")
def test_whatever_is_not_as_expected_it_steps_aside_with_one_note(
    module: str,
    name: str,
    other: Any,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    home = importlib.import_module(module)
    if other is None:
        monkeypatch.delattr(home, name)
    else:
        monkeypatch.setattr(home, name, other)
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert (faster(), faster()) == (None, None)
    [line] = caplog.messages
    assert line.startswith(PLAIN)
    assert why in line


@pytest.mark.usefixtures("anew")
def test_flowers_own_way_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_FLOWER", "plain")
    assert waits.faster() is None
    assert FAST not in sys.modules


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Flower that works as ever, but whose private names are others."""
    folder = tmp_path_factory.mktemp("strange")
    shutil.copytree(Path(flwr.__file__).parent, folder / "flwr", ignore=shutil.ignore_patterns("__pycache__"))
    for path in folder.rglob("*.py"):
        text = path.read_text()
        changed = re.sub(rf"\b({RENAMED})\b", r"\1_anew", text)
        if changed != text:
            path.write_text(changed)
    return folder


def variables(strange: Path, marker: str) -> dict[str, str]:
    usual = environment(marker)
    return {**usual, "PYTHONPATH": os.pathsep.join([str(strange), usual["PYTHONPATH"]])}


def test_with_another_flower_all_of_holdfast_loads_and_says_what_does_not_fit(strange: Path, marker: str) -> None:
    command = [sys.executable, "-c", STRANGE]
    done = subprocess.run(command, env=variables(strange, marker), capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "None None"
    assert "InProcessGrid does not fit this Flower" in second
    assert done.stderr.count(PLAIN) == 1


def test_with_another_flower_a_federation_gives_the_same_bits_with_a_note(
    strange: Path, tmp_path: Path, marker: str
) -> None:
    (tmp_path / "few.toml").write_text(EXPERIMENT)
    command = [*COMMAND, "up", str(tmp_path / "few.toml"), "--out", str(tmp_path / "try"), "--allow-failures"]
    done = subprocess.run(
        command, env=variables(strange, marker), capture_output=True, text=True, timeout=2 * GENEROUS, check=False
    )
    logs = {name: (tmp_path / "try" / "flower" / f"{name}.log").read_text() for name in ("site-0", "moderator")}
    assert done.returncode == 0, (done.stdout, done.stderr, logs)
    assert "Everything is down again" in done.stdout
    assert not marked(marker)
    assert logs["site-0"].count(PLAIN) == logs["moderator"].count(PLAIN) == 1
    assert "flwr-clientapp" in logs["site-0"]  # Flower's own process for each message
    assert same_bits(resume(tmp_path / "try" / "run"), run(load(tmp_path / "few.toml")))


def test_a_site_that_may_not_run_the_moderators_code_does_not_start_where_that_cannot_be_promised(
    strange: Path, tmp_path: Path, marker: str
) -> None:
    app = write_app(tmp_path / "mine", experiment())
    command = [*COMMAND, "site", "site-0", "--superlink", "127.0.0.1:1", "--folder", str(tmp_path / "here")]
    command += ["--insecure", "--app", str(app)]
    done = subprocess.run(
        command, env=variables(strange, marker), capture_output=True, text=True, timeout=GENEROUS, check=False
    )
    assert done.returncode not in (0, None)
    assert "cannot be kept from running code that the moderator sends" in done.stdout + done.stderr
    assert "Starting Flower SuperNode" not in (tmp_path / "here" / "flower" / "site-0.log").read_text()
    assert not marked(marker)


def test_an_idle_node_looks_often_at_first_and_is_never_late_by_more_than_a_tenth() -> None:
    clock = Clock()
    sleep = importlib.import_module(FAST).Sleep(clock, clock.sleep)
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


def interrupted(pull: Any) -> tuple[Any, Any, list[str]]:
    """The node's state after its run ended while it received a message, and the ids of the message's parts."""
    from flwr.supercore.inflatable.inflatable_object import get_object_tree
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.run import Run, RunNotRunningException
    from flwr.supernode.nodestate import NodeStateFactory

    factory = ObjectStoreFactory()
    state = NodeStateFactory(objectstore_factory=factory).state()
    store = factory.store()
    InProcessGrid(ClientApp(), {})  # from here on messages can be made in this process
    packet = Packet(RecordDict({"words": ConfigRecord({"a": 1})}), dst_node_id=7, message_type="train.job")
    packet.metadata.__dict__["_message_id"] = packet.object_id
    tree = get_object_tree(packet)
    state.store_run(Run.create_empty(packet.metadata.run_id))

    def ended(run: int, part: str) -> bytes:
        raise RunNotRunningException

    run = pull(
        state=state,
        object_store=store,
        node_config={},
        receive=lambda: (packet, tree),
        get_run=None,
        get_fab=None,
        pull_object=ended,
        confirm_message_received=None,
        trusted_entities=None,
    )
    assert run is None
    return state, store, [tree.object_id, *(child.object_id for child in tree.children)]


def test_a_message_that_could_not_be_received_is_forgotten_as_flowers_own_is_not() -> None:
    fast = importlib.import_module(FAST)
    pull = fast.node._pull_and_store_message
    _, store, parts = interrupted(pull)
    assert any(store.get(part) == b"" for part in parts)  # known, and for ever on its way: why forgetful is there
    state, store, parts = interrupted(fast.forgetful(pull))
    assert all(store.get(part) is None for part in parts)
    assert not state.get_messages_legacy()
