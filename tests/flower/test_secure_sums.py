"""Secure sums between sites: their own keys, a moderator that swaps one, members that die, lie, replay or withhold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_helpers import experiment, same_bits
from flower_helpers import Spoilt, nodes
from flwr.app import Message as Packet
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import SENTENCES
from holdfast.core.types import pack
from holdfast.digests.origin import fingerprint_of_key, known_keys, make_key
from holdfast.flower.deploy.site import client_app
from holdfast.flower.engine.codec import Letter, decode, encode
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.flower.engine.moderator import play_over
from holdfast.play import run
from holdfast.privacy.ledger import read_ledger
from holdfast.record import Record
from holdfast.runs.experiment import Experiment
from holdfast.runs.history import History

UPDATES = experiment(protect="secure-sum", rounds=1)
FIVE = experiment(protect="secure-sum", clients=5, partition="iid")
STEPS = ("keys", "shares", "masked", "sign", "open")
Change = Callable[[Letter], Letter | None]


class Relay(InProcessGrid):
    """A moderator's post office: `change` may put another letter in place of one to a site, or lose it (None)."""

    change: Change | None = None

    def push_messages(self, messages: Any) -> Any:
        return super().push_messages([self._changed(packet) for packet in messages])

    def _changed(self, packet: Packet) -> Packet:
        if self.change is None or packet.metadata.message_type == "query.hello":
            return packet
        letter = self.change(decode(packet.content))
        node = packet.metadata.dst_node_id if letter is not None else 999  # nobody
        about = packet.metadata
        content = packet.content if letter is None else encode(letter)
        return Packet(
            content, dst_node_id=node, message_type=about.message_type, ttl=about.ttl, group_id=about.group_id
        )


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("members")
    for i in range(5):
        make_key(folder, f"site-{i}")
    return folder


def sites(folder: Path, keys: Path, wanted: Experiment, policy: str = "") -> dict[int, dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    (folder / "policy.toml").write_text(f'min_records = 0\nmembers = "{keys}"\n{policy}')
    found = nodes(folder, wanted.clients, policy=str(folder / "policy.toml"))
    for i in range(wanted.clients):
        found[100 + i]["signing-key"] = str(keys / f"site-{i}.key")
    return found


def play(
    folder: Path,
    keys: Path,
    wanted: Experiment = UPDATES,
    change: Change | None = None,
    answer: Any = None,
    **more: Any,
) -> History:
    app = client_app(wanted)
    grid = Relay(app if answer is None else Spoilt(app, answer), more.pop("nodes", None) or sites(folder, keys, wanted))
    grid.change = change
    return play_over(grid, wanted, {"out": str(folder / "run"), "members": str(keys), "gather": 0.5, **more})


def only(history: History) -> Record:
    [record] = history.records
    return record


def test_real_keys_give_the_bits_of_the_embedded_engine(tmp_path: Path, keys: Path) -> None:
    wanted = replace(UPDATES, rounds=2)
    history = play(tmp_path, keys, wanted)
    assert same_bits(history, run(wanted))
    assert [sorted(record.weights) for record in history.records] == [[0, 1, 2, 3]] * 2
    assert not any(record.notes or record.absent for record in history.records)


def test_moments_are_summed_and_entered_at_each_site(tmp_path: Path, keys: Path) -> None:
    wanted = experiment(
        task="heart", partition="iid", model="auto", algorithm="oneshot", rounds=1, protect="secure-sum",
        absence={"name": "feddig", "mode": "moments", "epsilon": 8.0},
    )  # fmt: skip
    record = only(play(tmp_path, keys, wanted))
    assert not record.absent
    assert record.notes == []
    for i in range(4):
        [entry] = read_ledger(tmp_path / f"site-{i}" / "privacy-ledger.json").entries
        assert entry.claim.mode == "secure-sum"


def swap(keys: Path, step: str) -> Change:
    """A moderator that puts a key of its own in place of member 1's: the long-term one, or those for this sum."""

    def change(letter: Letter) -> Letter:
        if letter.scalars.get("step") != step or letter.client == 1:
            return letter
        if step == "keys":
            mine = {**letter.scalars["members"], "1": known_keys(keys)["site-4"] if letter.client else "00" * 32}
            return replace(letter, scalars={**letter.scalars, "members": mine})
        one = letter.tensors["letters/1"].clone()
        one[:32] = torch.arange(32, dtype=torch.uint8)
        return replace(letter, tensors={**letter.tensors, **pack(letters={"1": one})})

    return change


@pytest.mark.parametrize("step", ["keys", "shares"])
def test_a_moderator_that_swaps_a_key_is_found_out(tmp_path: Path, keys: Path, step: str) -> None:
    record = only(play(tmp_path, keys, change=swap(keys, step)))
    assert record.weights == {}
    assert any("Nothing was learnt" in note for note in record.notes)
    assert SENTENCES["sum-key"] in record.absent[0]
    book = next((tmp_path / "site-0").glob("*/book.jsonl")).read_text()
    assert '"refused": "sum-key"' in book  # the site has it in its own book, whatever the moderator tells


def test_a_member_that_is_gone_in_a_step(tmp_path: Path, keys: Path) -> None:
    """Before its masked update left it is not in the mean; after that it is, and its masks come off all the same."""

    def lose(letter: Letter) -> Letter | None:
        """Member 2 is gone from another step on in each round."""
        gone = letter.client == 2 and letter.scalars.get("step") in STEPS[letter.round :]
        return None if gone else letter

    records = play(tmp_path, keys, replace(FIVE, rounds=5), lose, **{"deadline-least": 0.5}).records
    without, all_five = [0, 1, 3, 4], [0, 1, 2, 3, 4]
    assert [sorted(record.weights) for record in records] == [without, without, without, all_five, all_five]
    assert all(set(record.absent) == {2} for record in records)


def told(change: Callable[[Letter, str], Letter]) -> Any:
    """Member 2 answers the steps of sums in its own way."""

    def answer(packet: Packet, reply: Packet) -> Packet:
        asked, said = decode(packet.content), decode(reply.content)
        if asked.client != 2 or asked.job != "secure-sum":
            return reply
        return Packet(encode(change(said, asked.scalars["step"])), reply_to=packet)

    return answer


def letter_of(said: Letter, content: torch.Tensor) -> Letter:
    return replace(said, tensors={**said.tensors, "sum/letter": content})


def test_a_member_that_lies_or_withholds_is_named(tmp_path: Path, keys: Path) -> None:
    nothing = torch.zeros(7, dtype=torch.uint8)

    def lie(said: Letter, step: str) -> Letter:
        """In each round in another step: garbage, no shares, garbage, wrong shares."""
        if step != ("keys", "shares", "masked", "open")[said.round]:
            return said
        if step == "shares":
            return replace(said, tensors={"sum/letter": said.tensors["sum/letter"]})
        if step == "open":
            return replace(said, tensors={name: torch.zeros_like(one) for name, one in said.tensors.items()})
        return letter_of(said, nothing)

    records = play(tmp_path, keys, replace(FIVE, rounds=4), answer=told(lie)).records
    assert [len(record.weights) for record in records] == [4, 4, 4, 5]
    assert all(2 in record.refused or any("client 2" in note for note in record.notes) for record in records)


def test_keys_of_an_earlier_sum_are_not_taken(tmp_path: Path, keys: Path) -> None:
    seen: list[torch.Tensor] = []

    def replay(said: Letter, step: str) -> Letter:
        if step != "keys":
            return said
        seen.append(said.tensors["sum/letter"])
        return letter_of(said, seen[0])

    first, second = play(tmp_path, keys, replace(UPDATES, rounds=2), answer=told(replay)).records
    assert (sorted(first.weights), sorted(second.weights)) == ([0, 1, 2, 3], [0, 1, 3])
    assert 2 in second.refused


def test_a_member_that_spoils_the_mean_is_noticed_but_not_named(tmp_path: Path, keys: Path) -> None:
    noise = torch.Generator().manual_seed(0)

    def spoil(said: Letter, step: str) -> Letter:
        if step != "masked":
            return said
        letter = said.tensors["sum/letter"]
        return letter_of(said, torch.randint(0, 256, letter.shape, generator=noise).to(torch.uint8))

    record = only(play(tmp_path, keys, answer=told(spoil)))
    assert record.weights == {}
    assert any("one of them spoilt it" in note for note in record.notes)


def test_who_has_no_keys_takes_no_part(tmp_path: Path, keys: Path) -> None:
    configs = sites(tmp_path, keys, UPDATES)
    del configs[102]["signing-key"]
    record = only(play(tmp_path, keys, nodes=configs))
    assert sorted(record.weights) == [0, 1, 3]
    assert SENTENCES["sum-key"] in record.absent[2]
    with pytest.raises(HoldfastError, match="needs the sites' public keys"):
        play(tmp_path / "none", keys, members="")


def test_a_site_that_shows_another_key_is_refused_by_the_moderator(tmp_path: Path, keys: Path) -> None:
    configs = sites(tmp_path, keys, UPDATES)
    configs[102]["signing-key"] = str(keys / "site-4.key")
    record = only(play(tmp_path, keys, nodes=configs))
    assert record.absent == {2: "showed another key than its site's: it was refused"}
    assert sorted(record.weights) == [0, 1, 3]


def test_fingerprints_are_those_of_ssh(tmp_path: Path, keys: Path) -> None:
    said = CliRunner().invoke(app, ["flower", "members", str(keys)]).output
    [own] = [line for line in said.splitlines() if line.endswith("site-3")]
    assert own == f"{fingerprint_of_key(known_keys(keys)['site-3'])}  site-3"
    assert "holds no public key" in str(CliRunner().invoke(app, ["flower", "members", str(tmp_path)]).exception)


def test_a_policy_that_wants_noise_lets_no_update_leave(tmp_path: Path, keys: Path) -> None:
    strict = '[privacy]\nmax_epsilon = 3.0\ndelta = 1e-5\nmodes = ["secure-sum"]\n'
    record = only(play(tmp_path, keys, nodes=sites(tmp_path, keys, UPDATES, strict)))
    assert record.weights == {}
    assert all(SENTENCES["unprotected"] in why for why in record.absent.values())
