"""FedDig in rounds for targets that are no classes: sums stand in for those who left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import PoissonRegressor

import holdfast
from holdfast.core.errors import HoldfastError
from holdfast.data.contract import Kind
from holdfast.data.kinds import Counts, Hazards, Labels, Regression, Survival
from holdfast.data.survival import interval_targets
from holdfast.data.tables.schema import schema_from
from holdfast.data.task import Samples, Task
from holdfast.digests.sums import make_sums
from holdfast.heads.sum_samples import most_likely, rows_of
from holdfast.privacy.noise import system
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment

NUMBERS = {"kind": "number", "range": [-4, 4]}
CUTS = (0.25, 0.5, 1.0, 2.0)
SCHEMA = {
    "name": "kinds",
    "version": "1",
    "target": {"kind": "regression", "column": "y"},
    "columns": {f"x{i}": NUMBERS for i in range(4)},
}


def records(kind: Kind, count: int, seed: int) -> Samples:
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 4, generator=g) * 2 - 1
    value = 2 * x[:, 0] - x[:, 1] + 0.3 * torch.randn(count, generator=g)
    if isinstance(kind, Labels):
        return Samples((x,), torch.stack([value > 0, value < 0.5], 1).float())
    if isinstance(kind, Counts):
        return Samples((x,), torch.poisson((0.5 * value).exp(), generator=g))
    if isinstance(kind, Survival):
        time = torch.empty(count).exponential_(generator=g) * torch.exp(-value)
        return Samples((x,), torch.stack([time.clamp(max=3), (time < 3).float()], 1))
    return Samples((x,), value)


def task(kind: Kind) -> Task:
    names = ("fever", "cough") if isinstance(kind, Labels) else ()
    schema = schema_from(SCHEMA, "schema")
    return Task(kind.name, records(kind, 300, 1), records(kind, 200, 2), names, kind=kind, schema=schema)


def experiment(kind: Kind, **keys: Any) -> Experiment:
    usual: dict[str, Any] = {
        "clients": 3, "partition": "iid", "rounds": 9, "workers": 0, "encoder": "table", "model": "head", "lr": 0.3,
        "absence": {"name": "feddig", "mode": "sums"},
    }  # fmt: skip
    return Experiment(task=task(kind), **{**usual, **keys})


def test_a_member_that_left_after_its_digest_costs_least_squares_nothing() -> None:
    """Whole batches of a linear model: a stand-in's update is its client's own, up to float32."""
    usual: dict[str, Any] = {"batch_size": 1000, "momentum": 0.0, "rounds": 6}
    there = holdfast.run(experiment(Regression(), **usual)).state
    left = holdfast.run(experiment(Regression(), scenario="sequential", **usual)).state
    assert there is not None
    assert left is not None
    for name in there.model:
        assert torch.allclose(there.model[name], left.model[name], atol=2e-6)
    assert len(left.absent) == 3


@pytest.mark.parametrize("kind", [Labels(), Counts(), Hazards(CUTS)], ids=lambda kind: kind.name)
def test_other_kinds_lose_little_when_all_have_left(kind: Kind) -> None:
    there = holdfast.run(experiment(kind))
    left = holdfast.run(experiment(kind, scenario="sequential"))
    plain = holdfast.run(experiment(kind, rounds=1, absence="none"))
    sign = -1 if there.measure.smaller_is_better else 1
    assert sign * left.leading[-1] > sign * there.leading[-1] - 0.04
    assert sign * left.leading[-1] > sign * plain.leading[-1]


@pytest.mark.parametrize("kind", [Regression(), Counts(), Labels()], ids=lambda kind: kind.name)
def test_rows_have_the_sums_of_the_records(kind: Kind) -> None:
    whole = task(kind)
    z = whole.train.inputs[0].double().numpy() / 2
    targets = whole.train.labels if isinstance(kind, Labels) else whole.train.labels.reshape(-1, 1)
    digest = make_sums(kind, whole.classes, z, targets, (-1.0, 1.0), None, system())
    features, drawn = (part.double().numpy() for part in rows_of(digest, torch.Generator()))
    y = targets.double().numpy()
    assert features.sum(0) == pytest.approx(z.sum(0), abs=1e-4)
    assert features.T @ features == pytest.approx(z.T @ z, abs=1e-4)
    assert drawn.sum(0) == pytest.approx(y.sum(0), abs=1e-3)
    assert drawn.T @ features == pytest.approx(y.T @ z, abs=1e-3)


def test_rows_of_hazards_have_the_counts_and_means_of_the_records() -> None:
    kind = Hazards(CUTS)
    whole = task(kind)
    z = whole.train.inputs[0].double().numpy() / 2
    features, drawn = rows_of(make_sums(kind, 0, z, whole.train.labels, (-1.0, 1.0), None, system()), torch.Generator())
    assert len(features) == len(z)
    for was, now in zip(interval_targets(whole.train.labels, CUTS), interval_targets(drawn, CUTS), strict=True):
        assert now.sum(0).tolist() == was.sum(0).tolist()
        assert np.allclose(now.T.double().numpy() @ features.double().numpy(), was.T.double().numpy() @ z, atol=1e-3)


def test_counts_in_one_message_are_near_a_poisson_regression_of_all_records() -> None:
    whole = task(Counts())
    z = whole.train.inputs[0].double().numpy() / 2
    digests = [
        make_sums(Counts(), 0, z[part], whole.train.labels[part].reshape(-1, 1), (-1.0, 1.0), None, system())
        for part in (slice(0, 100), slice(100, 300))
    ]
    fitted = most_likely(digests, 0)
    oracle = PoissonRegressor(alpha=0.03).fit(z / z.std(0), whole.train.labels.numpy())
    assert fitted["weight"][0].numpy() * z.std(0) == pytest.approx(oracle.coef_, abs=0.06)
    one = holdfast.run(experiment(Counts(), algorithm="oneshot", rounds=1, model="auto"))
    assert one.leading[-1] < 1.3


def test_what_cannot_stand_in_is_refused_with_the_reason() -> None:
    for kind, absence, reason in (
        (Survival(), {"name": "feddig", "mode": "sums"}, "records at risk"),
        (Survival(), "feddig", "is no time"),
        (Regression(), "feddig", "made for classes"),
        (Counts(), {"name": "feddig", "mode": "moments"}, "target_range"),
    ):
        with pytest.raises(HoldfastError, match=reason):
            make_plan(experiment(kind, absence=absence))


def test_noised_sums_stand_in_too() -> None:
    """Many records: the noise of epsilon 10 is small beside them."""
    absence = {"name": "feddig", "mode": "moments", "epsilon": 10.0, "target_range": [-4, 4]}
    history = holdfast.run(experiment(Regression(), scenario="sequential", absence=absence))
    assert history.records[-1].metrics["rmse"] < 1.2
