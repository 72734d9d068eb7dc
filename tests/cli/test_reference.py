"""The reference is what the code says: every key, choice and command, each with its meaning."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.cli.reference import reference
from holdfast.runs.experiment import Experiment
from holdfast.runs.keys import experiment_keys

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "docs/reference.md is not what the code says: make reference"


def test_every_key_has_a_meaning() -> None:
    keys = {key.name: key for key in experiment_keys()}
    assert set(keys) == {field.name for field in fields(Experiment)} - {"given"}
    assert [key.name for key in keys.values() if len(key.meaning) < 10] == []
    assert (keys["weight_decay"].usual, keys["checkpoint_every"].usual, keys["split"].usual) == (
        "0.0",
        "1",
        '"80/10/10"',
    )
    assert keys["download"].kind == "true or false"


def test_keys_are_listed_in_the_terminal() -> None:
    done = CliRunner().invoke(app, ["keys"], env={"COLUMNS": "100"})
    assert done.exit_code == 0
    assert all(key.name in done.stdout for key in experiment_keys())
