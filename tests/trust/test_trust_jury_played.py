"""The jury in whole runs: the attacks that it is there for, and nobody hostile."""

from __future__ import annotations

import pytest

from holdfast.attacks.adversary import choose_hostile
from holdfast.cli.hostile import attacker_weight, suspected
from holdfast.play import run
from holdfast.runs.experiment import Experiment
from holdfast.runs.history import History


def small(attack: str, trust: str, **other: object) -> History:
    settings: dict[str, object] = {"clients": 10, "samples": 2000, "partition": "dirichlet:0.5", "rounds": 7}
    hostile = {"attack": attack, "attackers": 0 if attack == "none" else 3}
    return run(Experiment(**{**settings, "model": "features", "workers": 0, "trust": trust, **hostile, **other}))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def clean() -> float:
    return small("none", "samples").final_accuracy


@pytest.mark.parametrize("attack", ["signflip:1", "labelflip", "liar", "random", "relayer"])
def test_three_hostile_of_ten_hardly_matter(attack: str, clean: float) -> None:
    history = small(attack, "jury")
    assert history.final_accuracy > clean - 0.05
    if attack in ("signflip:1", "labelflip"):
        share = attacker_weight(history)
        assert share is not None
        assert share < 0.08
        hostile = set(choose_hostile(10, 3, 0))
        assert set(suspected(history.records)) & hostile


def test_nobody_is_suspected_where_nobody_is_hostile(clean: float) -> None:
    history = small("none", "jury:exclude=4")
    assert suspected(history.records) == {}
    assert history.final_accuracy > clean - 0.02


def test_digests_testify_where_there_are_any() -> None:
    history = small("signflip:1", "jury", absence="feddig")
    sent = [record.bytes_down for record in history.records]
    assert max(sent[1:]) < sent[0]  # from the second round on no update is sent to peers: guides look for backdoors
    share = attacker_weight(history)
    assert share is not None
    assert share < 0.1
