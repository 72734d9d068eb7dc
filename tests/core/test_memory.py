"""A client's memory: the version in force is always there, whatever was refused, lost or undone in between."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from engine_helpers import assert_same_run, experiment
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import HoldfastError
from holdfast.core.memory import Memory
from holdfast.play import run


def value(round: int) -> dict[str, torch.Tensor]:
    return {"c": torch.tensor(float(round))}


def versions(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.safetensors"))


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["accepted", "refused", "away", "new process", "back"]), max_size=40),
    st.integers(1, 3),
    st.data(),
)
def test_the_version_in_force_is_always_found(events: list[str], every: int, draw: st.DataObject) -> None:
    """The moderator as an oracle: it knows the last accepted round, and that at each of its two checkpoints."""
    with TemporaryDirectory() as place:
        folder, keep = Path(place) / "m", 2 * every + 2
        memory, round, last = Memory(folder, keep), 0, -1
        checkpoints = [(0, -1)]
        for event in events:
            if event == "new process":
                memory = Memory(folder, keep)
                continue
            if event == "back":  # the moderator was killed, and the newest checkpoint may be damaged
                memory = Memory(folder, keep)
                round, last = draw.draw(st.sampled_from(checkpoints))
                checkpoints = [(r, found) for r, found in checkpoints if r <= round]
                continue
            if event != "away":
                assert memory.read(last) == ({} if last < 0 else value(last))
                memory.write(round, value(round))
                last = round if event == "accepted" else last
            round += 1
            if round % every == 0:
                checkpoints = [*checkpoints, (round, last)][-2:]
            if folder.exists():
                assert len(versions(folder)) <= keep


def test_refused_rounds_leave_no_trace_on_disk(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "m", keep=4)
    assert memory.read(-1) == {}
    memory.write(0, value(0))
    for round in range(1, 30):  # all of them refused
        assert memory.read(0) == value(0)
        memory.write(round, value(round))
    assert versions(tmp_path / "m") == [0, 29]
    assert Memory(tmp_path / "m").read(0) == value(0)


def test_an_empty_memory_takes_no_room_and_is_not_called_lost(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "m")
    memory.write(0, {})
    assert memory.read(0) == {}
    assert list((tmp_path / "m").iterdir()) == []
    assert Memory(tmp_path / "m").read(0) == {}  # another process, too, knows that there was none
    alone = Memory()
    alone.write(3, {})
    assert alone.read(3) == {}


def test_a_lost_memory_is_called_lost(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="the memory of round 3 is gone"):
        Memory().read(2)
    with pytest.raises(HoldfastError, match="the memory of round 3 is gone"):
        Memory(tmp_path / "never").read(2)
    memory = Memory(tmp_path / "m")
    memory.write(1, value(1))
    with pytest.raises(HoldfastError, match="the memory of round 3 is gone"):
        Memory(tmp_path / "m").read(2)


def test_only_what_can_still_count_is_held_in_this_process() -> None:
    memory = Memory()
    for round in range(10):
        memory.read(round - 1)
        memory.write(round, value(round))
    assert sorted(memory._versions) == [8, 9]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fednova", "feddyn", "scaffold", "adabest"])
def test_no_algorithm_misses_a_memory_in_an_undisturbed_run(algorithm: str, tmp_path: Path) -> None:
    wanted = experiment(algorithm=algorithm, rounds=3)
    history, alone = run(wanted, tmp_path / "out"), run(wanted)
    assert_same_run(history, alone)
    assert [record.notes for record in (*history.records, *alone.records)] == [[]] * 6


def test_a_client_that_is_away_for_long_keeps_its_memory(tmp_path: Path) -> None:
    """However many rounds the others play: all that counts is the last round in which it was accepted."""
    away = {"name": "intervals", "away": [[1, 2, 10]]}
    wanted = experiment(algorithm="scaffold", rounds=11, scenario=away)
    history = run(wanted, tmp_path / "out")
    assert_same_run(history, run(wanted))
    assert [note for record in history.records for note in record.notes] == []
