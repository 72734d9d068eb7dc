"""`holdfast compare --attack`: the methods x attacks table, its rows, and who is suspected."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.attacks.adversary import choose_hostile
from holdfast.cli import app, comparing
from holdfast.cli.comparing import Conditions, combinations, split_choices, table
from holdfast.cli.hostile import attacker_weight, backdoor_rate, suspected, suspicions
from holdfast.core.errors import HoldfastError
from holdfast.data.metrics import ACCURACY
from holdfast.play import resume, run
from holdfast.record import Record
from holdfast.report.words import situation
from holdfast.runs.experiment import Experiment
from holdfast.runs.history import History

SMALL = ["task=fashion-mini", "clients=4", "samples=200", "model=linear", "rounds=2", "workers=0"]


def record(round: int, weights: dict[int, float], suspects: dict[int, str], refused: dict[int, str]) -> Record:
    return Record(round, {}, refused, [], weights, {}, suspects, None, 0, 0, {})


RECORDS = [
    record(1, {0: 0.5, 1: 0.5}, {1: "odd"}, {2: "NaN"}),
    record(2, {0: 0.5, 1: 0.3, 2: 0.2}, {1: "harms", 2: "odd"}, {}),
    record(3, {0: 0.8, 1: 0.2}, {1: "harms more"}, {2: "NaN"}),
    record(4, {0: 0.9, 1: 0.1, 2: 0.0}, {1: "harms most"}, {}),
]


def test_who_is_suspected_at_the_end_and_since_when() -> None:
    assert suspected(RECORDS) == {1: [1, 2, 3, 4]}  # client 2 was heard again without suspicion
    assert suspicions(History(Experiment(), RECORDS)) == [
        "client 1: suspected since round 1: harms most",
        "client 2: refused 2 times",
    ]
    named = History(Experiment(names=("N", "S", "W", "E")), RECORDS[:1])
    assert suspicions(named) == [
        "S: suspected since round 1: odd",
        "W: refused 1 time",
    ]


def test_a_suspect_that_tested_is_said_to_be_believed_or_not() -> None:
    last = replace(RECORDS[3], credibility={0: 1.0, 1: 0.04})
    assert suspicions(History(Experiment(), [*RECORDS[:3], last]))[0] == (
        "client 1: suspected since round 1: harms most, believed to 4% as a tester"
    )


def test_attacker_weight_is_the_mean_share_over_the_last_half() -> None:
    experiment = Experiment(clients=3, attack="random", attackers=1)
    hostile = choose_hostile(3, 1, 0)[0]
    last = [r.weights.get(hostile, 0.0) for r in RECORDS[2:]]
    assert attacker_weight(History(experiment, RECORDS)) == pytest.approx(sum(last) / 2)
    assert attacker_weight(History(Experiment(clients=3), RECORDS)) is None


def test_conditions_are_scenarios_times_attacks_times_methods_times_seeds() -> None:
    found = combinations(
        "fedavg,krum", Conditions("none,forever", "none,signflip:2", 1, "3,4"), None, ["clients=5", "rounds=3"]
    )
    assert len(found) == 16
    assert [situation(e) for e in found[::4]] == ["none", "signflip:2 x1", "forever", "forever, signflip:2 x1"]
    assert {e.attackers for e in found if e.attack.name == "none"} == {0}
    kept = combinations("fedavg", Conditions(), None, ["attack=random", "attackers=2"])
    assert (kept[0].attack.name, kept[0].attackers) == ("random", 2)
    with pytest.raises(HoldfastError, match="--attack must say"):
        combinations("fedavg", Conditions(attackers=2), None, [])
    with pytest.raises(HoldfastError, match="go together"):
        combinations("fedavg", Conditions(attacks="random"), None, [])
    assert split_choices("a,b:x=1,y=2,c") == ["a", "b:x=1,y=2", "c"]


def test_compare_prints_a_row_for_each_method_and_attack(tmp_path: Path) -> None:
    changes = [word for key in SMALL for word in ("--set", key)]
    arguments = ["compare", "--method", "fedavg,median", "--scenario", "none", "--attack", "none,malformed"]
    result = CliRunner().invoke(app, [*arguments, "--attackers", "1", *changes, "--out", str(tmp_path / "c"), "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout.splitlines()[-1])["rows"]
    assert [(r["method"], r["attack"], r["attackers"]) for r in rows] == [
        ("fedavg", "none", 0),
        ("fedavg+median", "none", 0),
        ("fedavg", "malformed", 1),
        ("fedavg+median", "malformed", 1),
    ]
    assert [r["attacker_weight"] for r in rows] == [None, None, 0.0, 0.0]
    assert all(r["suspects"] == [] for r in rows)
    shown = CliRunner().invoke(app, [*arguments, "--attackers", "1", *changes, "--out", str(tmp_path / "c")])
    hostile = choose_hostile(4, 1, 0)[0]
    assert f"client {hostile}: refused 2 times" in shown.output


def test_what_is_finished_is_told_when_a_later_run_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(experiment: Experiment, *rest: Any) -> History:
        if experiment.attackers:
            raise HoldfastError("attack 'ipm' failed.")
        return run(experiment, *rest)

    monkeypatch.setattr(comparing, "run", play)
    changes = [word for key in SMALL for word in ("--set", key)]
    out = tmp_path / "c"
    arguments = [
        "compare",
        "--scenario",
        "none",
        "--attack",
        "none,ipm",
        "--attackers",
        "1",
        "--out",
        str(out),
        "--json",
    ]
    result = CliRunner().invoke(app, [*arguments, *changes])
    assert str(result.exception) == (
        f"attack 'ipm' failed. (1 of 2 runs are done; the same command with --out {out} goes on.)"
    )
    assert [row["attack"] for row in json.loads((out / "results.json").read_text())["rows"]] == ["none"]
    assert [row["attack"] for row in json.loads(result.stdout.splitlines()[-1])["rows"]] == ["none"]


def test_a_rule_of_ones_own_is_compared_with_the_others(tmp_path: Path) -> None:
    changes = [word for key in SMALL for word in ("--set", key)]
    methods = "fedavg,fedavg+engine_helpers:Careful"
    arguments = ["compare", "--method", methods, "--scenario", "none", "--out", str(tmp_path / "c"), "--json"]
    result = CliRunner().invoke(app, [*arguments, *changes])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout.splitlines()[-1])["rows"]
    assert [row["method"] for row in rows] == ["fedavg", "fedavg+engine_helpers:Careful"]
    assert rows[0]["accuracy"] != rows[1]["accuracy"]


def test_an_attack_without_effect_is_noted_beside_those_that_have_one(tmp_path: Path) -> None:
    changes = [word for key in SMALL for word in ("--set", key)]
    arguments = ["compare", "--method", "fedavg,fedtest:2", "--scenario", "none", "--attack", "nonsense"]
    arguments += ["--attackers", "1", *changes, "--out", str(tmp_path / "c")]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout.splitlines()[-1])["rows"]
    why = "attack 'nonsense' has no effect: the algorithm's own weights ask no testers; choose a trust rule that does."
    assert [row["without_effect"] for row in rows] == [why, None]
    assert [row["hostile"] for row in rows] == [list(choose_hostile(4, 1, 0))] * 2
    shown = " ".join(CliRunner().invoke(app, arguments).output.split())
    assert f"note fedavg, nonsense x1: {why}" in shown


def test_how_often_a_backdoor_works_is_in_the_rows_and_in_the_table(tmp_path: Path) -> None:
    changes = [word for key in [*SMALL, "lr=0.1"] for word in ("--set", key)]
    arguments = ["compare", "--scenario", "none", "--attack", "none,backdoor:boost=8", "--attackers", "1", *changes]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "c"), "--json"])
    assert result.exit_code == 0, result.output
    clean, dirty = json.loads(result.stdout.splitlines()[-1])["rows"]
    assert clean["backdoor_success"] is None
    assert 0.5 < dirty["backdoor_success"] <= 1
    shown = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "c")], env={"COLUMNS": "200"}).output
    assert f", backdoor {100 * dirty['backdoor_success']:.0f} " in shown
    alone = resume(next(path.parent for path in (tmp_path / "c").glob("*boost*/model.safetensors")))
    assert backdoor_rate(alone) == dirty["backdoor_success"]


def test_a_table_that_is_cut_short_has_dashes() -> None:
    done = History(Experiment(clients=3), [replace(RECORDS[0], measure=ACCURACY, metrics={"accuracy": 0.5})])
    other = History(Experiment(clients=3, trust="krum", scenario="forever"), done.records)  # type: ignore[arg-type]
    assert [list(column.cells) for column in table([done, other], [None, 0.25]).columns[1:3]] == [
        ["[bold green]50.0[/]", "-"],
        ["-", "[bold green]50.0[/], backdoor 25"],
    ]
