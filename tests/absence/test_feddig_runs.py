"""FedDig in whole runs: memories handed over, scenarios, every algorithm, kill and resume, workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_helpers import child, play_quietly, same_bits, wait_until
from feddig_helpers import experiment

from holdfast.absence.client_memory import memory_of
from holdfast.algorithms import ALGORITHMS
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import SENTENCES
from holdfast.core.types import Message, State, Tensors
from holdfast.data.task import Samples, Task
from holdfast.digests.digest import open_digest
from holdfast.play import federation_of, one_thread, resume, run
from holdfast.record import Record
from holdfast.round import play_round
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment
from holdfast.runs.history import History
from holdfast.runs.plan import Plan

REMEMBER = [name for name, kind in ALGORITHMS.items() if kind.remembers]
AWAY = {"name": "intervals", "away": [[1, 2, 4]]}  # client 1 is away in rounds 2 and 3, and back in round 4


def equal(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def play(plan: Plan, rounds: int) -> tuple[list[State], list[Record], list[dict[int, Tensors]], list[Message]]:
    """Some rounds in this process: states, records, the clients' own memories after each, and all messages."""
    from holdfast.engines.inline import Inline

    model = plan.model()
    clients = {id: plan.client(id, model, None) for id in range(plan.experiment.clients)}
    states, records, memories = [plan.start()], [], []
    heard: list[Message] = []

    class Listening(Inline):
        def _ask(self, message: Message):  # type: ignore[no-untyped-def]
            heard.append(message)
            return super()._ask(message)

    with one_thread(), federation_of(plan, None, lambda plan, folder: Listening(clients)) as federation:
        for _ in range(rounds):
            state, record = play_round(states[-1], federation, plan.method)
            states.append(state)
            records.append(record)
            memories.append({id: client.memory.read(state.accepted.get(id, -1)) for id, client in clients.items()})
    return states, records, memories, heard


@pytest.mark.parametrize("algorithm", REMEMBER)
def test_the_moderator_follows_each_clients_memory_bit_for_bit(algorithm: str) -> None:
    """While all are there, while one is away (its stand-in's goes on), and after it is back."""
    plan = make_plan(experiment(algorithm=algorithm, scenario=AWAY, rounds=6))
    states, records, memories, messages = play(plan, 6)
    assert [record.stand_ins for record in records] == [[], [1], [1], [], [], []]
    for state, own in zip(states[1:], memories, strict=True):
        for client in range(4):
            if client == 1 and state.round in (2, 3):  # away: the moderator is ahead of it
                assert not equal(memory_of(state, 1), own[1])
            else:
                assert own[client], "an empty memory would prove nothing"
                assert equal(memory_of(state, client), own[client])
    for message in messages:
        handed = {name: tensor for name, tensor in message.tensors.items() if name.startswith("memory/")}
        returns = message.client == 1 and message.round == 3
        assert bool(handed) is returns, "memory travels only to a client that returns"
        if returns:
            assert equal(handed, {f"memory/{n}": t for n, t in memory_of(states[3], 1).items()})


@pytest.mark.parametrize(
    "algorithm", [n for n, a in ALGORITHMS.items() if n != "fedbn" and not a.one_message]
)  # fedbn needs norms
@pytest.mark.parametrize("scenario", ["sequential", "group", "temporary", "forever"])
def test_feddig_goes_with_every_algorithm_in_every_scenario(algorithm: str, scenario: str) -> None:
    history = run(experiment(algorithm=algorithm, scenario=scenario, rounds=6))
    state = history.state
    assert state is not None
    assert all(bool(tensor.isfinite().all()) for tensor in state.model.values())
    assert not [note for record in history.records for note in record.notes]
    for record in history.records:
        heard = [set(range(4)) - earlier.absent.keys() for earlier in history.records[: record.round - 1]]
        had = set().union(*heard)
        assert set(record.stand_ins) == had & set(record.absent), "who left a digest has a stand-in while away"
        assert sum(record.weights.values()) == pytest.approx(1.0)
    assert sorted(state.digests) == [0, 1, 2, 3]
    assert open_digest(state.digests[0]).dropped == 2, "20 samples in threes"


def test_when_all_have_left_the_model_still_learns_and_remembers() -> None:
    """One class each: without stand-ins the last client to leave would take all predictions with it."""
    options = {"rounds": 12, "lr": 0.2, "scenario": "sequential"}
    with_digests = run(experiment(**options))
    without = run(experiment(**options, absence="none"))
    assert with_digests.final_accuracy > 0.9
    assert without.final_accuracy < with_digests.final_accuracy - 0.2
    assert with_digests.records[-1].absent.keys() == {0, 1, 2, 3}


def test_a_client_with_fewer_samples_than_spd_still_takes_part() -> None:
    history = run(experiment(absence="feddig:spd=21", rounds=2))
    assert all(record.weights.keys() == {0, 1, 2, 3} for record in history.records)
    assert history.state is not None
    assert not history.state.digests
    notes = history.records[0].notes
    assert len(notes) == 4
    assert SENTENCES["few"] in notes[0]


@pytest.mark.parametrize("bits", ["32", "16", "8", "6", "4"])
def test_fewer_bits_give_nearly_the_same_features(bits: str) -> None:
    whole, small = (run(experiment(absence=f"feddig:spd=3,bits={b}", rounds=1)).state for b in ("32", bits))
    assert whole is not None
    assert small is not None
    for client in range(4):
        exact, near = open_digest(whole.digests[client]), open_digest(small.digests[client])
        step = {"32": 0.0, "16": 1e-3, "8": 1 / 255, "6": 1 / 63, "4": 1 / 15}[bits]
        spread = float(exact.features.max() - exact.features.min())
        assert float((exact.features - near.features).abs().max()) <= step * max(spread, 1.0) / 2 + 1e-6
        assert torch.equal(exact.labels, near.labels)


def test_a_model_that_reads_no_features_is_refused() -> None:
    with pytest.raises(HoldfastError, match="choose model = 'features' or 'full'"):
        make_plan(experiment(model="cnn"))


KINDS = {
    "features": {"model": "features:8"},
    "full": {"model": "full:width=4,hidden=8"},
    "full on maps, batch norm, SCAFFOLD": {
        "model": "full:norm=batch,width=4,hidden=8",
        "encoder": {"name": "feddig_helpers:Means", "flat": False},
        "algorithm": "scaffold",
    },
    "averaged, refreshed, AdaBest": {"absence": "feddig:spd=3,server_epochs=2,refresh=2", "algorithm": "adabest"},
}


def whole_state(history: History) -> Tensors:
    state = history.state
    assert state is not None
    digests = {f"digest/{c}/{name}": tensor for c, digest in state.digests.items() for name, tensor in digest.items()}
    return {**digests, **state.absence}


def assert_same(history: History, reference: History) -> None:
    assert same_bits(history, reference)
    assert equal(whole_state(history), whole_state(reference)), "digests, P_G and memories too"
    assert history.accuracy == reference.accuracy
    assert [record.stand_ins for record in history.records] == [record.stand_ins for record in reference.records]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_goes_on_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    wanted = experiment(**KINDS[kind], scenario=AWAY, rounds=5)
    reference = run(wanted)
    for stop in (1, 3):

        class Stopped(Exception):
            pass

        def watch(record: Record, last: int = stop, stopped: type[Exception] = Stopped) -> None:
            if record.round == last:
                raise stopped

        folder = tmp_path / str(stop)
        with pytest.raises(Stopped):
            run(wanted, folder, watch)
        assert_same(resume(folder), reference)


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    wanted = experiment(model="full:width=4,hidden=8", algorithm="scaffold", scenario="sequential", rounds=12)
    folder = tmp_path / "run"
    process = child(play_quietly, folder, wanted)
    try:
        wait_until(lambda: len(list(folder.glob("checkpoints/0000*[4-9].safetensors"))), "the fourth checkpoint")
    finally:
        process.kill()
        process.join()
    assert not (folder / "model.safetensors").exists(), "it was killed on its way"
    assert_same(resume(folder), run(wanted))


@pytest.mark.parametrize("kind", ["features", "full"])
def test_two_workers_give_the_bits_of_one_process(kind: str) -> None:
    wanted = {**KINDS[kind], "scenario": AWAY, "algorithm": "scaffold", "rounds": 5}  # type: ignore[dict-item]
    assert_same(run(experiment(**wanted, workers=2)), run(experiment(**wanted)))


def waves() -> Task:
    """Short series of three frequencies: 480 of them make fewer than 100 rows of digests."""
    chance = torch.Generator().manual_seed(1)

    def drawn(count: int) -> Samples:
        kinds, time = torch.arange(count) % 3, torch.linspace(0, 1, 64)
        phase = torch.rand(count, 1, generator=chance) * 6.28
        series = torch.sin(6.28 * torch.tensor([2.0, 4.0, 7.0])[kinds][:, None] * time + phase)
        return Samples(((series + 0.5 * torch.randn(count, 64, generator=chance))[:, None],), kinds)

    return Task("waves", drawn(480), drawn(240), ("low", "middle", "high"))


def test_with_few_rows_the_server_step_does_not_swing() -> None:
    """With twice the learning rate each round went further than the last: 67 % in rounds 7 and 8."""
    history = run(Experiment(task=waves(), clients=4, absence="feddig", rounds=8, seed=200, workers=0))
    assert min(record.accuracy or 0.0 for record in history.records[2:]) > 0.99
