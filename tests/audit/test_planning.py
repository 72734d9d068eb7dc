"""`privacy plan`: few records are warned of, a budget is divided, and made-up records serve where none may be seen."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from release_helpers import experiment
from typer.testing import CliRunner

from holdfast.absence import FedDig
from holdfast.audit.budget import Split, split_at, try_splits
from holdfast.audit.planning import noise_in_mean, settings_for, too_small
from holdfast.cli import app
from holdfast.core.errors import HoldfastError
from holdfast.data.named import HEART_FILE
from holdfast.data.tables.check import check_table
from holdfast.data.tables.schema import read_schema
from holdfast.data.tables.stand_in import write_stand_in
from holdfast.digests.release import claim_of
from holdfast.play import run
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment


def test_noise_in_a_mean_by_hand() -> None:
    claim = claim_of(FedDig(mode="moments", epsilon=3.0), (35,), 2)
    sigma = claim.scale / 1024  # the grid has 1024 steps to a length of 1
    assert noise_in_mean(claim, 35, 78) == pytest.approx(math.sqrt(35) * sigma / 78)


@pytest.mark.parametrize(("epsilon", "few"), [(3.0, 4), (1000.0, 0)])
def test_small_hospitals_are_named(epsilon: float, few: int) -> None:
    plan = make_plan(Experiment(task="heart", absence="feddig", workers=0))  # type: ignore[arg-type]
    said = too_small(plan, settings_for(epsilon, 1e-5, 1, plan.method.bench.about.feature_shape, 2))
    assert said.startswith(f"{few} of 4 clients have few records") == bool(few)
    assert ("Switzerland (78 records)" in said) == bool(few)


def test_the_warning_is_printed_before_anything_is_spent() -> None:
    words = ["privacy", "plan", "--epsilon", "3", "--set", "task=heart", "--set", "workers=0", "--no-try", "--json"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    assert "4 of 4 clients have few records for this epsilon: at Switzerland" in json.loads(said.output)["warning"]


def test_a_budget_is_divided_so_that_both_together_keep_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The split is really run, on seeds that are not the experiment's; what is run is what the split says."""
    wanted = experiment(protect={"name": "dp-sgd"}, rounds=1, batch_size=200, clients=2, scenario="none", seed=3)
    ran: list[Experiment] = []

    def watched(one: Experiment) -> object:
        ran.append(one)
        return run(one)

    monkeypatch.setattr("holdfast.audit.budget.run", watched)
    [split] = try_splits(wanted, 8.0, 1e-4, shares=(0.8,), seeds=(200,))
    assert 0.9 * 8.0 < split.total <= 8.0
    assert split.updates < split.digest < 8.0
    assert split.accuracy is not None
    [one] = ran
    assert (one.absence.options["epsilon"], one.protect.options["epsilon"]) == (split.digest, split.updates)
    assert one.seed == 200
    with pytest.raises(HoldfastError, match="say both"):
        split_at(experiment(), 0.8, 8.0, 1e-4)


def test_the_best_split_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def play(one: Experiment) -> Played:
        asked.append(one.seed)
        return Played(0.9 - abs(one.lr - 0.7))  # 0.7 is best, by hand

    room = "holdfast.audit.budget"
    monkeypatch.setattr(f"{room}.split_at", lambda _, share, *more: Split(share, share, 1 - share, 1.0))
    monkeypatch.setattr(f"{room}.with_split", lambda one, digest, *more: replace(one, lr=digest))
    monkeypatch.setattr(f"{room}.run", play)
    assert [split.share for split in try_splits(experiment(seed=3), 3.0, 1e-5)] == [0.7, 0.5, 0.9, 0.97]
    assert min(asked) >= 200


class Played:
    """A run whose last round came to this."""

    def __init__(self, accuracy: float) -> None:
        self.accuracy = accuracy
        self.records = [self]


def test_a_plan_is_made_before_anybody_opens_a_table(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(HEART_FILE.with_suffix(".toml").read_text())
    (tmp_path / "e.toml").write_text('task = "schema.toml"\nnames = ["North", "South"]\nabsence = "feddig"\n')
    plan = ["privacy", "plan", "--file", str(tmp_path / "e.toml"), "--json", "--no-try"]
    alone = CliRunner().invoke(app, plan)
    assert "say how many each member has" in str(alone.exception)
    done = CliRunner().invoke(app, [*plan, "--records", "400,30"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert "430 made-up records" in said["made_up"]
    assert "at South (" in said["warning"]
    for odd in ("400,x", "400,5", "100,200,300"):
        assert "expected one number" in str(CliRunner().invoke(app, [*plan, "--records", odd]).exception)
    other = CliRunner().invoke(app, ["privacy", "plan", "--no-try", "--records", "100"])
    assert "made up from a table's schema" in str(other.exception)


def test_made_up_records_follow_the_schema(tmp_path: Path) -> None:
    text = HEART_FILE.with_suffix(".toml").read_text()
    more = text.replace('site = "hospital"', 'patient = "id"\nsplit = "part"\ndecimal = ","')
    more += '\n[columns.seen]\nkind = "date"\nrange = ["2001-02-03", "2002-01-01"]\n'
    (tmp_path / "schema.toml").write_text(more)
    schema = read_schema(tmp_path / "schema.toml")
    folder = tmp_path / "drawn"
    folder.mkdir()
    assert write_stand_in(schema, ["North", "South"], [60, 40], folder) == folder
    for name, count in (("North", 60), ("South", 40)):
        report = check_table(schema, folder / f"{name}.csv", name)
        assert report.fits, report.problems
        assert report.records == count
    again = tmp_path / "again"
    again.mkdir()
    write_stand_in(schema, ["North", "South"], [60, 40], again)
    assert (again / "North.csv").read_bytes() == (folder / "North.csv").read_bytes()  # nothing but the schema decides
