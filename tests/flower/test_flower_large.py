"""Large models over Flower: replies wait on disk and are summed up one at a time, with the embedded engine's bits."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_helpers import assert_same_run, experiment
from flower_helpers import Spoilt, hostile, nodes, play
from flwr.app import Message as Packet
from flwr.app import RecordDict

from holdfast.core import types
from holdfast.core.errors import HoldfastError
from holdfast.core.types import Absent, Reply
from holdfast.digests.origin import make_key
from holdfast.flower.deploy.site import client_app
from holdfast.flower.engine import federation as engine
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.flower.engine.puller import Puller
from holdfast.flower.engine.spool import Spool
from holdfast.play import run


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(types, "LARGE", 1)


class Backwards(InProcessGrid):
    """Whoever was asked last answers first, and only one in each look."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Packet]:
        return super().pull_messages([n for n in list(message_ids) if n in self._packets][-1:])


def reply(client: int, *values: float) -> Reply:
    tensors = {"delta/w": torch.tensor(values), "delta/none": torch.empty(0, 3), "buffers/n": torch.tensor(client)}
    return Reply(client, tensors, {"samples": 4})


def test_replies_come_back_whole_and_in_order_and_their_files_are_gone(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    kept: dict[int, Reply | Absent] = {0: reply(0, 1.5, -2.0, 0), 1: Absent(1, "is away"), 2: reply(2, 1.5, -2.0, 2)}
    for client in (2, 0, 1):
        spool.put(kept, client)
    assert not any(answer.tensors for answer in kept.values() if isinstance(answer, Reply))
    assert not list(tmp_path.iterdir())  # they have no names
    answers = list(spool.each(list(kept.values())))
    assert answers[1] == Absent(1, "is away")
    for answer, client in ((answers[0], 0), (answers[2], 2)):
        assert isinstance(answer, Reply)
        wanted = reply(client, 1.5, -2.0, client)
        assert answer.scalars == wanted.scalars
        assert list(answer.tensors) == list(wanted.tensors)
        assert all(torch.equal(tensor, wanted.tensors[name]) for name, tensor in answer.tensors.items())
    assert len(os.listdir("/proc/self/fd")) == before + 2  # that of a map lives as long as its tensors
    del answers, answer
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(HoldfastError, match="cannot be kept on disk until its turn"):
        Spool(tmp_path).put({0: reply(0, 1.0)}, 0)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scenario": "dropout:0.4"},
        {"task": "engine_helpers:pictures", "model": "cnn:norm=batch", "trust": "uniform"},
    ],
)
def test_answers_in_any_order_give_the_embedded_bits_and_one_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    wanted = experiment(rounds=2, **changes)
    kept: list[int] = []
    put = Spool.put

    def noting(self: Spool, answers: dict[int, Reply | Absent], client: int) -> None:
        kept.append(client)
        put(self, answers, client)

    monkeypatch.setattr(Spool, "put", noting)
    grid = Backwards(client_app(wanted), nodes(tmp_path, wanted.clients))
    monkeypatch.setattr(engine, "pace", lambda *_: 0.001)
    history = play(tmp_path, wanted, grid)
    assert kept[: len(kept) // 2] == sorted(kept[: len(kept) // 2], reverse=True)
    assert_same_run(history, run(replace(wanted, workers=0)))


@pytest.mark.usefixtures("large")
def test_a_refused_update_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = experiment(rounds=1)
    spoilt = Spoilt(client_app(wanted), lambda packet, answer: hostile(packet, answer))
    history = play(tmp_path, wanted, InProcessGrid(spoilt, nodes(tmp_path, 4)))
    [record] = history.records
    assert "is not finite" in record.refused[0]
    assert "expected float32" in record.refused[1]
    monkeypatch.setattr(types, "LARGE", 2**40)
    kept = play(tmp_path / "kept", wanted, InProcessGrid(spoilt, nodes(tmp_path / "kept", 4)))
    assert kept.state is not None
    assert history.state is not None
    for name, weight in kept.state.model.items():
        assert torch.allclose(weight, history.state.model[name], atol=1e-6)


@pytest.mark.usefixtures("large")
def test_signed_updates_are_taken_one_at_a_time_too(tmp_path: Path) -> None:
    wanted = experiment(rounds=1)
    for client in range(wanted.clients):
        make_key(tmp_path / "keys", f"site-{client}")
    signing = nodes(tmp_path, wanted.clients)
    for client, config in enumerate(signing.values()):
        config["signing-key"] = str(tmp_path / "keys" / f"site-{client}.key")
    grid = InProcessGrid(client_app(wanted), signing)
    history = play(tmp_path, wanted, grid, members=str(tmp_path / "keys"))
    assert_same_run(history, run(wanted))


class Slow(InProcessGrid):
    """Takes each reply when it is told to, and counts how many are being taken."""

    def __init__(self) -> None:
        super().__init__(client_app(experiment()), {})
        self.go = {number: threading.Event() for number in "abc"}
        self.begun: list[str] = []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Packet]:
        [number] = message_ids
        self.begun.append(number)
        self.go[number].wait(30)
        asked = Packet(RecordDict(), dst_node_id=1, message_type="train.job")
        asked.metadata.__dict__["_message_id"] = number
        return [Packet(RecordDict(), reply_to=asked)]


def look(puller: Puller, wanted: list[str]) -> str:
    while not (found := puller.pull(wanted, in_turn=True)):
        pass
    return found[0].metadata.reply_to_message_id


def test_large_replies_are_taken_one_after_the_other_and_the_wait_is_told() -> None:
    grid = Slow()
    puller = Puller(grid)
    for event in grid.go.values():
        event.set()
    first = look(puller, ["a", "b", "c"])
    assert grid.begun == [first]  # the others wait until it is read
    rest = [number for number in "abc" if number != first]
    puller.turn.give_back(first)
    second = look(puller, rest)
    assert grid.begun == [first, second]
    puller.turn.give_back(second)
    assert {first, second, look(puller, [n for n in rest if n != second])} == {"a", "b", "c"}
    assert puller.turn.queued() > 0
    assert puller.turn.queued() == 0


def test_one_that_hangs_loses_its_turn() -> None:
    grid = Slow()
    puller = Puller(grid, patience=0.01)
    puller.pull(["a"], in_turn=True)
    grid.go["b"].set()
    assert look(puller, ["a", "b"]) == "b"
    grid.go["a"].set()
    assert look(puller, ["a"]) == "a"
