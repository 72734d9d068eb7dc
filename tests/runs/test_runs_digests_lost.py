"""Runs whose digests are damaged or lost: no round is played again, and their clients send them again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_helpers import experiment

from holdfast.core.types import State
from holdfast.play import resume, run
from holdfast.record import Record
from holdfast.runs.experiment import Experiment
from holdfast.runs.store import Run


class Stopped(Exception):
    """Raised by a test's watcher, to stop a run where the test wants it."""


def test_digests_are_part_of_a_checkpoint_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    wanted = experiment(rounds=4)
    history = run(wanted)
    state = history.state
    assert state is not None
    digest = {"features": torch.arange(6.0).reshape(2, 3), "labels": torch.tensor([1, 0])}
    held = Run.create(tmp_path / "out", wanted)
    for round in (1, 2):
        at = State(round, state.model, {}, {}, {}, {}, {0: round - 1, 3: 0}, (2,), digests={0: digest})
        held.save(at, history.records[round - 1])
    held.close()
    assert len(list((tmp_path / "out" / "digests").iterdir())) == 1  # written once, when it was new

    again = Run.resume(tmp_path / "out")
    read = again.last_state()
    again.close()
    assert read is not None
    assert (read.round, read.accepted, read.absent) == (2, {0: 1, 3: 0}, (2,))
    assert all(torch.equal(read.digests[0][name], tensor) for name, tensor in digest.items())

    (file,) = (tmp_path / "out" / "digests").iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    damaged = Run.resume(tmp_path / "out")
    read = damaged.last_state()
    damaged.close()
    assert read is not None
    assert (read.round, read.digests) == (2, {})  # the checkpoint is whole: no round is played again
    assert damaged.notes[0].endswith(
        f"set aside as {file.name}.damaged. The run goes on without it until client 0 has sent it again."
    )
    once_more = Run.resume(tmp_path / "out")
    assert once_more.last_state() is not None
    once_more.close()
    assert f"{file} is missing. The run goes on without it" in once_more.notes[0]


def test_a_lost_digest_is_asked_for_again_and_costs_no_round(tmp_path: Path) -> None:
    wanted = Experiment(samples=400, clients=3, rounds=6, absence="feddig", model="features", workers=0)
    seen: list[int] = []

    def stop_after_three(record: Record) -> None:
        seen.append(record.round)
        if record.round == 3:
            raise Stopped

    with pytest.raises(Stopped):
        run(wanted, tmp_path / "out", watch=stop_after_three)
    (lost,) = (tmp_path / "out" / "digests").glob("0001-*")
    lost.unlink()
    history = resume(tmp_path / "out", watch=lambda record: seen.append(record.round))
    assert seen == [1, 2, 3, 4, 5, 6]
    assert history.state is not None
    assert sorted(history.state.digests) == list(range(wanted.clients))
    assert any("until client 1 has sent it again" in note for note in history.records[3].notes)
