"""Updates that the moderator relays to testers carry their senders' signatures, where a site's policy names members."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from curious_helpers import Curious
from engine_helpers import experiment
from flower_helpers import nodes, play

from holdfast.core.failures import SENTENCES
from holdfast.core.types import Message, Tensors, pack, unpack
from holdfast.digests.origin import make_key
from holdfast.flower.deploy.signing import sign_update
from holdfast.flower.deploy.site import client_app
from holdfast.flower.engine.codec import Letter
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.runs.experiment import Experiment
from holdfast.runs.history import History

MEMBERS = 'min_records = 0\nmembers = "keys"\n'


def keys(folder: Path, count: int, public: bool = True) -> Path:
    """A folder of key pairs; with `public`, all public keys are known."""
    for i in range(count):
        make_key(folder / "keys", f"site-{i}")
    if not public:
        (folder / "keys" / f"site-{count - 1}.pub").unlink()
    return folder / "keys"


def signed(asking: Curious, folder: Path, client: int, delta: Tensors, **about: Any) -> str:
    """A member's signature over its update, or one of something else."""
    told = {"client": client, "round": 0, "key": f"site-{client}", "experiment": asking.experiment, **about}
    message = Message(told["client"], told["round"], "train", told.get("model", asking.model))
    return sign_update(folder / "keys" / f"{told['key']}.key", told["experiment"], message, pack(delta=delta))


def relay(asking: Curious, deltas: dict[int, Tensors], signatures: dict[int, str] | None, **more: Any) -> Letter:
    scalars = {} if signatures is None else {"signatures": {str(c): s for c, s in signatures.items()}}
    tensors = more.pop("model", asking.model) | pack(**{f"delta/{c}": delta for c, delta in deltas.items()})
    return asking.ask("test", tensors, scalars | more.pop("scalars", {}), **more)


def test_a_site_tests_nothing_that_no_member_signed(tmp_path: Path) -> None:
    keys(tmp_path, 4)
    asking = Curious(tmp_path, experiment(trust="fedtest"), MEMBERS)
    own = {name: torch.full_like(weight, 0.01) for name, weight in asking.state.model.items()}
    trap = {name: torch.full_like(weight, 9.0) for name, weight in own.items()}
    good = signed(asking, tmp_path, 1, own)
    assert relay(asking, {1: own}, {1: good}).error == "unsigned"  # it was not sent this model to train on
    assert not asking.train().error
    other = asking.model | {"model/fc2.bias": torch.ones(4)}
    cases: list[Letter] = [
        asking.test({1: trap}),
        relay(asking, {1: own}, {}),
        relay(asking, {1: trap}, {1: good}),  # another update than was signed
        relay(asking, {2: own}, {2: good}),  # another member's
        relay(asking, {1: own, 2: trap}, {1: good}),  # one more, unsigned
        relay(asking, {1: own}, {1: good}, model=other),  # at another model
        relay(asking, {1: own}, {1: signed(asking, tmp_path, 1, own, model=other)}, model=other),
        relay(asking, {1: own}, {1: signed(asking, tmp_path, 1, own, round=1)}),
        relay(asking, {1: own}, {1: signed(asking, tmp_path, 1, own, experiment="0" * 64)}),
        relay(asking, {1: own, 2: own}, {c: signed(asking, tmp_path, c, own, key="site-1") for c in (1, 2)}),
        relay(asking, {1: own}, {1: "zz"}),
    ]
    assert [case.error for case in cases] == ["unsigned"] * len(cases)
    assert relay(asking, {1: own}, {1: good}).scalars["accuracies"].keys() == {"1"}


def test_a_stranger_is_no_member(tmp_path: Path) -> None:
    keys(tmp_path, 4, public=False)
    asking = Curious(tmp_path, experiment(trust="fedtest"), MEMBERS)
    own = {name: torch.full_like(weight, 0.01) for name, weight in asking.state.model.items()}
    asking.train()
    assert relay(asking, {3: own}, {3: signed(asking, tmp_path, 3, own)}).error == "unsigned"
    assert not relay(asking, {1: own}, {1: signed(asking, tmp_path, 1, own)}).error


@pytest.mark.parametrize(
    "scalars", [{}, {"weights": [2.0]}, {"weights": [-1.0]}, {"weights": [0.5, 0.5]}, {"weights": ["1"]}]
)
def test_a_witness_takes_shares_of_signed_updates_only(tmp_path: Path, scalars: dict[str, Any]) -> None:
    keys(tmp_path, 4)
    asking = Curious(tmp_path, experiment(trust="jury"), MEMBERS)
    own = {name: torch.full_like(weight, 0.01) for name, weight in asking.state.model.items()}
    asking.train()
    assert relay(asking, {1: own}, {1: signed(asking, tmp_path, 1, own)}, scalars=scalars).error == "question"


def test_directions_of_the_moderators_choice_are_refused(tmp_path: Path) -> None:
    keys(tmp_path, 4)
    asking = Curious(tmp_path, experiment(trust="jury"), MEMBERS)
    asking.train()
    units = {name: torch.zeros(1, *weight.shape) for name, weight in asking.state.model.items()}
    units[next(iter(units))].flatten()[0] = 1.0
    question = asking.model | pack(units=units) | {"order": torch.tensor([1])}
    assert asking.ask("test", question).error == "unsigned"
    own = {name: torch.full_like(weight, 0.01) for name, weight in asking.state.model.items()}
    both = question | pack(**{"delta/1": own})
    scalars = {"signatures": {"1": signed(asking, tmp_path, 1, own)}, "weights": [1.0]}
    assert asking.ask("test", both, scalars).error == "unsigned"


def play_signed(folder: Path, wanted: Experiment, signing: int | None = None, **settings: Any) -> History:
    """Play where the members sign, the first so many of them or all, and each tests only what members signed."""
    folder.mkdir()
    count = wanted.clients if signing is None else signing
    keys(folder, wanted.clients)
    (folder / "policy.toml").write_text(MEMBERS)
    sites = nodes(folder, wanted.clients, policy=str(folder / "policy.toml"))
    for i in range(count):
        sites[100 + i]["signing-key"] = str(folder / "keys" / f"site-{i}.key")
    return play(folder, wanted, InProcessGrid(client_app(wanted), sites), gather=0.5, **settings)


@pytest.mark.parametrize("trust", ["fedtest", "jury"])
@pytest.mark.parametrize("half", ["none", "both"])
def test_members_that_sign_are_judged_as_without_signatures(tmp_path: Path, trust: str, half: str) -> None:
    wanted = experiment(trust=trust, rounds=2)
    plain = play(tmp_path / "plain", wanted, half=half)
    found = play_signed(tmp_path / "signed", wanted, members=str(tmp_path / "signed" / "keys"), half=half)
    for ours, theirs in zip(found.records, plain.records, strict=True):
        assert ours.notes == theirs.notes
        assert list(ours.scores.values()) == pytest.approx(list(theirs.scores.values()), abs=1e-5)
        assert list(ours.weights.values()) == pytest.approx(list(theirs.weights.values()), abs=1e-5)
    assert found.state is not None
    assert plain.state is not None
    for name, weight in found.state.model.items():
        assert torch.allclose(weight, plain.state.model[name], atol=1e-5)


def test_an_unsigned_update_does_not_count_where_the_moderator_knows_the_keys(tmp_path: Path) -> None:
    wanted = experiment(trust="fedtest", rounds=1)
    [record] = play_signed(tmp_path / "a", wanted, signing=3, members=str(tmp_path / "a" / "keys")).records
    assert record.absent == {3: "sent an update that the key of its site did not sign: it was refused"}
    [record] = play_signed(tmp_path / "b", wanted, signing=0).records  # nobody signs: nobody tests
    assert len(record.notes) == wanted.clients
    assert all(SENTENCES["unsigned"] in note for note in record.notes)


def test_what_a_site_signs_is_what_leaves(tmp_path: Path) -> None:
    keys(tmp_path, 1)
    asking = Curious(tmp_path, experiment(rounds=1))
    asking.grid.nodes[100]["signing-key"] = str(tmp_path / "keys" / "site-0.key")
    answer = asking.train(half=True)
    delta = unpack(answer.tensors, "delta")
    assert answer.scalars["signature"] == signed(asking, tmp_path, 0, delta)
