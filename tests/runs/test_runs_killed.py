"""Runs that are killed: at every point where they write, and at random moments; resumed, their bits are the same."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from engine_helpers import GENEROUS, assert_same_run, child, experiment, go_on, play_quietly, wait_until

from holdfast.core.files import read_lines
from holdfast.play import run
from holdfast.runs.experiment import Experiment

SIGKILLED = -signal.SIGKILL


def play_until_write(folder: Path, wanted: Experiment, last: int, tear: bool) -> None:
    """Play, and die at the write point number `last`: just before a rename, or when data should reach the disk.

    With `tear` only lines that are added count, and half of the last one is lost, as when the power fails.
    """
    count = 0
    replace = os.replace

    def die_if_last() -> None:
        nonlocal count
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying_replace(source: Path, target: Path) -> None:
        if not tear:
            die_if_last()
        replace(source, target)

    def dying_fsync(handle: int) -> None:  # it does no more: a kill leaves the system's cache as it is
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if not tear:
            die_if_last()
        elif path.suffix == ".jsonl":
            if count + 1 == last:
                tear_last_line(path)
            die_if_last()

    os.replace, os.fsync = dying_replace, dying_fsync  # type: ignore[assignment]
    play_quietly(folder, wanted)


def tear_last_line(path: Path) -> None:
    data = path.read_bytes()
    start = data.rstrip(b"\n").rfind(b"\n") + 1
    os.truncate(path, (start + len(data)) // 2)


@pytest.mark.parametrize(
    ("algorithm", "every", "tear", "points"), [("scaffold", 1, False, 30), ("feddyn", 2, True, 10)]
)
def test_killed_at_every_write_point_a_run_resumes_to_the_same_bits(
    algorithm: str, every: int, tear: bool, points: int, tmp_path: Path
) -> None:
    wanted = experiment(algorithm=algorithm, clients=2, rounds=2, checkpoint_every=every)
    reference = run(wanted)
    for last in range(1, 1000):
        folder = tmp_path / str(last)
        process = child(play_until_write, folder, wanted, last, tear)
        process.join(GENEROUS)
        assert process.exitcode in (0, SIGKILLED)
        if process.exitcode == 0:  # there are no more write points
            break
        if last % 4 == 0:  # a second death, a little later
            again = child(play_until_write, folder, wanted, 1 + last % 11, tear)
            again.join(GENEROUS)
            assert again.exitcode in (0, SIGKILLED)
        history = go_on(folder, wanted)
        assert_same_run(history, reference)
        assert all("gone" not in note and "damaged" not in note for r in history.records for note in r.notes)
    assert last > points  # else the points were not counted


@pytest.mark.parametrize(("algorithm", "every"), [("scaffold", 1), ("feddyn", 3), ("adabest", 1), ("fedavg", 3)])
def test_killed_at_random_moments_a_run_resumes_to_the_same_bits(algorithm: str, every: int, tmp_path: Path) -> None:
    wanted = experiment(algorithm=algorithm, rounds=20, checkpoint_every=every, scenario="dropout:0.2")
    reference = run(wanted)
    moments = random.Random(f"{algorithm} {every}")
    folder, kills, longest = tmp_path / "out", 0, 0.05
    while True:
        process = child(play_quietly, folder, wanted)
        process.join(moments.uniform(0, longest))
        if process.exitcode is not None:
            break
        process.kill()
        process.join(GENEROUS)
        kills += process.exitcode == SIGKILLED
        longest *= 1.4  # so that it ends, however slow the machine is
    assert process.exitcode == 0
    assert kills >= 3
    assert_same_run(go_on(folder, wanted), reference)


def test_killed_with_its_workers_at_work_a_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    changes = {"algorithm": "scaffold", "rounds": 60, "checkpoint_every": 7}
    folder = tmp_path / "out"
    process = child(play_quietly, folder, experiment(**changes, workers=2))
    wait_until(lambda: len(read_lines(folder / "rounds.jsonl")) >= 9, "nine rounds")
    process.kill()
    process.join(GENEROUS)
    assert process.exitcode == SIGKILLED
    assert_same_run(go_on(folder, experiment()), run(experiment(**changes)))


def test_killed_while_it_starts_a_run_can_be_started_again(tmp_path: Path) -> None:
    """Nothing but a lock and a manifest is left by then: the same folder will do."""
    wanted = experiment(rounds=1)
    process = child(play_until_write, tmp_path / "a" / "out", wanted, 3, False)
    process.join(GENEROUS)
    assert process.exitcode == SIGKILLED
    assert {path.name for path in (tmp_path / "a" / "out").iterdir()} <= {".lock", "manifest.jsonl"}
    assert len(run(wanted, tmp_path / "a" / "out").records) == 1


def test_the_folder_of_a_killed_run_stays_small(tmp_path: Path) -> None:
    """Two checkpoints, and of each client no more memories than going back to the older one needs."""
    wanted = experiment(algorithm="scaffold", rounds=12, checkpoint_every=2)
    history = run(wanted, tmp_path / "out")
    assert history.folder is not None
    checkpoints = sorted(path.stem for path in (history.folder / "checkpoints").glob("*.safetensors"))
    assert checkpoints == ["000010", "000012"]
    for client in range(4):
        kept = sorted(int(path.stem) for path in (history.folder / "clients" / f"{client:04d}").glob("*.safetensors"))
        assert kept == list(range(6, 12))
