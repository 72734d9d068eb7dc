"""Tables at real sites: schema, experiment and own file are enough; the moderator needs nobody's data."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from engine_helpers import GENEROUS, environment, marked
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.client import EVALUATE, EvaluateRequest, perform
from holdfast.core.errors import HoldfastError
from holdfast.data.named import HEART_FILE
from holdfast.data.tables.schema import read_schema
from holdfast.data.tables.source import own_samples, site_tables
from holdfast.flower import client_app
from holdfast.flower.deploy.app import write_app
from holdfast.flower.deploy.policy import fingerprint_of
from holdfast.flower.deploy.site import Site
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.flower.engine.moderator import play_over
from holdfast.play import run
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment, load
from holdfast.runs.history import History
from holdfast.runs.store import Run

NAMES = ["cleveland", "hungary", "switzerland", "long-beach"]
SCHEMA = read_schema(HEART_FILE.with_suffix(".toml"))


OWN_PART = """
import torch
from own_width import INPUTS, WIDTH


def network():
    return torch.nn.Sequential(torch.nn.Linear(INPUTS, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 2))
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """An experiment without data, and the four hospitals' own files."""
    (tmp_path / "schema.toml").write_text(HEART_FILE.with_suffix(".toml").read_text())
    (tmp_path / "study.toml").write_text(f'task = "schema.toml"\nnames = {json.dumps(NAMES)}\nrounds = 2\nlr = 0.1\n')
    (tmp_path / "policy.toml").write_text("min_records = 5\n")
    site_tables(SCHEMA, HEART_FILE, tmp_path / "tables")
    return tmp_path


def over(study: Path, experiment: Experiment, settings: dict[str, Any] | None = None, **more: Any) -> History:
    """The experiment played over a grid in this process, each site with its own table."""
    configs = {
        100 + i: {
            "site": name,
            "folder": str(study / "sites" / name),
            "table": str(study / "tables" / f"{i}.csv"),
            "policy": str(study / "policy.toml"),
            **more,
        }
        for i, name in enumerate(NAMES)
    }
    grid = InProcessGrid(client_app(experiment), configs)
    told = {"out": str(study / "run"), "sites": ",".join(NAMES), **(settings or {})}
    return play_over(grid, experiment, told)


def test_sites_learn_from_their_own_tables_and_results_are_their_own(study: Path) -> None:
    history = over(study, load(study / "study.toml"))
    last = history.records[-1]
    assert not last.absent
    assert not last.refused
    assert history.experiment.names == tuple(NAMES)
    (leading,) = {metric for metric in last.client_metrics if metric == last.measure.name}  # type: ignore[union-attr]
    own = last.client_metrics[leading]
    assert sorted(own) == [0, 1, 2, 3]
    assert set(last.metrics) >= {leading}
    assert not last.class_metrics  # there is no test set


def test_the_moderator_may_have_a_test_set(study: Path) -> None:
    history = over(study, load(study / "study.toml", [f"test={study / 'tables' / '0.csv'}"]))
    assert history.records[-1].class_metrics
    assert fingerprint_of(history.experiment) == fingerprint_of(load(study / "study.toml"))


def test_without_records_nothing_runs_on_this_machine(study: Path) -> None:
    with pytest.raises(HoldfastError, match="has no records on this machine"):
        run(load(study / "study.toml"))


def test_a_table_that_does_not_fit_costs_one_site_its_part_and_leaks_no_cell(
    study: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = study / "tables" / "2.csv"
    lines = table.read_text().splitlines()
    lines[4] = lines[4].replace(lines[4].split(",")[0], "4711", 1)  # an age
    table.write_text("\n".join(lines))
    history = over(study, load(study / "study.toml"))
    assert list(history.records[-1].absent) == [2]
    assert "its data or its copy of the experiment cannot be loaded" in history.records[-1].absent[2]
    assert "2.csv, row 5, column 'age': is outside of the agreed range, 20 to 90 years" in caplog.text
    written = [path.read_text(errors="replace") for path in (study / "run").rglob("*") if path.is_file()]
    assert not any("4711" in text for text in written)
    assert "4711" not in caplog.text


def test_a_schema_of_another_version_is_refused(study: Path, caplog: pytest.LogCaptureFixture) -> None:
    (study / "theirs.toml").write_text((study / "schema.toml").read_text().replace('version = "1"', 'version = "2"'))
    with pytest.raises(HoldfastError, match=r"its schema of the table says something else than the experiment's"):
        over(study, load(study / "study.toml"), {"gather": 0.1}, schema=str(study / "theirs.toml"))
    assert "theirs.toml is heart, version 2, and the experiment goes by heart, version 1" in caplog.text
    said = site_check(study, "--schema", str(study / "theirs.toml"))
    assert said.exit_code == 1
    assert "✗ data" in said.output
    assert "version 2, and the experiment goes by heart, version 1" in said.output


def test_a_changed_table_is_noticed(study: Path) -> None:
    experiment = load(study / "study.toml")
    over(study, experiment)
    table = study / "tables" / "1.csv"
    table.write_text("\n".join(table.read_text().splitlines()[:-5]))
    history = over(study, experiment, {"out": str(study / "again")})
    assert any("its table is another one than when it first took part" in note for note in history.records[0].notes)
    book = next((study / "sites" / "hungary").rglob("book.jsonl")).read_text()
    assert book.count('"table"') == 2


def test_the_app_carries_the_schema_and_no_data(study: Path) -> None:
    app = write_app(study / "app", load(study / "study.toml", [f"data={study / 'tables'}"]))
    text = "\n".join(path.read_text() for path in app.rglob("*") if path.is_file())
    assert str(study / "tables") not in text
    there = load(next(app.glob("*/experiment.toml")))
    assert Path(there.task).parent == next(app.glob("*/experiment.toml")).parent
    assert fingerprint_of(there) == fingerprint_of(load(study / "study.toml"))


def test_a_sites_file_may_name_it_otherwise(study: Path) -> None:
    assert len(own_samples(SCHEMA, study / "tables" / "3.csv")) == 200


def test_a_sites_records_count_by_their_weights(study: Path) -> None:
    """Weights come from the site's own file, and its answer is that of records that are there so often."""
    rows = [line.split(",") for line in (study / "tables" / "0.csv").read_text().splitlines()]
    often = [1 + number % 3 for number in range(len(rows) - 1)]
    weighted = [[*rows[0], "w"], *([*row, str(count)] for row, count in zip(rows[1:], often, strict=True))]
    (study / "w.csv").write_text("\n".join(",".join(row) for row in weighted))
    (study / "schema.toml").write_text('weight = "w"\n' + (study / "schema.toml").read_text())
    experiment = load(study / "study.toml", ["split=50/50/0", "metrics=accuracy"])
    config = {"site": "cleveland", "folder": str(study / "c"), "table": str(study / "w.csv")}
    own = Site(experiment, config).own(0, None)
    held = own.client.validation
    assert held.weights is not None
    assert float(held.weights.mean()) == pytest.approx(1)
    state = make_plan(experiment).first_state()
    request = EvaluateRequest(state.model, state.buffers)
    told = EVALUATE.read(perform(own.client, EVALUATE.message(0, 0, request)))
    with torch.no_grad():
        right = own.client.model(*held.inputs).argmax(1) == held.labels
    value = {metric.name: metric for metric in own.client.metrics}["accuracy"].value(told.metrics["accuracy"])
    times = (held.weights / held.weights.min()).round().long()
    assert sorted(set(times.tolist())) == [1, 2, 3]
    assert value == pytest.approx(float(right.repeat_interleave(times).float().mean()))


def site_check(study: Path, *more: str) -> Result:
    table = str(study / "tables" / "2.csv")
    words = ["site", "check", "switzerland", str(study / "study.toml"), "--table", table, *more]
    return CliRunner().invoke(app, words)


def test_a_dry_run_says_what_would_leave(study: Path) -> None:
    said = site_check(study, "--policy", str(study / "policy.toml"))
    assert said.exit_code == 0, said.output
    for line in ("123 records fit heart, version 1", "the change of the model's weights, without noise", "can join"):
        assert line in said.output
    assert not list(study.rglob("book.jsonl"))  # nothing was entered anywhere


def test_a_dry_run_says_what_is_wrong(study: Path) -> None:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        said = site_check(study, "--superlink", f"127.0.0.1:{probe.getsockname()[1]}")
    assert said.exit_code == 1
    assert "does not answer" in said.output
    assert "at an evaluation nothing: 'evaluate' uses 12 records, fewer than min_records = 50" in said.output
    (study / "policy.toml").write_text('experiments = ["0123"]\n')
    said = site_check(study, "--policy", str(study / "policy.toml"))
    assert said.exit_code == 1
    assert "the site's policy does not allow experiment" in said.output
    table = study / "tables" / "2.csv"
    table.write_text(table.read_text().replace("hospital", "clinic").replace("chol", "cholesterol"))
    said = site_check(study)
    assert said.exit_code == 1
    assert "has no column 'chol'" in said.output


def test_over_real_processes_with_an_own_network(
    study: Path, tmp_path_factory: pytest.TempPathFactory, marker: str
) -> None:
    """`flower up` from another folder: all its processes find the user's modules in the app alone."""
    (study / "own_part.py").write_text(OWN_PART)
    (study / "own_width.py").write_text("INPUTS, WIDTH = 35, 8\n")
    (study / "two.csv").write_text("".join(HEART_FILE.read_text().splitlines(keepends=True)[:500]))  # two hospitals
    (study / "all.toml").write_text(
        'task = "schema.toml"\ndata = "two.csv"\nmodel = "own_part:network"\nrounds = 2\nlr = 0.1\n'
    )
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "flower", "up", str(study / "all.toml")]
    command += ["--insecure", "--allow-failures", "--out", str(study / "try")]
    done = subprocess.run(
        command,
        cwd=tmp_path_factory.mktemp("elsewhere"),
        env=environment(marker),
        capture_output=True,
        text=True,
        timeout=2 * GENEROUS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Everything is down again" in done.stdout
    records = Run.open(study / "try" / "run").records()
    assert len(records) == 2
    said = {client: why for record in records for client, why in record.absent.items()}
    assert {client for record in records for client in record.weights} == {0, 1}, said  # late once is no matter here
    assert not marked(marker)
