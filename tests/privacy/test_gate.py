"""One gate: what leaves a client under a policy, channel by channel, and what it costs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from curious_helpers import Curious
from engine_helpers import experiment
from release_helpers import experiment as private

from holdfast.audit.findings import examine
from holdfast.audit.target import subject_of
from holdfast.core.errors import HoldfastError
from holdfast.play import run
from holdfast.privacy.channels import CHANNELS
from holdfast.privacy.gate import LEDGER, pass_gate
from holdfast.privacy.ledger import Policy, read_ledger, read_policy
from holdfast.privacy.noise import system

BOUNDED = 'max_epsilon = 3.0\ndelta = 1e-5\nmodes = ["moments", "dp-sgd"]\n'


def strict(path: Path, channels: str = "") -> Path:
    (path / "privacy.toml").write_text(f"{BOUNDED}contact = 'ext. 4711'\n[channels]\n{channels}")
    return path / "privacy.toml"


def test_a_bounded_policy_keeps_everything_home_that_it_does_not_name():
    policy = Policy(3.0, 1e-5, ("moments",))
    tensors = {"delta/w": torch.ones(1), "digest/x": torch.ones(1)}
    said = {"loss": 0.3, "samples": 40, "steps": 2, "notes": ["memory-lost"], "patches": {"1": 0.0}}
    left, words = pass_gate(policy, tensors, said)
    assert left == tensors  # noised before, or refused
    assert words == {"samples": 40, "steps": 2}
    assert pass_gate(None, tensors, said)[1] == said
    with pytest.raises(HoldfastError, match="'diary' is no part of a reply that a channel declares"):
        pass_gate(policy, {}, {"diary": "Anna"})
    with pytest.raises(HoldfastError, match="has buffers, which are off"):
        pass_gate(policy, {"buffers/mean": torch.ones(1)}, {})


def test_every_channel_can_be_opened_by_name(tmp_path: Path):
    names = [name for name in CHANNELS if name not in ("update", "digest")]
    policy = read_policy(strict(tmp_path, "".join(f'{name} = "open"\n' for name in names)))
    assert {policy.rule(name).state for name in names} == {"open"}
    assert not policy.refuses("test")
    assert policy.contact == "ext. 4711"


def test_noised_metrics_are_entered_in_the_ledger_and_end_with_the_budget(tmp_path: Path):
    wanted = experiment(rounds=3, absence={"name": "none"}, protect={"name": "none"}, workers=0)
    folder = tmp_path / "run"
    (folder / "clients" / "0000").mkdir(parents=True)
    strict(folder / "clients" / "0000", 'metrics = "noised:1.2"\nupdate = "open"\n')
    text = (folder / "clients" / "0000" / "privacy.toml").read_text()
    (folder / "clients" / "0000" / "privacy.toml").write_text("protect_updates = false\n" + text)
    history = run(wanted, folder)
    ledger = read_ledger(folder / "clients" / "0000" / LEDGER)
    assert [entry.claim.mode for entry in ledger.entries] == ["counts"] * len(ledger.entries)
    assert len(ledger.entries) == 3  # three answers of epsilon 1.2 cost less than 3 together
    assert ledger.epsilon(1e-5) < 3.0
    told = [record.client_metrics["accuracy"][0] for record in history.records]
    exact = [record.client_metrics["accuracy"][0] for record in run(wanted).records]
    assert told != exact
    assert all(0 <= value <= 1 for value in told)
    assert all(record.loss is not None for record in history.records)  # the other clients tell theirs
    again = run(experiment(rounds=9, workers=0), tmp_path / "free")
    assert len(again.records) == 9


def test_the_budget_ends_the_answers_and_nothing_else(tmp_path: Path):
    folder = tmp_path / "run"
    (folder / "clients" / "0000").mkdir(parents=True)
    policy = strict(folder / "clients" / "0000", 'metrics = "noised:2"\n')
    policy.write_text("protect_updates = false\n" + policy.read_text())
    history = run(experiment(rounds=4, workers=0), folder)
    told = [0 in record.client_metrics["accuracy"] for record in history.records]
    assert told[0]
    assert not told[-1]
    assert all(0 in record.weights for record in history.records)  # it trains on
    assert read_ledger(folder / "clients" / "0000" / LEDGER).epsilon(1e-5) <= 3.0


def test_a_site_withholds_why_it_failed_where_that_may_depend_on_records(tmp_path: Path):
    def broken(config):
        raise ValueError("Anna Muster, born 1961")

    bounded = "min_records = 0\n[privacy]\nmax_epsilon = 1.0\ndelta = 1e-5\nmodes = ['dp-sgd']\n"
    asking = Curious(tmp_path, experiment(), bounded, samples=broken)
    assert asking.train().error == "withheld"
    assert asking.book()[-1]["refused"] == "data"  # its own book has it
    assert Curious(tmp_path / "b", experiment(), bounded).ask("evaluate", asking.model).error == "closed"
    opened = Curious(tmp_path / "c", experiment(), bounded + "channels = {{errors = 'open'}}\n", samples=broken)
    assert opened.train().error == "data"


def test_an_experiment_passes_only_if_no_channel_is_open(tmp_path: Path):
    named = strict(tmp_path)
    wanted = experiment(protect={"name": "dp-sgd", "epsilon": 2, "policy": str(named)}, batch_size=64, rounds=2)
    path = tmp_path / "e.json"
    path.write_text(json.dumps({"schema": 1, **wanted.as_json()}))
    found = examine(subject_of(path), system(), trials=40)
    states = {channel.name: channel.state for channel in found.channels}
    assert states["updates"] == "protected"
    assert {states[name] for name in ("metrics", "notes", "errors", "working time")} == {"off"}
    assert math.isfinite(found.epsilon_total)
    assert found.verdict == "PASS"
    strict(tmp_path, 'metrics = "noised:0.5"\n')
    noised = examine(subject_of(path), system(), trials=40)
    assert noised.verdict == "PASS"
    assert found.epsilon_total < noised.epsilon_total < found.epsilon_total + 2 * 0.5
    strict(tmp_path, 'metrics = "open"\n')
    opened = examine(subject_of(path), system(), trials=40)
    assert (opened.epsilon_total, opened.verdict) == (math.inf, "NO GUARANTEE")


def test_one_message_under_a_strict_policy_is_a_promise_about_everything(tmp_path: Path):
    absence = {"name": "feddig", "mode": "moments", "epsilon": 2.5, "policy": str(strict(tmp_path))}
    wanted = private(algorithm="oneshot", absence=absence, rounds=1, model="auto")
    path = tmp_path / "e.json"
    path.write_text(json.dumps({"schema": 1, **wanted.as_json()}))
    found = examine(subject_of(path), system(), trials=40)
    assert {channel.name for channel in found.channels if channel.state == "protected"} == {"digests"}
    assert not found.in_state("open")
    assert (found.verdict, round(found.epsilon_total, 2)) == ("PASS", 2.5)
    folder = tmp_path / "run"
    history = run(wanted, folder)
    assert history.records[-1].metrics["accuracy"] > 0.5  # the moderator's own test set
    assert not history.records[-1].client_metrics.get("accuracy")
    for client in range(wanted.clients):
        ledger = read_ledger(folder / "clients" / f"{client:04d}" / LEDGER)
        assert [entry.claim.mode for entry in ledger.entries] == ["moments"]
