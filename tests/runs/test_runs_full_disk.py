"""A disk that is full: the run ends with a sentence, what was saved is intact, and a resume gives the same bits."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_helpers import GENEROUS, assert_same_run, child, experiment, play_quietly

from holdfast.core import files
from holdfast.core.errors import HoldfastError
from holdfast.engines.inline import Inline
from holdfast.play import resume, run
from holdfast.runs.experiment import Experiment
from holdfast.runs.store import Run

FULL = r"^The disk is full: cannot write .*\. What was saved before is intact\.$"


def full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_full_at_any_write_a_run_ends_with_a_sentence_and_resumes_to_the_same_bits(
    algorithm: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is a client's memory that finds no room: to go on without that client would change the bits."""
    wanted = experiment(algorithm=algorithm, clients=2, rounds=2)
    reference = run(wanted)
    real: Callable[..., None] = getattr(os, call)
    ends = 0
    for last in range(1, 60, 1 if call == "replace" else 3):
        calls = iter(range(1, 10_000))
        with monkeypatch.context() as patch:
            patch.setattr(os, call, lambda *a: full() if next(calls) >= last else real(*a))  # noqa: B023
            folder = tmp_path / f"{last}"
            try:
                run(wanted, folder)
            except HoldfastError as error:
                message = str(error)
                ends += 1
            else:
                break
        assert message.startswith("The disk is full: cannot write")
        assert message.endswith("What was saved before is intact.")
        assert not list(folder.rglob("*.tmp"))
        again = resume(folder) if (folder / "experiment.json").exists() else run(wanted, folder)
        assert_same_run(again, reference)
    assert ends >= 4  # experiment, two checkpoints and the model at the least


def test_a_client_in_a_worker_that_finds_no_room_ends_the_run(tmp_path: Path) -> None:
    """A file stands where client 1's memory should be."""
    wanted = experiment(algorithm="scaffold", workers=2, rounds=2)
    first = Run.create(tmp_path / "out", wanted)
    first.close()
    (tmp_path / "out" / "clients").mkdir()
    (tmp_path / "out" / "clients" / "0001").touch()
    with pytest.raises(HoldfastError, match=r"^Cannot write .*clients/0001: File exists\. What was saved before"):
        resume(tmp_path / "out")
    (tmp_path / "out" / "clients" / "0001").unlink()
    assert_same_run(resume(tmp_path / "out"), run(experiment(algorithm="scaffold", rounds=2)))


def play_with_small_files(folder: Path, wanted: Experiment, most: int, sentence: Path) -> None:
    """Play where no file may have more than so many bytes; leave the sentence with which it ends."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        play_quietly(folder, wanted)
    except HoldfastError as error:
        sentence.write_text(str(error))


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """The lines of rounds outgrow the limit in the middle of a line: what is torn does not count."""
    wanted = experiment(algorithm="feddyn", rounds=6)
    process = child(play_with_small_files, tmp_path / "out", wanted, 2_000, tmp_path / "sentence")
    process.join(GENEROUS)
    assert process.exitcode == 0
    sentence = (tmp_path / "sentence").read_text()
    assert str(tmp_path / "out") in sentence
    assert sentence.endswith("What was saved before is intact.")
    assert_same_run(resume(tmp_path / "out"), run(wanted))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 128 kilobytes, where mounting is permitted."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("mounting is not permitted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    wanted = experiment(algorithm="scaffold", rounds=5)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(56 * 1024))
    with pytest.raises(HoldfastError, match=FULL):
        run(wanted, small_disk / "out")
    ballast.unlink()
    assert_same_run(resume(small_disk / "out"), run(wanted))


def test_inline_and_workers_agree_that_a_full_disk_is_nobodys_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.core.types import Message
    from holdfast.engines import inline

    def unwritable(client: object, message: Message) -> None:
        raise files.Unwritable("The disk is full: cannot write here.")

    monkeypatch.setattr(inline, "perform", unwritable)
    with pytest.raises(HoldfastError, match="The disk is full"):
        Inline({0: None}).ask([Message(0, 0, "train")])  # type: ignore[dict-item]
