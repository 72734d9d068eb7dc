"""Real processes that are interrupted or killed: what they started ends too, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_helpers import GENEROUS, PLAY, assert_same_run, environment, experiment, marked, read, wait_until

from holdfast.play import resume, run


def heed_interrupts() -> None:
    """Where the tests themselves run in the background, shells have children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Playing:
    """A subprocess that plays an experiment in a session of its own, as from a terminal."""

    def __init__(self, folder: Path, script: list[str], **changes: object) -> None:
        self.marker = f"test-{uuid.uuid4()}"
        self.out = folder / "out"
        self.process = subprocess.Popen(
            [sys.executable, *script, str(self.out), repr(changes)],
            cwd=folder,
            env=environment(self.marker),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=heed_interrupts,
        )

    def family(self) -> list[int]:
        return marked(self.marker)

    def end(self) -> None:
        for pid in self.family():
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def playing(tmp_path: Path) -> Iterator[list[Playing]]:
    started: list[Playing] = []
    yield started
    for each in started:
        each.end()


def test_ctrl_c_leaves_nobody_behind_and_the_run_can_be_resumed(tmp_path: Path, playing: list[Playing]) -> None:
    wanted = {"algorithm": "scaffold", "rounds": 2000, "workers": 2, "checkpoint_every": 3}
    player = Playing(tmp_path, ["-c", PLAY], **wanted)
    playing.append(player)
    wait_until(lambda: len(list((player.out / "checkpoints").glob("*.safetensors"))) == 2, "two checkpoints")
    assert len(player.family()) >= 4  # the moderator, two workers, the server they are forked from
    os.killpg(player.process.pid, signal.SIGINT)
    _, errors = player.process.communicate(timeout=GENEROUS)
    assert player.process.returncode != 0
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1  # no worker complains as well
    wait_until(lambda: not player.family(), "all its processes to end")

    shorten(player.out, 2000)
    history = resume(player.out)
    reference = run(experiment(**{**wanted, "rounds": history.experiment.rounds, "workers": 0}))
    assert_same_run(history, reference)


def shorten(out: Path, rounds: int) -> None:
    """End the run a few rounds after where it stopped: the test needs no 2000."""
    from holdfast.core.files import Store

    played = max(int(path.stem) for path in (out / "checkpoints").glob("*.safetensors"))
    text = (out / "experiment.json").read_text().replace(f'"rounds": {rounds}', f'"rounds": {played + 4}')
    Store(out).write("experiment.json", text.replace('"workers": 2', '"workers": 0').encode())


def test_workers_end_by_themselves_when_the_moderator_is_killed_in_the_middle_of_a_long_job(
    tmp_path: Path, playing: list[Playing]
) -> None:
    player = Playing(tmp_path, ["-c", PLAY], task="engine_helpers:slow", workers=2)
    playing.append(player)
    wait_until(lambda: len(list(tmp_path.glob("training-*"))) == 2, "two workers in the middle of a step")
    for pid in player.family():  # all memory that is shared has no name, so none can be left
        assert b"/dev/shm" not in read(pid, "maps")
        files = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()]
        assert not any(file.startswith("/dev/shm") for file in files)
    os.kill(player.process.pid, signal.SIGKILL)
    wait_until(lambda: not player.family(), "the workers to end, a minute before their step would", 20)


def test_a_script_needs_no_main_guard(tmp_path: Path, playing: list[Playing]) -> None:
    script = tmp_path / "plain.py"
    script.write_text("from engine_helpers import *\nprint(len(run(experiment(workers=2, rounds=2)).records))\n")
    player = Playing(tmp_path, [str(script)])
    playing.append(player)
    output, errors = player.process.communicate(timeout=GENEROUS)
    assert (output, errors, player.process.returncode) == ("2\n", "", 0)
