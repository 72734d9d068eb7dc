"""A client's policy and ledger: what is refused at the client, what is entered, and what kill and resume cost."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from release_helpers import client, experiment

from holdfast.absence import FedDig
from holdfast.cli.checking import check_file
from holdfast.client import Client
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import SENTENCES
from holdfast.core.types import Tensors
from holdfast.play import resume, run
from holdfast.privacy.gate import LEDGER, POLICY, House, house_of, let_out
from holdfast.privacy.ledger import read_ledger
from holdfast.runs.experiment import Experiment, load
from holdfast.runs.store import Run, refuse_used

STRICT_POLICY = 'max_epsilon = 3.5\ndelta = 1e-5\nmodes = ["moments"]\n'


SAID: list[str] = []  # what clients say at home


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    SAID.clear()
    monkeypatch.setattr("holdfast.absence.feddig.tell_home", lambda folder, text: SAID.append(text))


def digest_of(absence: FedDig, owner: Client, round: int) -> Tensors:
    return absence.make_digest(owner, owner.train, round)


def words(made: dict[str, torch.Tensor]) -> str:
    """What a client says of its digest at home; outside it only ever says a code."""
    if made.keys() != {"none"}:
        return "released"
    assert bytes(made["none"].numpy()).decode() in SENTENCES
    return SAID[-1]


def here(tmp_path: Path, policy: str | None = STRICT_POLICY) -> Path:
    folder = tmp_path / "clients" / "0000"
    folder.mkdir(parents=True)
    if policy is not None:
        (folder / POLICY).write_text(policy)
    return folder


# At one client --------------------------------------------------------------------------------------------------


def test_a_release_is_entered_before_it_leaves_and_one_beyond_the_policy_stays(tmp_path: Path) -> None:
    folder = here(tmp_path)
    absence = FedDig(mode="moments", refresh=5)
    owner = client(absence, folder=folder)
    assert words(digest_of(absence, owner, 0)) == "released"
    assert read_ledger(folder / LEDGER).epsilon(1e-5) == pytest.approx(3.0, abs=1e-3)
    refused = words(digest_of(absence, owner, 5))  # a second one: sqrt(2) times the ratio
    assert "above max_epsilon = 3.5 (3 is spent already); nothing was released." in refused
    assert len(read_ledger(folder / LEDGER).entries) == 1


@pytest.mark.parametrize(
    ("policy", "absence", "sentence"),
    [
        (STRICT_POLICY, FedDig(), "mode 'paper' is not allowed (allowed: moments)"),
        (STRICT_POLICY, FedDig(mode="moments", epsilon=4.0), "above max_epsilon = 3.5"),
        (
            'max_epsilon = inf\ndelta = 0\nmodes = ["paper"]\nmin_spd = 8',
            FedDig(),
            "mixes 4 records, fewer than min_spd",
        ),
        ("max_epsilon = 3\n", FedDig(mode="moments"), "delta is missing; say what may leave the house"),
        ("max epsilon = 3", FedDig(mode="moments"), "it cannot be read"),
        ('max_epsilon = 9\ndelta = 1e-9\nmodes = ["moments"]', FedDig(mode="moments", epsilon=8.0), "at delta 1e-09"),
    ],
)
def test_what_the_policy_forbids_is_refused_with_a_sentence(
    policy: str, absence: FedDig, sentence: str, tmp_path: Path
) -> None:
    folder = here(tmp_path, policy)
    assert sentence in words(digest_of(absence, client(absence, folder=folder), 0))
    assert not (folder / LEDGER).exists()


@pytest.mark.parametrize("damage", ["ledger", "count", "missing"])
def test_with_a_damaged_or_missing_ledger_nothing_leaves(damage: str, tmp_path: Path) -> None:
    folder = here(tmp_path, 'max_epsilon = 100.0\ndelta = 1e-5\nmodes = ["moments"]')
    absence = FedDig(mode="moments", refresh=1)
    owner = client(absence, folder=folder)
    assert words(digest_of(absence, owner, 0)) == "released"
    if damage == "ledger":
        (folder / LEDGER).write_text((folder / LEDGER).read_text().replace("moments", "momentz"))
    elif damage == "count":
        (folder / f"{LEDGER}.count").write_text("three")
    else:
        (folder / LEDGER).unlink()
    assert "released" in (said := words(digest_of(absence, owner, 1)))
    assert ("nothing is released") in said


def test_without_a_policy_everything_leaves_and_is_entered(tmp_path: Path) -> None:
    folder = here(tmp_path, None)
    absence = FedDig(refresh=1)
    for round in range(2):
        assert words(digest_of(absence, client(absence, folder=folder), round)) == "released"
    ledger = read_ledger(folder / LEDGER)
    assert [entry.claim.mode for entry in ledger.entries] == ["paper", "paper"]
    assert ledger.epsilon(1e-5) == math.inf


def test_asked_again_for_the_same_release_a_client_answers_with_the_same_bytes_at_no_cost(tmp_path: Path) -> None:
    folder = here(tmp_path)
    absence = FedDig(mode="moments")
    first = digest_of(absence, client(absence, folder=folder), 0)
    again = digest_of(absence, client(absence, folder=folder), 3)  # its first reply was lost, say
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert len(read_ledger(folder / LEDGER).entries) == 1


def test_a_damaged_copy_is_not_sent_and_a_new_release_is_paid_for(tmp_path: Path) -> None:
    folder = here(tmp_path, 'max_epsilon = 100.0\ndelta = 1e-5\nmodes = ["moments"]')
    absence = FedDig(mode="moments")
    digest_of(absence, client(absence, folder=folder), 0)
    [copy] = (folder / "releases").glob("*.safetensors")
    copy.write_bytes(copy.read_bytes()[:-1] + b"?")
    assert words(digest_of(absence, client(absence, folder=folder), 0)) == "released"
    assert len(read_ledger(folder / LEDGER).entries) == 2


def test_a_release_that_was_entered_but_never_left_counts(tmp_path: Path) -> None:
    folder = here(tmp_path, 'max_epsilon = 4.0\ndelta = 1e-5\nmodes = ["moments"]')
    absence = FedDig(mode="moments")
    digest_of(absence, client(absence, folder=folder), 0)
    shutil.rmtree(folder / "releases")  # killed after the entry, before the copy
    assert "above max_epsilon" in words(digest_of(absence, client(absence, folder=folder), 0))


# Whose policy, whose ledger -------------------------------------------------------------------------------------


def test_the_nearest_policy_counts_and_the_experiments_only_where_there_is_none(tmp_path: Path) -> None:
    folder = here(tmp_path, None)
    named = tmp_path / "named.toml"
    named.write_text(STRICT_POLICY)
    assert house_of(folder).policy is None
    assert house_of(folder, str(named)) == House(named, folder / LEDGER)
    (tmp_path / POLICY).write_text(STRICT_POLICY)  # of the run
    assert house_of(folder, str(named)).policy == tmp_path / POLICY
    (folder / POLICY).write_text(STRICT_POLICY)  # its own
    assert house_of(folder, str(named)).policy == folder / POLICY


def test_a_site_has_one_policy_and_one_ledger_for_all_its_experiments(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text("{}")
    (tmp_path / POLICY).write_text(STRICT_POLICY)
    absence = FedDig(mode="moments")
    for experiment_folder, said in (("one", "released"), ("two", "above max_epsilon")):
        folder = tmp_path / experiment_folder / "clients" / "0000"
        assert said in words(digest_of(absence, client(absence, folder=folder), 0))
    assert len(read_ledger(tmp_path / LEDGER).entries) == 1


def test_a_policy_needs_a_folder_for_its_ledger(tmp_path: Path) -> None:
    named = tmp_path / "named.toml"
    named.write_text(STRICT_POLICY)
    absence = FedDig(mode="moments", policy=str(named))
    assert "give the run a folder" in words(digest_of(absence, client(absence), 0))
    from holdfast.digests.release import claim_of

    let_out(House(None, None), claim_of(absence, (9,), 4), "anything")  # no policy, no disk: a mere simulation
    with pytest.raises(HoldfastError, match="give the run a folder"):
        let_out(House(named, None), claim_of(absence, (9,), 4), "anything")


# In a run -------------------------------------------------------------------------------------------------------


def test_a_refused_client_sends_its_update_without_a_digest_and_the_record_says_why(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('max_epsilon = 2.0\ndelta = 1e-5\nmodes = ["moments"]\nprotect_updates = false')
    absence = {"name": "feddig", "mode": "moments", "epsilon": 3.0, "policy": str(policy)}
    history = run(experiment(absence=absence, rounds=2, scenario="none"), tmp_path / "out")
    first = history.records[0]
    assert sorted(first.weights) == [0, 1, 2]  # all updates counted
    assert len(first.notes) == 3
    assert f"client 1's digest is refused: there is none ({SENTENCES['budget']})" in first.notes[1]
    assert history.state is not None
    assert not history.state.digests


def test_one_client_of_three_refuses(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "clients" / "0002"
    asked = experiment(rounds=2, scenario="none")
    held = Run.create(tmp_path / "out", asked)  # the run's folder is there before its client says what it allows
    held.close()
    folder.mkdir(parents=True)
    (folder / POLICY).write_text("max_epsilon = 1.0\ndelta = 1e-5\nmodes = []\nprotect_updates = false")
    history = resume(tmp_path / "out")
    assert history.state is not None
    assert sorted(history.state.digests) == [0, 1]
    assert SENTENCES["mode"] in history.records[0].notes[0]


def test_policies_may_lie_in_the_runs_folder_before_it_is_started(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "clients" / "0002"
    folder.mkdir(parents=True)
    (folder / POLICY).write_text("max_epsilon = 1.0\ndelta = 1e-5\nmodes = []\nprotect_updates = false")
    (tmp_path / "out" / POLICY).write_text(STRICT_POLICY + "protect_updates = false")
    history = run(experiment(rounds=1, scenario="none"), tmp_path / "out")
    assert history.state is not None
    assert sorted(history.state.digests) == [0, 1]
    for used in ("clients/0002/releases/000000.safetensors", "clients/notes.txt", "rounds.jsonl"):
        other = tmp_path / used.replace("/", "-") / used
        other.parent.mkdir(parents=True)
        other.write_text("")
        with pytest.raises(HoldfastError, match="is not empty"):
            refuse_used(tmp_path / used.replace("/", "-"))


def test_a_named_policy_lies_beside_the_experiment_and_is_read_before_round_1(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "e.toml"
    file.parent.mkdir()
    file.write_text(
        'absence = {name = "feddig", mode = "moments", policy = "strict.toml"}\nsamples = 400\nrounds = 1\n'
    )
    with pytest.raises(HoldfastError, match=r"sub/strict.toml: it cannot be read"):
        run(load(file), tmp_path / "out")
    assert not (tmp_path / "out" / "rounds.jsonl").exists()
    with pytest.raises(HoldfastError, match=r"strict.toml: it cannot be read"):
        check_file(file, [])
    (tmp_path / "sub" / "strict.toml").write_text("max_epsilon = 3")
    with pytest.raises(HoldfastError, match="delta is missing"):
        check_file(file, [])
    (tmp_path / "sub" / "strict.toml").write_text(STRICT_POLICY)
    check_file(file, [])
    with pytest.raises(HoldfastError, match=r"nofile.toml: it cannot be read"):
        check_file(file, ["absence.policy=nofile.toml"])


def test_a_run_that_lost_its_rounds_is_the_same_to_the_bit_and_releases_nothing_twice(tmp_path: Path) -> None:
    first = run(experiment(), tmp_path / "out")
    model = (tmp_path / "out" / "model.safetensors").read_bytes()
    for lost in ("checkpoints", "digests"):
        shutil.rmtree(tmp_path / "out" / lost)
    for lost in ("rounds.jsonl", "model.safetensors"):
        (tmp_path / "out" / lost).unlink()
    again = resume(tmp_path / "out")
    assert again.accuracy == first.accuracy
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == model
    for id in range(3):
        assert len(read_ledger(tmp_path / "out" / "clients" / f"{id:04d}" / LEDGER).entries) == 1


@pytest.mark.parametrize(("encoder", "cost"), [("autoencoder", 6400.0), ("scattering:256", 12800.0)])
def test_the_ledger_of_a_run_knows_whether_features_can_be_negative(tmp_path: Path, encoder: str, cost: float) -> None:
    """256 features, SpD 4, S 20,000, epsilon .005: 6,400 if none is negative, else twice that."""
    wanted = Experiment(samples=200, clients=2, rounds=1, model="features", encoder=encoder, workers=0,
                        absence="feddig:epsilon=0.005")  # fmt: skip
    run(wanted, tmp_path / "out")
    [entry] = read_ledger(tmp_path / "out" / "clients" / "0000" / LEDGER).entries
    assert entry.claim.epsilon_features == cost
