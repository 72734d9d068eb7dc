"""The embedded engine: the same bits however many workers, and clients and workers that fail."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from multiprocessing import Pipe, reduction
from pathlib import Path
from typing import Any

import engine_helpers
import numpy as np
import pytest
import torch
from engine_helpers import GENEROUS, experiment, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import types
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import SENTENCES
from holdfast.core.types import Absent, Message, Reply
from holdfast.engines.arena import DTYPES, Arena, Packer
from holdfast.engines.embedded import Embedded, share_out
from holdfast.engines.forking import begin_ahead
from holdfast.engines.worker import STOP, Outbox, Parcel
from holdfast.play import run
from holdfast.runs.build import make_plan

ALGORITHMS = ("fedavg", "fedprox", "fednova", "feddyn", "scaffold", "adabest")


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "fedbn"])  # it needs norms
def test_any_number_of_workers_gives_the_same_bits(algorithm: str) -> None:
    wanted = {"algorithm": algorithm, "rounds": 3, "scenario": "dropout:0.3"}
    inline = run(experiment(**wanted))
    assert inline.records[-1].notes == []
    for workers in (1, 2, 3):
        history = run(experiment(**wanted, workers=workers))
        assert same_bits(history, inline), f"{workers} workers"
        assert history.accuracy == inline.accuracy


def test_the_cnn_gives_the_same_bits_in_workers() -> None:
    wanted = {"task": "engine_helpers:pictures", "model": "cnn", "rounds": 2, "partition": "iid"}
    inline, workers = run(experiment(**wanted)), run(experiment(**wanted, workers=3))
    assert same_bits(inline, workers)
    assert inline.accuracy == workers.accuracy


def test_a_task_by_import_path_from_the_current_folder_reaches_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_task.py").write_text("from engine_helpers import tiny\ntask = tiny()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    history = run(experiment(task="my_own_task:task", workers=2, rounds=1))
    assert history.records[0].absent == {}


def test_a_relative_npz_reaches_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parts = {"train": engine_helpers.samples(160, 1), "test": engine_helpers.samples(80, 2)}
    arrays = {f"x_{part}": data.inputs[0].numpy() for part, data in parts.items()}
    arrays |= {f"y_{part}": data.labels.numpy() for part, data in parts.items()}
    np.savez("mine.npz", **arrays)
    history = run(experiment(task="mine.npz", workers=2, rounds=1))
    assert history.records[0].absent == {}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_client_that_raises_is_absent_with_client_round_and_job(workers: int, tmp_path: Path) -> None:
    history = run(experiment(task="engine_helpers:raising", workers=workers, rounds=2), tmp_path / "out")
    assert "ValueError: client two is out of order" in (tmp_path / "out" / "failures.log").read_text()
    assert "out of order" not in (tmp_path / "out" / "rounds.jsonl").read_text()  # an error may quote the data
    for round, record in enumerate(history.records):
        assert list(record.absent) == [2]
        assert record.absent[2] == f"failed in job 'train' of round {round + 1}: {SENTENCES['internal']}"
        assert sorted(record.weights) == [0, 1, 3]
        assert sorted(record.by_client) == [0, 1, 2, 3]  # it can still be asked to test
    reference = run(experiment(scenario={"name": "intervals", "away": [[2, 1, 3]]}, rounds=2))
    assert same_bits(history, reference)


@pytest.mark.parametrize(("algorithm", "large"), [("fedavg", 2**26), ("fedavg", 1), ("scaffold", 2**26)])
def test_a_killed_worker_is_replaced_and_its_clients_return(
    algorithm: str, large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where replies are taken one at a time, as those of a large model are."""
    monkeypatch.setattr(types, "LARGE", large)
    monkeypatch.chdir(tmp_path)

    def watch(record: object) -> None:
        if len(list(tmp_path.glob("seen-*"))) == 0:
            Path("kill-now").touch()
        (tmp_path / f"seen-{len(list(tmp_path.glob('seen-*')))}").touch()

    with caplog.at_level(logging.WARNING, "holdfast"):
        wanted = experiment(task="engine_helpers:killed", algorithm=algorithm, workers=2)
        history = run(wanted, tmp_path / "out", watch)
    assert not Path("kill-now").exists()
    absent = history.records[1].absent
    assert set(absent) == {2}  # its worker had 0 and 2; 0 had answered before
    assert absent[2] == f"its worker process died (signal {signal.SIGKILL.value})"
    assert [dict(record.absent) for record in history.records if record.round != 2] == [{}, {}, {}]
    assert all(record.notes == [] for record in history.records)
    assert "A new worker takes its place" in caplog.text
    away = {"name": "intervals", "away": [[2, 2, 3]]}
    assert same_bits(history, run(experiment(algorithm=algorithm, scenario=away)))


def test_without_a_folder_a_killed_worker_loses_memories_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = experiment(task="engine_helpers:killed", algorithm="scaffold", workers=4, rounds=3)
    history = run(wanted, watch=lambda record: Path("kill-now").touch() if record.round == 1 else None)
    assert set(history.records[1].absent) == {2}
    assert history.records[2].notes == [f"client 2: {SENTENCES['memory-lost']}"]


def test_a_client_that_hangs_is_absent_when_patience_ends_and_its_neighbours_are_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hang-now").touch()
    wanted = experiment(task="engine_helpers:hanging", algorithm="scaffold", workers=1, rounds=3, patience=5)
    with caplog.at_level(logging.WARNING, "holdfast"):
        history = run(wanted, tmp_path / "out")
    absent = "no answer within 5 s: its process was ended"
    assert [dict(record.absent) for record in history.records] == [{1: absent}, {}, {}]
    assert absent in caplog.text
    away = {"name": "intervals", "away": [[1, 1, 2]]}
    assert same_bits(history, run(experiment(algorithm="scaffold", scenario=away, rounds=3)))


def test_a_worker_that_dies_between_rounds_costs_one_client_a_round() -> None:
    plan = make_plan(experiment(workers=2))
    federation = Embedded(plan.experiment, plan.stage.sizes, None, 2)
    try:
        state = plan.start()
        tensors = {f"model/{name}": tensor for name, tensor in state.model.items()}
        messages = [Message(client, 0, "evaluate", tensors) for client in federation.clients]
        assert all(isinstance(answer, Reply) for answer in federation.ask(messages))
        victim = federation._workers[0]
        assert victim.process.pid is not None
        os.kill(victim.process.pid, signal.SIGKILL)
        answers = federation.ask(messages)
        lost = [answer.client for answer in answers if isinstance(answer, Absent)]
        assert lost == victim.clients[:1]  # the one it would have been at
        assert [answer.client for answer in answers] == list(federation.clients)
        assert all(isinstance(answer, Reply) for answer in federation.ask(messages))
        twice = federation.ask([messages[1], messages[0], messages[1]])
        assert [answer.client for answer in twice] == [1, 0, 1]
        unknown = federation.ask([Message(0, 7, "evaluat", tensors), messages[1]])
        assert isinstance(unknown[0], Absent)
        assert SENTENCES["job"] in unknown[0].reason
        assert isinstance(unknown[1], Reply)
    finally:
        federation.close()
    assert federation._workers == []


def test_a_worker_that_cannot_load_is_one_sentence_and_leaves_no_other_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    started = []
    start = Embedded._start

    def counted(self: Embedded, ids: list[int]) -> Any:
        started.append(start(self, ids))
        return started[-1]

    monkeypatch.setattr(Embedded, "_start", counted)
    with pytest.raises(
        HoldfastError,
        match=r"could not load its clients: .* RuntimeError: not in a worker",
    ):
        run(experiment(task="engine_helpers:not_in_workers", workers=3))
    assert len(started) == 3
    assert not any(worker.process.is_alive() for worker in started)


def test_nothing_is_pickled_once_the_workers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = experiment(task="engine_helpers:no_pickle", algorithm="scaffold", workers=2)
    start = Embedded.__init__

    def start_then_forbid(self: Embedded, *arguments: object) -> None:
        start(self, *arguments)  # type: ignore[arg-type]
        engine_helpers.forbid_pickle(monkeypatch.setattr)
        monkeypatch.setattr(reduction.ForkingPickler, "dumps", engine_helpers.refuse)

    monkeypatch.setattr(Embedded, "__init__", start_then_forbid)
    history = run(wanted)
    monkeypatch.undo()
    assert all(not record.absent for record in history.records)
    assert same_bits(history, run(experiment(algorithm="scaffold")))


def test_clients_are_shared_out_by_size_to_no_more_workers_than_there_are_clients() -> None:
    assert share_out([5, 1, 1], 8) == [[0], [1], [2]]
    assert share_out([9, 5, 4, 1], 2) == [[0, 3], [1, 2]]


SHAPES = st.lists(st.integers(0, 5), max_size=3)


@settings(max_examples=80)
@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), SHAPES), max_size=6), st.integers(0, 2**31))
def test_tensors_of_any_kind_and_shape_pass_through_the_arena(kinds: list[tuple[str, list[int]]], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for i, (dtype, shape) in enumerate(kinds):
        numbers = torch.randint(0, 2, shape, generator=generator).to(DTYPES[dtype])
        tensors[f"t/{i}"] = numbers.transpose(0, -1) if len(shape) > 1 and i % 2 else numbers  # strided as well
    packer = Packer()
    layout = json.loads(json.dumps(packer.lay(tensors)))
    arena = Arena.create(packer.size)
    packer.write(arena)
    got = arena.get(layout, copy=True)
    arena.close()
    assert list(got) == list(tensors)
    for name, tensor in tensors.items():
        assert got[name].dtype == tensor.dtype
        assert got[name].shape == tensor.shape
        assert torch.equal(got[name], tensor)
        assert got[name].data_ptr() % 64 == 0 or not got[name].numel()


def test_special_values_keep_their_bits_in_the_arena() -> None:
    values = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45])
    packer = Packer()
    layout = packer.lay({"x": values, "half": values.half(), "grad": values.clone().requires_grad_()})
    arena = Arena.create(packer.size)
    packer.write(arena)
    got = arena.get(layout, copy=True)
    arena.close()
    assert torch.equal(got["x"].view(torch.int32), values.view(torch.int32))
    assert torch.equal(got["half"].view(torch.int16), values.half().view(torch.int16))
    assert not got["grad"].requires_grad


def test_one_tensor_for_many_takes_one_place() -> None:
    packer, model = Packer(), torch.zeros(100)
    first, second = packer.lay({"model/w": model}), packer.lay({"model/w": model, "own": torch.zeros(1)})
    assert first[0] == second[0]
    assert packer.size == 448 + 64  # 400 bytes and 4, each rounded up to 64


def test_what_cannot_travel_is_refused_by_name() -> None:
    with pytest.raises(HoldfastError, match=r"model/w is a torch.sparse_coo tensor"):
        Packer().lay({"model/w": torch.zeros(3).to_sparse()})
    with pytest.raises(TypeError):
        Parcel.of(Reply(0, {}, {"loss": torch.zeros(1)}))


def test_large_and_growing_messages_and_replies() -> None:
    plan = make_plan(experiment(task="engine_helpers:echo", workers=2))
    federation = Embedded(plan.experiment, plan.stage.sizes, None, 2)
    try:
        for round, length in enumerate([0, 1, 1000, 3_000_000, 10, 6_000_000]):
            sent = torch.arange(length, dtype=torch.int64)
            extra = {"half": torch.ones(3).half(), "flag": torch.tensor([True, False]), "none": torch.zeros(2, 0)}
            tensors = {"x": sent, **extra}
            answers = federation.ask([Message(client, round, "echo", tensors) for client in federation.clients])
            for client, answer in enumerate(answers):
                assert isinstance(answer, Reply)
                assert torch.equal(answer.tensors["x"], sent + client)
                assert all(torch.equal(answer.tensors[name], tensor) for name, tensor in extra.items())
                assert answer.tensors["flag"].dtype == torch.bool
    finally:
        federation.close()


@pytest.mark.parametrize("length", [10, 400_000])  # many fit into a worker's arena, or two
@pytest.mark.parametrize("one_by_one", [False, True])
def test_replies_that_wait_in_the_arena_outlive_their_worker(length: int, one_by_one: bool) -> None:
    plan = make_plan(experiment(task="engine_helpers:echo", workers=1))
    federation = Embedded(plan.experiment, plan.stage.sizes, None, 1)
    try:
        sent = [torch.full((length,), place) for place in range(60)]
        messages = [Message(place % 4, 0, "die" if place == 50 else "echo", {"x": x}) for place, x in enumerate(sent)]
        answers = federation.each(messages) if one_by_one else iter(federation.ask(messages))
        for place, answer in enumerate(answers):
            if place == 50:
                assert answer == Absent(2, f"its worker process died (signal {signal.SIGKILL.value})")
            else:
                assert isinstance(answer, Reply)
                assert torch.equal(answer.tensors["x"], sent[place] + place % 4)
                assert 0 < answer.took < GENEROUS
    finally:
        federation.close()


def test_a_reply_that_cannot_travel_costs_one_client_and_not_its_worker() -> None:
    plan = make_plan(experiment(task="engine_helpers:echo", workers=1))
    federation = Embedded(plan.experiment, plan.stage.sizes, None, 1)
    try:
        pid = federation._workers[0].process.pid
        answers = federation.ask([Message(0, 3, "sparse"), Message(1, 3, "echo", {"x": torch.ones(1)})])
        assert isinstance(answers[0], Absent)
        assert answers[0].reason == f"failed in job 'sparse' of round 4: {SENTENCES['internal']}"
        assert isinstance(answers[1], Reply)
        assert federation._workers[0].process.pid == pid
    finally:
        federation.close()


@pytest.mark.parametrize(
    ("text", "said", "workers", "begun"),
    [
        ("rounds = 2\nworkers = 2\n", [], None, True),
        ('{\n  "workers": 2,\n}', ["workers=3"], None, True),
        ("workers = 0\n", [], None, False),
        ('{\n  "workers": 0,\n}', [], None, False),
        ("rounds = 2\n", ["workers=0"], None, False),
        ("rounds = 2\n", [], "0", False),
        (None, [], None, False),  # there is no such file
    ],
)
def test_the_process_that_workers_are_forked_from_is_begun_ahead_where_there_are_workers(
    text: str | None, said: list[str], workers: str | None, begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", lambda: calls.append(True))
    monkeypatch.delenv("HOLDFAST_WORKERS", raising=False)
    if workers is not None:
        monkeypatch.setenv("HOLDFAST_WORKERS", workers)
    if text is not None:
        (tmp_path / "run.toml").write_text(text)
    begin_ahead(tmp_path / "run.toml", said)
    assert not calls  # torch is imported here
    monkeypatch.delitem(sys.modules, "torch")
    begin_ahead(tmp_path / "run.toml", said)
    assert bool(calls) == begun


def test_a_worker_whose_replies_nobody_takes_any_more_ends_quietly() -> None:
    ours, theirs = Pipe()
    outbox = Outbox(theirs)
    outbox.send(Parcel.of(Reply(0, {"a": torch.ones(2)}, {})))
    ours.send_bytes(STOP)
    with pytest.raises(EOFError):  # which is no complaint
        outbox.wait()
