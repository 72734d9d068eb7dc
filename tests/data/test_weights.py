"""Weights of records: in the loss, in each metric, in sums; what cannot heed them is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as oracle
from sklearn.linear_model import Ridge
from torch import Tensor

import holdfast
from holdfast.core.errors import HoldfastError
from holdfast.data.class_metrics import F1, BalancedAccuracy, Brier
from holdfast.data.contract import Kind
from holdfast.data.kinds import Classes, Regression, Survival
from holdfast.data.metrics import R2, Accuracy, Mae, Metric, Rmse, weighted_sums
from holdfast.data.ranking_metrics import Auprc, Auroc
from holdfast.data.survival import CIndex
from holdfast.data.tables.schema import schema_from
from holdfast.data.tables.source import table_task
from holdfast.data.task import Samples, Task, evenly
from holdfast.digests.sums import make_sums
from holdfast.heads.from_sums import least_squares
from holdfast.privacy.noise import system
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment

G = torch.Generator().manual_seed(0)
TIMES = torch.randint(1, 4, (80,), generator=G)
OUTPUT, LABELS = torch.randn(80, 2, generator=G).round(decimals=1), torch.randint(0, 2, (80,), generator=G)


def value(metric: Metric, output: Tensor, labels: Tensor, weights: Tensor | None) -> float:
    return metric.value(weighted_sums(metric, output, labels, weights))


@pytest.mark.parametrize(
    "metric", [Accuracy(), BalancedAccuracy(2), Auroc(), F1(2), Brier(), R2(), Rmse(), CIndex()], ids=lambda m: m.name
)
def test_a_weight_of_two_is_the_record_twice(metric: Metric) -> None:
    output, labels = OUTPUT, LABELS
    if metric.name in ("r2", "rmse", "c-index"):
        output, labels = OUTPUT[:, :1], OUTPUT[:, 1:]
    if isinstance(metric, CIndex):
        labels = torch.cat([labels.abs(), LABELS[:, None].float()], 1)
    again = torch.arange(80).repeat_interleave(TIMES)
    found = value(metric, output, labels, evenly(Samples(output, labels, weights=TIMES)).weights)  # type: ignore[arg-type]
    assert found == pytest.approx(value(metric, output[again], labels[again], None), rel=1e-5)


def test_ranks_are_scikit_learns() -> None:
    score, w = (OUTPUT[:, 1].double() - OUTPUT[:, 0].double()).numpy(), TIMES.double() / 2
    assert value(Auroc(), OUTPUT, LABELS, w) == pytest.approx(
        oracle.roc_auc_score(LABELS.numpy(), score, sample_weight=w.numpy())
    )
    assert value(Auprc(), OUTPUT, LABELS, w) == pytest.approx(
        oracle.average_precision_score(LABELS.numpy(), score, sample_weight=w.numpy())
    )
    assert value(Mae(), OUTPUT[:, :1], OUTPUT[:, 1:], w) == pytest.approx(
        oracle.mean_absolute_error(OUTPUT[:, 1].numpy(), OUTPUT[:, 0].numpy(), sample_weight=w.numpy())
    )


def task(kind: Kind) -> Task:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > 0).long() if kind.has_classes else x[:, 0] - x[:, 1] ** 2
    if isinstance(kind, Survival):
        y = torch.stack([x[:, 0].exp(), torch.ones(60)], 1)
    samples = Samples((x,), y, weights=torch.arange(60.0) % 5)
    return Task("weighted", samples, samples.take(torch.arange(20)), ("a", "b") if kind.has_classes else (), kind=kind)


def experiment(kind: Kind, **keys: Any) -> Experiment:
    usual = {"clients": 2, "partition": "iid", "model": "linear", "workers": 0, "rounds": 1, "split": "100/0/0"}
    return Experiment(task=task(kind), **{**usual, "batch_size": 100, "momentum": 0.0, "lr": 0.1, **keys})


@pytest.mark.parametrize("kind", [Classes(), Regression()], ids=lambda kind: kind.name)
def test_one_step_goes_down_the_weighted_loss(kind: Kind) -> None:
    """Clients count by records, and within a client records by weight."""
    wanted = experiment(kind)
    plan = make_plan(wanted)
    start, total = plan.model(), torch.zeros(())
    for train, _, _ in plan.parts:
        part = plan.task.train.take(train)
        assert part.weights is not None
        each = torch.stack([plan.task.loss(start(x[None]), y[None]) for x, y in zip(part.inputs[0], part.labels)])  # noqa: B905
        total = total + (each * part.weights).sum() / part.weights.sum() * len(part) / 60
    total.backward()
    after = holdfast.run(wanted).state
    assert after is not None
    for name, weight in start.named_parameters():
        assert weight.grad is not None
        assert torch.allclose(after.model[name], weight.detach() - 0.1 * weight.grad, atol=1e-6)


def test_sums_make_weighted_ridge() -> None:
    samples = evenly(task(Regression()).train)
    assert samples.weights is not None
    z, y, w = samples.inputs[0].double().numpy() / 5, samples.labels.double(), samples.weights.double().numpy()
    digest = make_sums(Regression(), 0, z, y.reshape(-1, 1), (-1.0, 1.0), None, system(), w)
    slope, intercept, _ = least_squares(digest.sums, penalty=0.5)
    ridge = Ridge(alpha=0.5).fit(z, y.numpy(), sample_weight=w)
    assert slope == pytest.approx(ridge.coef_, abs=1e-6)
    assert intercept == pytest.approx(ridge.intercept_, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "keys", "sentence"),
    [
        (Classes(), {"protect": "dp-sgd"}, "covers records that count once"),
        (Survival(), {}, "none has a loss of its own"),
        (
            Classes(),
            {"absence": "feddig", "model": "features", "encoder": "random"},
            "rows of a digest all count alike",
        ),
        (Classes(), {"absence": {"name": "feddig", "mode": "moments"}, "model": "features"}, "noise covers records"),
    ],
)
def test_what_cannot_heed_weights_is_refused(kind: Kind, keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence):
        make_plan(experiment(kind, **keys))


TABLE = """site,x,y,w
a,1,0,1
a,2,1,0.5
a,3,0,2
b,4,1,1
b,5,0,1
b,6,1,3
"""
SCHEMA: dict[str, Any] = {
    "name": "w", "version": "1", "site": "site", "weight": "w",
    "target": {"kind": "classes", "column": "y", "values": [0, 1]},
    "columns": {"x": {"kind": "number", "range": [0, 10]}},
}  # fmt: skip


def test_a_schema_names_the_column_of_weights(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    schema = schema_from(SCHEMA, "schema")
    found = table_task(schema, tmp_path / "t.csv", test=tmp_path / "t.csv").train
    assert found.weights is not None
    assert found.weights.tolist() == [1, 0.5, 2, 1, 1, 3]
    assert schema.fingerprint != schema_from({k: v for k, v in SCHEMA.items() if k != "weight"}, "s").fingerprint
    for cell, sentence in (
        ("-1", "row 2, column 'w': is a weight below 0"),
        ("", "it says the weight"),
        ("x", "no number"),
    ):
        (tmp_path / "t.csv").write_text(TABLE.replace("a,1,0,1\n", f"a,1,0,{cell}\n"))
        with pytest.raises(HoldfastError, match=sentence):
            table_task(schema, tmp_path / "t.csv")


def test_all_weights_zero_is_a_sentence() -> None:
    with pytest.raises(HoldfastError, match="nothing to learn from"):
        evenly(Samples(np.zeros((3, 1)), [0, 1, 0], weights=[0, 0, 0]))  # type: ignore[arg-type]
    with pytest.raises(HoldfastError, match="at least 0"):
        Samples(np.zeros((2, 1)), [0, 1], weights=[1, -1])  # type: ignore[arg-type]
