"""A regression on the command line, in the report and as a trained model."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from regression_tasks import numbers, wanted

import holdfast
from holdfast.cli import main
from holdfast.core.errors import HoldfastError
from holdfast.data.metrics import Accuracy, Measure
from holdfast.report.payload import payload
from holdfast.report.run_data import read_story
from holdfast.report.words import headline
from holdfast.runs.export import load_model

RMSE = Measure("rmse", smaller_is_better=True)


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    monkeypatch.setattr(sys, "argv", ["holdfast", *words])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert (end.value.code or 0) == code, said.out + said.err
    return said.out + said.err


def write(path: Path, **keys: Any) -> Path:
    table = {key: value for key, value in wanted(**keys).as_json().items() if value is not None}
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items()))
    return path


def test_a_regression_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, out = str(write(tmp_path / "line.toml")), str(tmp_path / "run")
    assert "240 samples + 80 for the test, regression, 3 values" in command(monkeypatch, capsys, "check", file)
    assert "samples" in command(monkeypatch, capsys, "partition", file)
    ran = command(monkeypatch, capsys, "run", file, "--out", out)
    final = holdfast.resume(out).final
    assert f"fedavg under none: RMSE {final:.3g} (mean of the last 3 tests) after 4 rounds" in ran
    assert re.search(r"round 4, RMSE \d", ran)
    told = command(monkeypatch, capsys, "report", out)
    assert f"FedAvg reached RMSE {final:.3g} with everybody present" in told
    page = (tmp_path / "run" / "report.html").read_text()
    assert '"name":"RMSE"' in page.replace('": ', '":')
    assert "accuracy" not in ran + told
    np.savez(tmp_path / "new.npz", x=numbers(5, 9).inputs[0].numpy(), y=numbers(5, 9).labels.numpy())
    assert "5 samples; RMSE" in command(monkeypatch, capsys, "predict", out, str(tmp_path / "new.npz"))
    answers = load_model(out).predict(numbers(5, 9).inputs[0].numpy())
    assert answers.shape == (5, 1)
    assert float(np.abs(answers[:, 0] - numbers(5, 9).labels.numpy()).mean()) < 2
    as_json = json.loads(command(monkeypatch, capsys, "run", file, "--out", f"{out}2", "--json").splitlines()[0])
    assert (as_json["metric"], as_json["final"]) == ("rmse", final)
    assert "final_accuracy" not in as_json


def test_the_smallest_error_is_the_best_of_a_comparison(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = str(write(tmp_path / "line.toml", rounds=3))
    out = tmp_path / "c"
    arguments = ("compare", "--file", file, "--scenario", "none", "--method", "fedavg,fedprox:100", "--out", str(out))
    said = command(monkeypatch, capsys, *arguments)
    assert "Test RMSE at the end" in said
    rows = {row["method"]: row["final"] for row in json.loads((out / "results.json").read_text())["rows"]}
    assert rows["fedavg"] < rows["fedprox:100"]
    stories = [read_story(path) for path in sorted(out.iterdir()) if (path / "experiment.json").is_file()]
    [words] = headline(stories)
    assert words.startswith(f"FedAvg reached RMSE {rows['fedavg']:.3g} with everybody present; FedProx:100 RMSE")
    assert (out / "curves.png").stat().st_size > 0
    run = payload(stories)["runs"][0]
    assert run["metric"] == {"name": "RMSE", "unit": "", "smaller": True}
    assert run["classes"] == []
    assert run["classValues"] is None
    assert run["clientValues"]["high"] > run["clientValues"]["low"]


def test_an_error_that_grew_rose(tmp_path: Path) -> None:
    from report_helpers import make_run, record

    def tested(round: int, rmse: float, **changes: Any) -> Any:
        values = {"measure": RMSE, "metrics": {"rmse": rmse}, "client_metrics": {"rmse": {0: rmse, 1: 2 * rmse}}}
        return record(round, **values, **changes)

    away = {"absent": {0: "away (x)", 1: "away (x)"}}
    good = make_run(tmp_path / "good", [tested(1, 2.0), tested(2, 1.0), tested(3, 1.0, **away)], classes=())
    bad = make_run(tmp_path / "bad", [tested(1, 1.0), *(tested(t, 4.0, **away) for t in (2, 3, 4))], classes=())
    assert headline([read_story(bad)])[0].startswith("FedAvg rose to RMSE 4 when all 2 clients left")
    assert headline([read_story(good)])[0].startswith("FedAvg rose to RMSE 1.33")
    accuracy = make_run(tmp_path / "other", [record(1, measure=Accuracy().measure, metrics={"accuracy": 0.5})])
    with pytest.raises(HoldfastError, match=r"measured by RMSE and accuracy in %, which do not compare"):
        headline([read_story(bad), read_story(accuracy)])


def test_digests_of_a_regression_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = command(
        monkeypatch, capsys, "digest", "make", "--out", str(tmp_path / "d"), "--task", "regression_tasks:line", code=1
    )
    assert "Error: " in said
