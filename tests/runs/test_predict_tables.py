"""A model of a table carries its schema: it judges a hospital's new CSV where nothing else of the study is."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.core.errors import HoldfastError
from holdfast.core.files import load_tensors, read_metadata, save_tensors
from holdfast.data.named import HEART_FILE
from holdfast.data.tables.new_records import as_table
from holdfast.data.tables.schema import read_schema, schema_from
from holdfast.play import run
from holdfast.runs.experiment import Experiment
from holdfast.runs.export import load_model

EVERY_KIND = """
name = "all"
version = "2"
decimal = ","
patient = "who"
missing_values = ["", "?"]
[target]
{target}
[columns.age]
kind = "number"
range = [0, 120]
unit = "years"
missing = "indicator"
missing_values = ["-1"]
outside = "clip"
[columns.sex]
kind = "category"
values = ["f", "m"]
[columns.day]
kind = "date"
range = ["2000-01-01", "2030-12-31"]
format = "%d.%m.%Y"
"""


@pytest.mark.parametrize(
    "target",
    [
        'kind = "classes"\ncolumn = "y"\nvalues = {0 = "well", 1 = "ill", 2 = "ill"}',
        'kind = "labels"\ncolumns = ["a", "b"]',
        'kind = "regression"\ncolumn = "y"\nrange = [-3, 5.5]\nunit = "mm"\noutside = "clip"',
        'kind = "regression"\ncolumn = "y"',
        'kind = "count"\ncolumn = "y"',
        'kind = "survival"\nevent = "dead"\ntime = "days"\ncuts = [10, 20.5]',
    ],
)
def test_a_schema_survives_the_way_through_a_models_file(target: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(EVERY_KIND.format(target=target))
    schema = read_schema(tmp_path / "s.toml")
    again = schema_from(json.loads(json.dumps(as_table(schema))), "file")
    assert again == schema
    assert again.fingerprint == schema.fingerprint


def test_the_heart_schema_does_too() -> None:
    schema = read_schema(HEART_FILE.with_suffix(".toml"))
    assert schema_from(as_table(schema), "file").fingerprint == schema.fingerprint


@pytest.fixture(scope="module", params=["none", "feddig"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heart")
    run(Experiment(task="heart", absence=request.param, rounds=2, workers=0), folder / "run")
    return folder / "run" / "model.safetensors"


def test_a_new_csv_is_judged(model: Path, tmp_path: Path) -> None:
    lines = HEART_FILE.read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join(lines[:41]) + "\n")
    words = ["predict", str(model), str(tmp_path / "new.csv"), "--out", str(tmp_path / "said.csv"), "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    said = json.loads(done.stdout)
    assert len(said["predictions"]) == 40
    assert 0.5 < said["accuracy"] <= 1.0
    with open(tmp_path / "said.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == [one["class"] for one in said["predictions"]]


def test_without_the_target_there_is_nothing_to_check(model: Path, tmp_path: Path) -> None:
    header, *rows = [line.split(",") for line in HEART_FILE.read_text().splitlines()[:4]]
    schema = read_schema(HEART_FILE.with_suffix(".toml"))
    kept = [header.index(column.name) for column in schema.columns]
    text = "\n".join(",".join(row[i] for i in kept) for row in (header, *rows))
    (tmp_path / "new.csv").write_text(text + "\n")
    done = CliRunner().invoke(app, ["predict", str(model), str(tmp_path / "new.csv")], catch_exceptions=False)
    assert "3 samples; no labels to check" in done.stdout
    (tmp_path / "less.csv").write_text(text.replace(header[kept[0]], "another", 1) + "\n")
    with pytest.raises(HoldfastError, match=f"less.csv has no column {header[kept[0]]!r}"):
        CliRunner().invoke(app, ["predict", str(model), str(tmp_path / "less.csv")], catch_exceptions=False)


def test_a_table_for_a_model_of_arrays_and_a_schema_that_is_none(model: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=np.arange(60) % 2, x_test=x, y_test=np.arange(60) % 2)
    run(Experiment(task=str(tmp_path / "d.npz"), clients=2, partition="iid", rounds=1, workers=0), tmp_path / "r")
    with pytest.raises(HoldfastError, match="is a table, and the model was trained on arrays"):
        CliRunner().invoke(app, ["predict", str(tmp_path / "r"), str(HEART_FILE)], catch_exceptions=False)
    data = model.read_bytes()
    spoilt = {**read_metadata(data), "schema": '{"name": "heart", "code": "os:abort"}'}
    (tmp_path / "bad.safetensors").write_bytes(save_tensors(load_tensors(data, model), spoilt))
    assert safetensors.torch.load((tmp_path / "bad.safetensors").read_bytes())
    with pytest.raises(HoldfastError, match="its schema: there is no key 'code'"):
        load_model(tmp_path / "bad.safetensors")
