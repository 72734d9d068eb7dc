"""`--log json`: each round, the end and an error are lines of JSON that name who was away and why."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from warm import call

from holdfast.core.logs import JsonLines


def test_a_run_tells_its_rounds_as_json(tmp_path: Path, warm_commands: dict[str, str]) -> None:
    file = tmp_path / "e.toml"
    file.write_text(
        'rounds = 2\nclients = 3\nmodel = "linear"\nworkers = 0\nnames = ["a", "b", "c"]\nscenario = "sequential"\n'
    )
    done = call(warm_commands, tmp_path, "holdfast", "--log", "json", "run", str(file), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    rounds = [line for line in lines if line.get("event") == "round"]
    assert [line["round"] for line in rounds] == [1, 2]
    assert all(0 < line["metrics"]["accuracy"] <= 1 for line in rounds)
    assert rounds[-1]["absent"] == {"a": "away (sequential)", "b": "away (sequential)"}
    assert (lines[-1]["event"], lines[-1]["folder"]) == ("end", str(tmp_path / "out"))
    assert done.stdout == ""
    failed = call(warm_commands, tmp_path, "holdfast", "--log", "json", "run", "none.toml")
    [line] = [json.loads(line) for line in failed.stderr.splitlines()]
    assert (failed.returncode, line["event"], line["level"], line["code"][:4]) == (1, "error", "error", "HF11")


def test_a_traceback_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("holdfast").exception("gone")
    text = JsonLines().format(caplog.records[-1])
    assert "\n" not in text
    assert "two\nlines" in json.loads(text)["traceback"]
