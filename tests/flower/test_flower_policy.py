"""A site's own word on what may be asked of it: enforced at the site, and told to the moderator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_helpers import experiment
from flower_helpers import in_process, nodes, play
from release_helpers import experiment as private

from holdfast.core.errors import HoldfastError
from holdfast.core.failures import SENTENCES, Refusal
from holdfast.core.types import Message
from holdfast.flower.deploy.policy import SitePolicy, carry_privacy, fingerprint_of, read_site_policy
from holdfast.flower.deploy.questions import Book
from holdfast.flower.deploy.site import client_app
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.flower.engine.moderator import play_over
from holdfast.privacy.ledger import read_ledger
from holdfast.runs.experiment import Experiment
from holdfast.runs.history import History
from holdfast.trust.panel import PASSES

PRIVACY = '[privacy]\nmax_epsilon = 3.5\ndelta = 1e-5\nmodes = ["moments"]\nprotect_updates = false\n'


def play_with(folder: Path, wanted: Experiment, policy: str, run: str = "run", **more: Any) -> History:
    """Play with a policy at site 1; with `names`, keys vouch for the nodes."""
    folder.mkdir(exist_ok=True)
    (folder / "policy.toml").write_text(f"min_records = 0\n{policy}")
    grid = InProcessGrid(client_app(wanted), nodes(folder, wanted.clients), **more)
    grid.nodes[101]["policy"] = str(folder / "policy.toml")
    return play(folder, wanted, grid, gather=0.5, out=str(folder / run))


@pytest.mark.parametrize(
    ("policy", "told", "reason"),
    [
        ('experiments = ["abc"]', "stranger", "policy does not allow experiment"),
        ("max_rounds = 1", "rounds", "all 1 trainings for this experiment are used"),
        ("max_round = 1", "policy", "did you mean 'max_rounds'?"),
        ("digest = 3", "policy", "digest has the wrong type"),
        ("experiments = [3]", "policy", "experiments must be a list of fingerprints"),
        ("[privacy]\nmax_epsilon = 3", "policy", "delta is missing; say what may leave the house"),
        (PRIVACY + "min_spds = 3", "policy", "did you mean 'min_spd'?"),
        ("privacy = 3", "policy", "privacy has the wrong type"),
        ("=", "policy", "this site does nothing until it can"),
    ],
)
def test_a_sites_policy_is_enforced_at_the_site(
    tmp_path: Path, policy: str, told: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = experiment(rounds=2, evaluate_every=2)
    record = play_with(tmp_path, wanted, policy).records[-1]
    assert record.absent == {1: f"failed in job 'train' of round 2: {SENTENCES[told]}"}
    assert reason in caplog.text  # all of it is said at the site


@pytest.mark.parametrize(("policy", "told"), [(PRIVACY, "closed"), (PRIVACY.replace("false", "true"), "closed")])
def test_an_exact_gradient_does_not_leave_where_epsilon_is_bounded(tmp_path: Path, policy: str, told: str) -> None:
    record = play_with(tmp_path, experiment(algorithm="mime", rounds=1), policy).records[-1]
    assert record.absent == {1: f"failed in job 'gradient' of round 1: {SENTENCES[told]}"}
    assert set(record.weights) == {0, 2, 3}


def test_an_experiment_that_the_policy_names_is_played(tmp_path: Path) -> None:
    wanted = experiment(rounds=1)
    [record] = play_with(tmp_path, wanted, f'experiments = ["abc", "{fingerprint_of(wanted)}"]').records
    assert not record.absent


def test_a_digest_that_the_policy_keeps_does_not_leave(tmp_path: Path) -> None:
    wanted = private(absence="feddig", clients=2, rounds=1)
    history = play_with(tmp_path, wanted, "digest = false")
    assert history.state is not None
    assert list(history.state.digests) == [0]
    assert f"client 1's digest is refused: there is none ({SENTENCES['digest-kept']})" in history.records[0].notes
    alone = private(absence="feddig", algorithm="oneshot:server-step", rounds=1, clients=2)
    history = play_with(tmp_path / "alone", alone, "digest = false")
    assert history.records[0].absent[1].endswith(SENTENCES["digest-kept"])


def test_a_refresh_that_the_policy_refuses_ends_the_old_digest(tmp_path: Path) -> None:
    wanted = private(absence="feddig:refresh=1", clients=3, rounds=2, scenario="none")
    (tmp_path / "policy.toml").write_text("min_records = 0\n")
    grid = InProcessGrid(client_app(wanted), nodes(tmp_path, wanted.clients))
    grid.nodes[101]["policy"] = str(tmp_path / "policy.toml")

    def after_round(record: Any) -> None:
        (tmp_path / "policy.toml").write_text("min_records = 0\ndigest = false\n")

    out = {"out": str(tmp_path / "run"), "gather": 0.5}
    history = play_over(grid, wanted, out, watch=after_round)
    assert history.state is not None
    assert sorted(history.state.digests) == [0, 2]
    assert {path.name[:4] for path in (tmp_path / "run" / "digests").iterdir()} == {"0000", "0002"}


@pytest.mark.parametrize("by_key", [False, True])
def test_what_digests_may_cost_holds_for_all_of_a_sites_experiments(
    tmp_path: Path, by_key: bool, caplog: pytest.LogCaptureFixture
) -> None:
    names = {"names": {100 + i: f"site-{i}" for i in range(3)}} if by_key else {}
    caplog.set_level("INFO", "holdfast")
    first, second = private(rounds=1), private(rounds=1, lr=0.01)  # each asks for digests of epsilon 3
    history = play_with(tmp_path, first, PRIVACY, **names)
    assert history.state is not None
    assert sorted(history.state.digests) == [0, 1, 2]
    ledger = tmp_path / "site-1" / "privacy-ledger.json"
    assert [entry.claim.mode for entry in read_ledger(ledger).entries] == ["moments"]
    history = play_with(tmp_path, second, PRIVACY, "again", **names)
    assert history.state is not None
    assert sorted(history.state.digests) == [0, 2]
    assert SENTENCES["budget"] in str(history.records[0])
    assert "above max_epsilon = 3.5 (3 is spent already); nothing was released" in caplog.text
    assert len(read_ledger(ledger).entries) == 1
    assert 1 in history.records[0].weights  # its update counts all the same


def test_a_policy_is_read_anew_for_each_message(tmp_path: Path) -> None:
    wanted = experiment(rounds=3, evaluate_every=3)
    policy = tmp_path / "policy.toml"
    policy.write_text("min_records = 0")
    grid = in_process(tmp_path, wanted, policy=str(policy))
    push, pushes = grid.push_messages, []

    def change_then_push(messages: Any) -> Any:
        pushes.append(messages)
        policy.write_text("min_records = 0\nmax_rounds = 1" if len(pushes) > 5 else "min_records = 0")
        return push(messages)

    grid.push_messages = change_then_push  # type: ignore[method-assign]
    records = play(tmp_path, wanted, grid).records
    assert not records[0].absent
    assert all(SENTENCES["rounds"] in reason for reason in records[2].absent.values())
    assert len(records[2].absent) == 4


def test_the_privacy_section_is_where_the_ledger_looks_for_it_and_nowhere_twice(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(PRIVACY.replace("3.5", "inf"))
    policy = read_site_policy(tmp_path / "policy.toml")
    carry_privacy(policy, tmp_path)
    assert "max_epsilon = inf" in (tmp_path / "privacy.toml").read_text()
    carry_privacy(policy, tmp_path)
    carry_privacy(SitePolicy(), tmp_path)
    assert not (tmp_path / "privacy.toml").exists()
    (tmp_path / "privacy.toml").write_text("max_epsilon = 1.0\n")
    carry_privacy(SitePolicy(), tmp_path)
    with pytest.raises(HoldfastError, match="both say what may leave; keep one of them"):
        carry_privacy(policy, tmp_path)
    assert (tmp_path / "privacy.toml").read_text() == "max_epsilon = 1.0\n"


def test_what_protected_updates_cost_holds_for_all_of_a_sites_experiments(tmp_path: Path) -> None:
    policy = '[privacy]\nmax_epsilon = 3.5\ndelta = 1e-5\nmodes = ["dp-sgd"]\nprotect_updates = true\n'
    keys = {"absence": "none", "scenario": "none", "clients": 2, "rounds": 1, "batch_size": 64}
    first, second = (private(**keys, protect="dp-sgd:epsilon=3", lr=lr) for lr in (0.1, 0.2))
    assert not play_with(tmp_path, first, policy).records[0].absent
    again = play_with(tmp_path, second, policy, "again").records[0]
    assert list(again.absent) == [1]  # the one with a policy
    assert SENTENCES["budget"] in again.absent[1]
    unprotected = play_with(tmp_path, private(**keys), policy, "third").records[0]
    assert SENTENCES["unprotected"] in unprotected.absent[1]
    assert len(read_ledger(tmp_path / "site-1" / "privacy-ledger.json").entries) == 1


def test_a_site_answers_a_panel_once_and_the_search_for_who_harms_as_often_as_it_may_go_on(tmp_path: Path) -> None:
    """The floor asks "replay" and "confirm" again without those left out so far; a site that refused would end it.

    "confirm" is asked once more where those who are left are hushed, and where something is taken out of the model.
    """
    book = Book(tmp_path)
    for job, times in (("panel", 1), ("replay", PASSES), ("confirm", PASSES + 2)):
        questions = [Message(0, 3, job, {"new/w": torch.tensor([float(n)])}) for n in range(times + 1)]
        for question in [*questions[:times], questions[0]]:  # the same one again is no other question
            book.admit(question, max_rounds=None)
        with pytest.raises(Refusal, match=f"round 4 has had its '{job}'"):
            book.admit(questions[times], max_rounds=None)
        book.admit(replace(questions[times], round=4), max_rounds=None)
