"""The search for the worst attack: it finds what it looks for, goes on where it stopped, and can be run again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from holdfast import attack_search
from holdfast.attack_search import Search, Tried, ranges
from holdfast.attacks import Sight, awake, choose_attack, tamper_updates
from holdfast.attacks.panel_lies import LIES
from holdfast.cli import app
from holdfast.core.config import Choice
from holdfast.core.errors import HoldfastError
from holdfast.play import run
from holdfast.runs.experiment import Experiment, load

EXPERIMENT = Experiment(clients=12, rounds=10)
FILE = """
task = "fashion-mini"
samples = 160
clients = 4
rounds = 2
model = "linear"
trust = "median"
workers = 0
"""


def mixture(**options: float) -> Any:
    return choose_attack(Choice("mixture", dict(options)))


def test_a_mixture_by_hand() -> None:
    """x = (2, 0), (0, 2): mean (1, 1), no sd along (1, 1) but sd (1, 1); the median length is 2."""
    sight = Sight(torch.tensor([[0.0, 5.0]]), torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.zeros(2), torch.Generator())
    half = 0.5**0.5
    assert mixture(length=3).tamper(sight).tolist() == [pytest.approx([-6 * half, -6 * half])]
    # own (0, 1) + against and spread, which cancel
    both = mixture(length=1, own=1, against=-1, spread=1).tamper(sight)
    assert both.tolist() == [pytest.approx([0.0, 2.0])]


def test_a_mixture_pushes_one_class_alone() -> None:
    own = {"out.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0]]), "out.bias": torch.zeros(2)}
    attack = mixture(length=1, own=0.0, against=0.0, push=1, target=1)
    (sent,) = tamper_updates(attack, [own], [own], own, torch.Generator())
    third = -(2**0.5) / 3**0.5  # the honest length over three equal values
    assert sent["out.weight"].tolist() == [[0.0, 0.0], pytest.approx([third, third])]
    assert sent["out.bias"].tolist() == pytest.approx([0.0, third])


def test_a_mixture_lies_as_a_tester_only_with_victims() -> None:
    assert not awake(mixture(length=1), 0, "tester")
    assert awake(mixture(length=1, victims=1), 0, "tester")


def test_a_search_draws_what_liars_say_on_panels_too() -> None:
    found = ranges(EXPERIMENT, classes=10)["words"]
    assert {found.at(place / 100) for place in range(101)} == {*LIES}
    assert [found.at(found.place_of(word)) for word in ("gains", "worst")] == ["gains", "worst"]


def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Search, list[str]]:
    """A search in which no run is played: harm is greatest for own = -0.4, spread = 0.6, since 7."""
    played: list[str] = []

    def outcome(experiment: Experiment, hostile: Any) -> dict[str, Any]:
        played.append(str(experiment.attack))
        o = {"own": 0.0, "spread": 0.0, "since": 0, **experiment.attack.options}
        away = (o["own"] + 0.4) ** 2 + (o["spread"] - 0.6) ** 2 + ((o["since"] - 7) / 5) ** 2
        value = 0.9 if experiment.attack.name == "none" else 0.4 + 0.1 * away
        measure = {"name": "accuracy", "unit": "%", "smaller_is_better": False}
        return {"measure": measure, "value": value, "classes": [value, None], "caught": 0, "honest_named": 0}

    monkeypatch.setattr(attack_search, "outcome", outcome)
    given = {"experiment": EXPERIMENT, "attackers": 3, "out": tmp_path, "classes": 10, "seeds": [0], **settings}
    return Search(**given), played


def test_the_search_finds_what_harms_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(made(tmp_path, monkeypatch)[0].try_out(96))
    first, best = max(t.harm for t in found[:8]), max(t.harm for t in found)
    assert best > 48  # of 50
    assert best > first + 2
    assert all(t.worst_class == pytest.approx(t.harm) for t in found)


def test_a_search_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search, _ = made(tmp_path, monkeypatch)
    first = list(search.try_out(20))
    again, played = made(tmp_path, monkeypatch)
    longer = list(again.try_out(30))
    assert longer[:20] == first
    assert len(played) == 10
    whole, _ = made(tmp_path / "whole", monkeypatch)
    assert list(whole.try_out(30)) == longer
    with pytest.raises(HoldfastError, match="another search; name a new folder"):
        made(tmp_path, monkeypatch, attackers=4)
    with pytest.raises(HoldfastError, match="from 1 to 11: --attackers"):
        made(tmp_path / "none", monkeypatch, attackers=12)


def test_the_worst_attack_can_be_run_again(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(FILE)
    words = [str(tmp_path / "e.toml"), "--attackers", "1", "--budget", "2", "--json", "--out", str(tmp_path / "s")]
    done = CliRunner().invoke(app, ["attack-search", *words], catch_exceptions=False)
    told = json.loads(done.stdout)
    assert [row["harm"] for row in told["tried"]] == sorted((row["harm"] for row in told["tried"]), reverse=True)
    worst = load(told["worst"])
    assert worst.attack.name == "mixture"
    assert worst.attackers == 1
    line = next(
        line
        for line in map(json.loads, (tmp_path / "s" / "search.jsonl").read_text().splitlines())
        if line.get("attack") == str(worst.attack)
    )
    assert run(replace(worst, evaluate_every=2)).records[-1].leading == line["value"]


def test_a_table_names_what_is_lost() -> None:
    from holdfast.cli.searching import snippet, table

    tried = Tried(Choice("mixture", {"length": 2.0}), 5.0, 5.0, None, 0.0, 0)
    assert table([tried], "model").row_count == 1
    assert 'attack = {name = "mixture", length = 2.0}' in snippet(replace(EXPERIMENT, attack=tried.attack, attackers=1))
