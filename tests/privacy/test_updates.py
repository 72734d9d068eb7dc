"""Protected updates: what is entered and refused at the client, and what kill and resume cost."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from release_helpers import client, experiment
from torch import nn

from holdfast.absence import AbsencePolicy, FedDig
from holdfast.algorithms import ALGORITHMS
from holdfast.client import Client, perform
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import SENTENCES
from holdfast.core.types import Message, Reply, pack, unpack
from holdfast.learning.settings import Learning
from holdfast.models.networks import weights_of
from holdfast.play import resume, run
from holdfast.privacy.dp_sgd import DpSgd, Guard
from holdfast.privacy.gate import LEDGER, POLICY
from holdfast.privacy.ledger import read_ledger, read_policy
from holdfast.runs.build import make_plan
from holdfast.runs.presets import parse_method

DELTA = 1e-5
BOTH = 'max_epsilon = 100.0\ndelta = 1e-5\nmodes = ["moments", "dp-sgd"]\n'


# At one client --------------------------------------------------------------------------------------------------


def guarded(
    folder: Path | None = None, rounds: int = 4, epsilon: float = 3.0, absence: AbsencePolicy | None = None
) -> Client:
    owner = client(absence or AbsencePolicy(), folder=folder)  # type: ignore[arg-type]
    return replace(owner, learning=Learning(batch_size=100), guard=Guard(DpSgd(3.0), rounds, "series", keep=3))


def ask(owner: Client, round: int, shift: float = 0.0, **scalars: object) -> Message:
    sent = {name: weight + shift for name, weight in weights_of(nn.Linear(9, 4)).items()}
    return Message(owner.id, round, "train", pack(model=sent), {"accepted": -1, "lr": 0.1, "digest": False, **scalars})


def entries(folder: Path) -> list[str]:
    return [entry.what for entry in read_ledger(folder / LEDGER).entries]


def house(tmp_path: Path, policy: str | None = BOTH) -> Path:
    folder = tmp_path / "clients" / "0000"
    folder.mkdir(parents=True)
    if policy:
        (folder / POLICY).write_text(policy)
    return folder


def test_each_round_is_entered_and_all_of_them_cost_what_was_promised(tmp_path: Path) -> None:
    folder = house(tmp_path)
    owner = guarded(folder)
    for round in range(4):
        reply = perform(owner, ask(owner, round))
        assert "loss" not in reply.scalars  # it would tell of records
        assert reply.scalars["steps"] == 4
    assert entries(folder) == [f"update of corners, client 0, round {round}" for round in (1, 2, 3, 4)]
    ledger = read_ledger(folder / LEDGER)
    assert ledger.epsilon(DELTA) == pytest.approx(3.0, rel=6e-3)
    assert {entry.claim.mode for entry in ledger.entries} == {"dp-sgd"}
    with pytest.raises(HoldfastError, match="4 releases have used up epsilon 3 at delta 1e-05"):
        perform(owner, ask(owner, 4))  # one more than was planned
    assert len(entries(folder)) == 4
    with pytest.raises(HoldfastError, match="used up"):
        perform(guarded(folder), ask(owner, 4))  # nor after a restart


def test_another_experiment_on_the_same_records_counts_too(tmp_path: Path) -> None:
    folder = house(tmp_path, 'max_epsilon = 4.0\ndelta = 1e-5\nmodes = ["dp-sgd"]')
    first = guarded(folder, rounds=1)
    perform(first, ask(first, 0))
    other = replace(first, guard=Guard(DpSgd(3.0), 1, "another"))
    with pytest.raises(HoldfastError, match=r"above max_epsilon = 4 \(2\.\d+ is spent already\)"):
        perform(other, ask(other, 0))


def test_the_very_same_message_gets_the_very_same_reply_at_no_cost(tmp_path: Path) -> None:
    folder = house(tmp_path)
    owner = guarded(folder)
    message = ask(owner, 0)
    first, again = perform(owner, message), perform(guarded(folder), message)
    assert first.tensors.keys() == again.tensors.keys()
    assert all(torch.equal(first.tensors[name], again.tensors[name]) for name in first.tensors)
    assert (first.scalars, len(entries(folder))) == (again.scalars, 1)
    changed = perform(owner, ask(owner, 0, shift=0.5))  # another model for the same round is another release
    assert not torch.equal(changed.tensors["delta/weight"], first.tensors["delta/weight"])
    assert len(entries(folder)) == 2


def test_a_damaged_or_lost_reply_is_made_anew_and_paid_for(tmp_path: Path) -> None:
    folder = house(tmp_path)
    owner, message = guarded(folder), ask(guarded(folder), 0)
    first = perform(owner, message)
    [kept] = (folder / "updates").glob("*.safetensors")
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    second = perform(owner, message)
    assert not torch.equal(first.tensors["delta/weight"], second.tensors["delta/weight"])  # new noise
    shutil.rmtree(folder / "updates")
    perform(owner, message)
    assert len(entries(folder)) == 3


def test_old_replies_are_not_kept_for_ever(tmp_path: Path) -> None:
    folder = house(tmp_path)
    owner = guarded(folder, rounds=20)
    for round in range(5):
        perform(owner, ask(owner, round))
    assert sorted(path.stem for path in (folder / "updates").glob("*.safetensors")) == ["000002", "000003", "000004"]
    perform(owner, ask(owner, 2, shift=1.0))  # a resumed run goes another way: later replies are void
    assert [path.stem for path in (folder / "updates").glob("*.safetensors")] == ["000002"]


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ('max_epsilon = 0.5\ndelta = 1e-5\nmodes = ["dp-sgd"]', "above max_epsilon = 0.5"),
        ('max_epsilon = 9\ndelta = 1e-5\nmodes = ["moments"]', "mode 'dp-sgd' is not allowed"),
        (
            'max_epsilon = 9\ndelta = 1e-5\nmodes = ["dp-sgd"]\nprotect_updates = 1',
            "protect_updates has the wrong type",
        ),
        ("max_epsilon = 9", "delta is missing"),
    ],
)
def test_what_the_policy_forbids_does_not_leave(policy: str, sentence: str, tmp_path: Path) -> None:
    folder = house(tmp_path, policy)
    owner = guarded(folder, rounds=1)
    with pytest.raises(HoldfastError, match=sentence):
        perform(owner, ask(owner, 0))
    assert not (folder / LEDGER).exists()


@pytest.mark.parametrize("damage", ["{}", None])
def test_with_a_damaged_or_missing_ledger_no_update_leaves(damage: str | None, tmp_path: Path) -> None:
    folder = house(tmp_path)
    owner = guarded(folder)
    perform(owner, ask(owner, 0))
    (folder / LEDGER).unlink()
    if damage is not None:
        (folder / LEDGER).write_text(damage)
    with pytest.raises(HoldfastError, match="nothing is released"):
        perform(owner, ask(owner, 1))


def test_a_policy_may_insist_on_protected_updates(tmp_path: Path) -> None:
    folder = house(tmp_path, BOTH + "protect_updates = true\n")
    assert read_policy(folder / POLICY).protect_updates
    owner = guarded(folder)
    with pytest.raises(HoldfastError, match="updates must be protected and this experiment's are not"):
        perform(replace(owner, guard=None), ask(owner, 0))
    assert perform(owner, ask(owner, 0)).tensors


def test_updates_and_digests_share_one_ledger(tmp_path: Path) -> None:
    folder = house(tmp_path)
    owner = guarded(folder, absence=FedDig(mode="moments"))
    reply = perform(owner, ask(owner, 0, digest=True))
    assert unpack(reply.tensors, "digest")
    assert [entry.claim.mode for entry in read_ledger(folder / LEDGER).entries] == ["dp-sgd", "moments"]


def test_batches_and_dropout_are_nobodys_to_foresee(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the noise switched off, two trainings from one seed still differ: in their batches and their dropout."""
    monkeypatch.setattr("holdfast.privacy.dp_steps.Noisy.noised", lambda self, total: total)
    deltas = []
    for batch_size in (100, 100, 400, 400):  # 400: every record in every batch, so only dropout is left to chance
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(9, 8), nn.Dropout(0.5), nn.Linear(8, 4))
        owner = replace(guarded(), model=model, learning=Learning(batch_size=batch_size))
        sent = {name: torch.ones_like(weight) for name, weight in weights_of(model).items()}
        message = Message(0, 0, "train", pack(model=sent), {"accepted": -1, "lr": 0.1, "digest": False})
        deltas.append(perform(owner, message).tensors["delta/2.weight"])
    assert not torch.equal(deltas[0], deltas[1])
    assert not torch.equal(deltas[2], deltas[3])


# In a run -------------------------------------------------------------------------------------------------------


def protected(**changes: object) -> object:
    usual = {"absence": "none", "scenario": "none", "rounds": 2, "batch_size": 64, "protect": "dp-sgd:epsilon=3"}
    return experiment(**{**usual, **changes})


@pytest.mark.parametrize(
    "algorithm",
    [
        name
        for name, kind in ALGORITHMS.items()
        if name not in ("fedbn", "oneshot") and not (kind.needs_gradient or kind.asks_gradients)
    ],
)  # norms; no updates; exact gradients
def test_every_algorithm_learns_from_protected_updates(algorithm: str) -> None:
    """Corrections are post-processing: each algorithm gets what the others send, noised, and nothing else."""
    history = run(protected(algorithm=algorithm, model="linear"))  # type: ignore[arg-type]
    assert history.records[-1].absent == {}
    assert history.records[-1].loss is None
    assert not any("diverged" in note for record in history.records for note in record.notes)


def test_a_model_that_mixes_records_is_refused_before_round_1() -> None:
    with pytest.raises(HoldfastError, match="BatchNorm2d, which mixes the records of a batch"):
        make_plan(protected(model={"name": "cnn", "norm": "batch", "width": 4}))  # type: ignore[arg-type]


def test_a_client_beyond_its_policy_is_absent_with_the_reason(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('max_epsilon = 2.5\ndelta = 1e-5\nmodes = ["dp-sgd"]')
    protect = {"name": "dp-sgd", "epsilon": 3.0, "policy": str(policy)}
    history = run(protected(protect=protect, rounds=4), tmp_path / "out")  # type: ignore[arg-type]
    assert [sorted(record.weights) for record in history.records[:2]] == [[0, 1, 2]] * 2
    last = history.records[-1]
    assert sorted(last.absent) == [0, 1, 2]
    assert SENTENCES["budget"] in last.absent[0]
    assert "above max_epsilon = 2.5" in (tmp_path / "out" / "failures.log").read_text()
    for id in range(3):
        ledger = read_ledger(tmp_path / "out" / "clients" / f"{id:04d}" / LEDGER)
        assert 1.5 < ledger.epsilon(DELTA) <= 2.5


def test_a_run_that_lost_its_rounds_is_the_same_to_the_bit_and_costs_nothing_more(tmp_path: Path) -> None:
    keys = {"algorithm": "scaffold", "rounds": 4}
    first = run(protected(**keys), tmp_path / "out")  # type: ignore[arg-type]
    model = (tmp_path / "out" / "model.safetensors").read_bytes()
    ledger = tmp_path / "out" / "clients" / "0001" / LEDGER
    before = ledger.read_bytes()
    forget(tmp_path / "out")
    again = resume(tmp_path / "out")
    assert again.accuracy == first.accuracy
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == model
    assert ledger.read_bytes() == before


def test_a_run_whose_replies_are_lost_as_well_gets_no_fresh_budget(tmp_path: Path) -> None:
    run(protected(rounds=4), tmp_path / "out")  # type: ignore[arg-type]
    forget(tmp_path / "out")
    for kept in (tmp_path / "out" / "clients").glob("*/updates"):
        shutil.rmtree(kept)
    again = resume(tmp_path / "out")
    assert all(sorted(record.absent) == [0, 1, 2] for record in again.records)
    assert SENTENCES["budget"] in again.records[0].absent[0]
    assert "4 releases have used up epsilon 3" in (tmp_path / "out" / "failures.log").read_text()


def forget(folder: Path) -> None:
    for lost in ("checkpoints", "digests"):
        shutil.rmtree(folder / lost, ignore_errors=True)
    for lost in ("rounds.jsonl", "model.safetensors"):
        (folder / lost).unlink()


def test_one_policy_holds_for_digests_and_updates(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(BOTH)
    absence = {"name": "feddig", "mode": "moments", "policy": str(policy)}
    plan = make_plan(protected(absence=absence))  # type: ignore[arg-type]
    assert plan.guard is not None
    assert plan.guard.options.policy == str(policy)
    protect = {"name": "dp-sgd", "policy": str(policy)}
    plan = make_plan(protected(protect=protect, absence={"name": "feddig", "mode": "moments"}))  # type: ignore[arg-type]
    assert isinstance(plan.method.absence, FedDig)
    assert plan.method.absence.policy == str(policy)
    with pytest.raises(HoldfastError, match="name two files"):
        make_plan(protected(protect={**protect, "policy": "another.toml"}, absence=absence))  # type: ignore[arg-type]


def test_a_method_may_name_its_protection() -> None:
    assert parse_method("fedprox+feddig+dp-sgd:epsilon=1") == {
        "algorithm": "fedprox", "absence": "feddig", "protect": "dp-sgd:epsilon=1",
    }  # fmt: skip
    assert protected().method == "fedavg+dp-sgd epsilon=3"  # type: ignore[attr-defined]


def test_a_reply_without_disk_is_made_each_time() -> None:
    owner = guarded()
    message = ask(owner, 0)
    first, second = perform(owner, message), perform(owner, message)
    assert isinstance(first, Reply)
    assert not torch.equal(first.tensors["delta/weight"], second.tensors["delta/weight"])
