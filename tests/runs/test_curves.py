"""The figures of a final model: against scikit-learn and scikit-survival, in the folder and in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sklearn.metrics as sk
import torch
from kind_tasks import wanted
from sklearn.calibration import calibration_curve
from torch import Tensor

import holdfast
from holdfast.core.errors import HoldfastError
from holdfast.data.kinds import Classes, Labels, Regression, Survival
from holdfast.report.payload import payload
from holdfast.report.run_data import read_story
from holdfast.runs.curves import GROUPS, POINTS, curves_of, read_curves


def two_classes(count: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    labels = torch.randint(2, (count,), generator=g)
    output = torch.randn(count, 2, generator=g).double()
    output[:, 1] += labels
    return output, labels


def test_roc_and_calibration_are_scikit_learns() -> None:
    output, labels = two_classes(150)
    found = curves_of(Classes(), output, labels, ("well", "ill"))
    [line], [told] = found["roc"], found["calibration"]
    chance = output.softmax(1)[:, 1].numpy()
    x, y, _ = sk.roc_curve(labels.numpy(), (output[:, 1] - output[:, 0]).numpy(), drop_intermediate=False)
    assert (line["name"], line["value"]) == ("ill", pytest.approx(sk.roc_auc_score(labels.numpy(), chance)))
    assert line["x"] == pytest.approx(x.tolist())
    assert line["y"] == pytest.approx(y.tolist())
    shares, means = calibration_curve(labels.numpy(), chance, n_bins=10)
    assert told["x"] == pytest.approx(means.tolist())
    assert told["y"] == pytest.approx(shares.tolist())
    assert sum(told["count"]) == 150


def test_a_long_curve_is_thinned_and_its_ends_stay() -> None:
    output, labels = two_classes(5000)
    [line] = curves_of(Classes(), output, labels, ("well", "ill"))["roc"]
    assert len(line["x"]) == POINTS + 1
    assert (line["x"][0], line["y"][0], line["x"][-1], line["y"][-1]) == (0.0, 0.0, 1.0, 1.0)
    assert curves_of(Classes(), output, torch.zeros(5000, dtype=torch.long), ("well", "ill"))["roc"] == []


def test_residuals_are_counts_and_labels_have_curves_of_their_own() -> None:
    predicted = torch.tensor([[0.0], [1.0], [1.0]])
    [cells] = curves_of(Regression(), predicted, torch.tensor([[1.0], [1.0], [0.0]]), ())["residuals"]
    assert (cells["x"], cells["y"]) == ([0.0, 1.0], [-1.0, 1.0])
    assert (cells["cells"][23][0], cells["cells"][12][23], cells["cells"][0][23]) == (1, 1, 1)
    assert sum(map(sum, cells["cells"])) == 3
    lines = curves_of(Labels(), torch.randn(20, 2), torch.eye(2).repeat(10, 1), ("fever", "cough"))["roc"]
    assert [line["name"] for line in lines] == ["fever", "cough"]


def test_survival_is_cut_in_thirds_by_risk() -> None:
    risk = torch.tensor([[3.0], [2.0], [1.0]])
    lines = curves_of(Survival(), risk, torch.tensor([[1.0, 1.0], [2.0, 1.0], [3.0, 0.0]]), ())["survival"]
    assert [line["name"] for line in lines] == list(GROUPS)
    assert (lines[0]["x"], lines[0]["y"]) == ([0.0, 3.0], [1.0, 1.0])  # last seen at 3
    assert (lines[2]["x"], lines[2]["y"]) == ([0.0, 1.0, 1.0], [1.0, 0.0, 0.0])  # the highest risk ends first


FIGURES = {"classes": {"roc", "calibration"}, "labels": {"roc"}, "regression": {"residuals"}, "hazards": {"survival"}}


@pytest.mark.parametrize("task", FIGURES)
def test_a_finished_run_has_its_figures_and_the_report_shows_them(task: str, tmp_path: Path) -> None:
    away = {"name": "intervals", "away": [[1, 2, 10]]}
    history = holdfast.run(wanted(task, rounds=2, lr=0.1, scenario=away), tmp_path / "run")
    [run] = payload([read_story(tmp_path / "run")])["runs"]
    assert set(run["curves"]) == FIGURES[task]
    test, last = run["lastTest"], history.records[-1]
    assert [row[0] for row in test["rows"]] == [
        "overall",
        "those who are away (1)",
        "client 0",
        "client 1, away",
        "client 2",
    ]
    assert test["head"][:4] == ["", "samples", history.measure.words, "95 % interval"]
    assert test["rows"][1][1] == str(last.client_samples[1])
    assert " to " in test["rows"][0][3]
    (tmp_path / "run" / "curves.json").unlink()  # as in runs of earlier versions
    assert read_story(tmp_path / "run").curves == {}


@pytest.mark.parametrize(
    "table",
    [
        {"pie": []},
        {"roc": 3},
        {"roc": [{"x": [0.0], "y": [0.0, 1.0]}]},
        {"roc": [{"x": [0.0], "y": ["<script>"]}]},
        {"roc": [{"x": [True], "y": [0.0]}]},
        {"roc": [{"x": [0.0], "y": [float("inf")]}]},
        {"roc": [{"x": [0.0] * 1000, "y": [0.0] * 1000}]},
        {"roc": [{"x": [0.0], "y": [0.0], "more": 1}]},
        {"residuals": [{"x": [0.0, 1.0], "y": [0.0, 1.0], "cells": [[1]]}]},
        {"calibration": [{"x": [0.5], "y": [0.5]}]},
    ],
    ids=lambda table: json.dumps(table)[:40],
)
def test_curves_of_a_stranger_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(HoldfastError, match="is not what a run writes"):
        read_curves(table, "here")


def test_names_of_curves_are_plain_text() -> None:
    [line] = read_curves({"roc": [{"name": "a\x1b[31m\nb", "x": [0], "y": [1], "value": 0.123456789}]}, "here")["roc"]
    assert "\x1b" not in line["name"]
    assert line["value"] == 0.12346
