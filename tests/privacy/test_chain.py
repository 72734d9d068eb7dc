"""An older copy of a ledger is told from the newest by whoever has seen a later head."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from curious_helpers import Curious
from flower_helpers import in_process, play
from release_helpers import experiment

from holdfast.core.failures import Refusal
from holdfast.privacy.counts import noised_counts
from holdfast.privacy.ledger import Policy, read_ledger, read_policy, spend
from holdfast.privacy.noise import system

ROOM = Policy(10.0, 1e-5, ("moments",))
CLAIM = noised_counts([5.0], 1.0, 0.5, 1e-5, system())[1]


def saved(folder: Path) -> Path:
    """Yesterday's copy of all that a site keeps of its ledger."""
    copy = folder.with_name(f"{folder.name}-yesterday")
    copy.mkdir()
    for path in folder.glob("privacy-ledger.json*"):
        shutil.copy(path, copy / path.name)
    return copy


def put_back(folder: Path, copy: Path) -> None:
    for path in copy.iterdir():
        shutil.copy(path, folder / path.name)


def test_each_entry_is_linked_to_all_before(tmp_path: Path) -> None:
    path = tmp_path / "privacy-ledger.json"
    for what in ("one", "two", "three"):
        last = spend(ROOM, path, CLAIM, what)
    assert read_ledger(path).links == last.links
    body = json.loads(path.read_text())["entries"]
    body[0]["what"] = "none"
    assert all(a != b for a, b in zip(last.links, type(last)(last.entries, tuple(body)).links, strict=True))


def test_a_witness_elsewhere_contradicts_an_older_copy(tmp_path: Path) -> None:
    house, far = tmp_path / "house", tmp_path / "far"
    house.mkdir()
    far.mkdir()
    (house / "privacy.toml").write_text(
        f'max_epsilon = 10.0\ndelta = 1e-5\nmodes = ["moments"]\nwitness = "{far / "head"}"\n'
    )
    policy, path = read_policy(house / "privacy.toml"), house / "privacy-ledger.json"
    spend(policy, path, CLAIM, "one")
    copy = saved(house)
    spend(policy, path, CLAIM, "two")
    put_back(house, copy)
    assert len(read_ledger(path).entries) == 1  # nothing here tells
    with pytest.raises(Refusal, match="has seen a later one"):
        spend(policy, path, CLAIM, "again")
    assert len(read_ledger(path).entries) == 1
    for text in ("x", "é"):
        (far / "head").write_text(text)
        with pytest.raises(Refusal, match="witness"):
            spend(policy, path, CLAIM, "again")
    (house / "privacy.toml").write_text('max_epsilon = 1.0\ndelta = 1e-5\nmodes = []\nwitness = "head"\n')
    with pytest.raises(Refusal, match="whole path"):
        read_policy(house / "privacy.toml")


def test_a_site_set_back_refuses_what_the_moderator_saw_later(tmp_path: Path) -> None:
    asking = Curious(tmp_path, experiment(scenario="none", rounds=3, absence=REFRESHED))
    first = asking.train(scalars={"digest": True})
    assert len(first.head) == 64
    copy = saved(asking.site)
    second = asking.train(round=1, scalars={"digest": True}, head=first.head)
    assert second.head not in ("", first.head)
    put_back(asking.site, copy)
    assert asking.train(round=2, head=second.head).error == "behind"
    assert asking.train(round=2, head="0" * 64).error == "behind"  # a moderator that lies can but be refused
    assert not asking.train(round=2, head=first.head).error


REFRESHED = {"name": "feddig", "mode": "moments", "epsilon": 3.0, "refresh": 1}


def test_the_moderator_keeps_heads_and_returns_them(tmp_path: Path) -> None:
    wanted = experiment(scenario="none", rounds=1)
    grid = in_process(tmp_path, wanted)
    play(tmp_path, wanted, grid)
    heads = json.loads((tmp_path / "run" / "heads.json").read_text())
    assert heads["1"] == read_ledger(tmp_path / "site-1" / "privacy-ledger.json").links[-1]
    for path in (tmp_path / "site-1").glob("privacy-ledger.json*"):
        path.unlink()
    (tmp_path / "run" / "model.safetensors").unlink()
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.unlink()
    [record] = play(tmp_path, wanted, grid).records
    assert "older than one that was seen before" in record.absent[1]
