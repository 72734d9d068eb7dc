"""Chance is the same in every run: a test that fails here fails everywhere, in any order and on any machine.

`pytest --hypothesis-profile explore --hypothesis-seed 7` looks for examples that nobody has seen yet.
Processes that a test starts draw from the operating system's entropy, as users' do.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import sys
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
import torch
from hypothesis import settings
from warm import warm
from xdist.scheduler import LoadScopeScheduling

from holdfast.privacy import noise

# Small runs: to start workers takes longer than the work. Tests of workers say how many.
os.environ.setdefault("HOLDFAST_WORKERS", "0")
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeatable")


SLOW = {  # files of tests that start processes or train for long
    "test_docs.py", "test_stranger.py", "test_reproduce.py", "test_runs_killed.py", "test_engine_processes.py",
    "test_privacy_audit.py", "test_privacy_attacks.py", "test_privacy_report.py", "test_trust_compare.py",
    "test_one_hostile_client.py", "test_digest_command.py", "test_updates.py", "test_feddig_runs.py", "test_cli.py",
    "test_export.py", "test_report.py", "test_watch.py", "test_noise.py", "test_layout.py", "test_failures.py",
    "test_trust_patches.py", "test_trust_jury.py", "test_trust_jury_played.py", "test_attacks_kinds.py",
    "test_encoders.py", "test_engine.py",
    "test_runs_damaged.py", "test_runs_full_disk.py", "test_feddig_pictures.py", "test_baselines.py",
    "test_fedtest_costs.py", "test_own_modules.py", "test_shares.py", "test_hostile_files.py", "test_device.py",
    "test_choosing_heads.py", "test_optimizers.py", "test_hostile_messages.py", "test_files.py", "test_digest_doubt.py",
    "test_release_policy.py", "test_release.py", "test_planted_bugs.py",
    "test_planning.py", "test_server_optimizers.py", "test_oneshot.py",
    "test_by_post.py", "test_own_encoder.py", "test_robust_properties.py",
    "test_site.py", "test_digest_policy.py", "test_privacy_plan.py", "test_moderators_memory.py",
    "test_report_privacy.py", "test_tasks_picture.py", "test_hostile_digests.py", "test_pretrained.py",
    "test_models.py", "test_feddig_kinds.py",
}  # fmt: skip


LANES = {  # files of tests with a SuperLink and SuperNodes: they mostly wait, so two lanes of them run at a time
    "test_flower_processes.py": "one federation for all its tests",
    "test_flower_up.py": "federations", "test_flower_fast.py": "federations", "test_flower_joining.py": "federations",
}  # fmt: skip


def lane_of(nodeid: str) -> str | None:
    """What must run one after the other for its ports and its share of the processor."""
    return "federations" if "real_processes" in nodeid else LANES.get(Path(nodeid.partition("::")[0]).name)


@cache
def shares_fixtures(file: str) -> bool:
    """Whether the tests of a file share something that takes time to make, and so stay together."""
    return file.startswith("tests/") and 'scope="module"' in Path(__file__).parents[1].joinpath(file).read_text()


def pytest_configure() -> None:
    """No test can take the power away, so none waits for the disk: a small run would, for longer than it computes."""
    os.fsync = lambda fd: None  # type: ignore[assignment]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make check` leaves out what is marked here; what takes long comes first, so that nobody waits for it alone."""
    for item in items:
        if " at 0x" in item.nodeid:  # parallel workers must collect the same names
            raise pytest.UsageError(f"{item.nodeid}: an address is in its name; give the test ids.")
        if item.path.parent.name == "flower":
            item.add_marker("flower")
        if "browser" in item.path.name:
            item.add_marker("browser")
        if item.path.name in SLOW:
            item.add_marker("slow")
    items.sort(key=urgency)


def urgency(item: pytest.Item) -> int:
    """The one federation, the other ones, slow files that stay together, other slow tests, the rest."""
    lane = lane_of(item.nodeid)
    if lane is not None:
        return 0 if item.path.name == "test_flower_processes.py" else 1
    slow = item.path.name in SLOW or item.get_closest_marker("browser") is not None
    return 4 if not slow else 2 if shares_fixtures(item.nodeid.partition("::")[0]) else 3


class Grouped(LoadScopeScheduling):  # type: ignore[misc]
    """Tests go to any worker, but for federations, and for files whose tests share fixtures.

    (xdist's own groups are names at the end of test ids, which this pytest does not let it write there.)
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return lane_of(nodeid) or (file if shares_fixtures(file) else nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Grouped:
    config.option.loadscopereorder = False  # the order is that of pytest_collection_modifyitems
    return Grouped(config, log)


@pytest.fixture(autouse=True)
def same_chance_every_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a stream of its own, named after it, where the product reads the system's entropy."""
    chance = random.Random(request.node.name)
    monkeypatch.setattr(noise, "os", SimpleNamespace(urandom=chance.randbytes))
    monkeypatch.setattr(secrets, "randbits", chance.getrandbits)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def warm_commands() -> Iterator[dict[str, str]]:
    """The environment in which `holdfast` and `python` need not import torch anew."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plain = {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "100"}
    with TemporaryDirectory() as folder, warm(Path(folder), plain) as variables:
        yield variables


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Whatever is cached, is cached here."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def marker() -> Iterator[str]:
    """A word for the command lines of a test's processes: whatever still runs under it in the end is killed."""
    from engine_helpers import marked

    marker = f"test-{uuid.uuid4()}"
    yield marker
    for pid in marked(marker):
        os.kill(pid, signal.SIGKILL)
