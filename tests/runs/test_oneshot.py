"""algorithm = "oneshot": one exchange of digests, no training, and what makes no sense refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import holdfast
from holdfast import Experiment
from holdfast.core.errors import HoldfastError
from holdfast.runs.build import make_plan
from holdfast.runs.export import load_model


def experiment(**changes: Any) -> Experiment:
    usual: dict[str, Any] = {
        "algorithm": "oneshot", "absence": "feddig", "rounds": 1, "samples": 1400, "clients": 4, "workers": 0,
        "partition": "dirichlet:1.0",
    }  # fmt: skip
    return Experiment(**{**usual, **changes})


@pytest.mark.parametrize(
    ("absence", "head", "least"),
    [
        ({"name": "feddig"}, "auto", 0.77),
        ({"name": "feddig"}, "server-step", 0.72),
        ({"name": "feddig"}, "lda", 0.75),
        ({"name": "feddig", "mode": "sums"}, "auto", 0.75),
        ({"name": "feddig", "mode": "moments", "epsilon": 20.0}, "auto", 0.6),
        ({"name": "feddig", "mode": "dp-label-public", "epsilon": 50.0}, "ridge", 0.4),
    ],
)
def test_a_run_of_one_message(absence: dict[str, Any], head: str, least: float, tmp_path: Path) -> None:
    history = holdfast.run(experiment(absence=absence, algorithm={"name": "oneshot", "head": head}), tmp_path / "run")
    [record] = history.records
    assert record.accuracy is not None
    assert record.accuracy > least
    assert (record.loss, record.bytes_down, record.absent, record.refused) == (None, 0, {}, {})
    assert sum(record.weights.values()) == pytest.approx(1.0)
    assert load_model(tmp_path / "run").predict(torch.zeros(2, 28, 28).numpy()).shape == (2, 10)


def test_the_engine_makes_no_difference(tmp_path: Path) -> None:
    for workers, name in ((0, "one"), (2, "two")):
        holdfast.run(experiment(workers=workers, algorithm="oneshot:lda"), tmp_path / name)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_who_is_away_sends_nothing(tmp_path: Path) -> None:
    history = holdfast.run(experiment(scenario="dropout:0.6", seed=1, algorithm="oneshot:lda"))
    [record] = history.records
    assert len(record.absent) >= 1
    assert not set(record.absent) & set(record.weights)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"absence": "none"}, "say absence = 'feddig'"),
        ({"rounds": 3}, "say rounds = 1"),
        ({"trust": "median"}, "no updates to weigh"),
        ({"protect": "dp-sgd"}, "no updates leave"),
        ({"server_optimizer": "fedadam"}, "no steps for it"),
        ({"attack": "signflip", "attackers": 1}, "no updates to attack"),
        ({"model": "cnn"}, r"leave model out\."),
        ({"model": "features"}, "leave model out, or choose algorithm = 'oneshot:server-step'"),
        ({"algorithm": "oneshot:qdda"}, "did you mean 'qda'"),
        ({"absence": {"name": "feddig", "mode": "sums", "epsilon": 3.0}}, "has no noise"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence):
        make_plan(experiment(**changes))


def test_sums_of_classes_do_not_stand_in() -> None:
    with pytest.raises(HoldfastError, match="stand in by rows or moments"):
        make_plan(Experiment(absence="feddig:mode=sums"))


def test_a_poisoned_digest_can_be_played() -> None:
    history = holdfast.run(experiment(attack="labelflip", attackers=1, algorithm="oneshot:lda"))
    assert history.records[0].accuracy is not None


def test_four_hospitals_in_one_message() -> None:
    """Exact sums of a table, each hospital a client: the pooled discriminant."""
    absence = {"name": "feddig", "mode": "sums"}
    wanted = Experiment(
        task="heart", partition="column:hospital", algorithm="oneshot", absence=absence, rounds=1, workers=0
    )
    [record] = holdfast.run(wanted).records
    assert record.leading is not None
    assert record.leading > 0.8


def test_survival_in_discrete_time_in_one_message() -> None:
    """Hazards leave as sums; Cox's model and mixed rows are refused with the reason."""
    from holdfast import Samples, Task
    from holdfast.data.kinds import Hazards, Survival

    generator = torch.Generator().manual_seed(0)
    x = torch.rand(600, 1, 28, 28, generator=generator) * torch.rand(600, 1, 1, 1, generator=generator)
    time = 1 + 5 * (1 - x.flatten(1).mean(1, keepdim=True) * 2)
    rows = torch.cat([time, torch.ones(600, 1)], 1)

    def task(kind: Any) -> Task:
        return Task("survival", Samples((x[:500],), rows[:500]), Samples((x[500:],), rows[500:]), kind=kind)

    sums, cuts = {"name": "feddig", "mode": "sums"}, Hazards((2.0, 3.0, 4.0, 5.0))
    usual: dict[str, Any] = {"rounds": 1, "partition": "iid", "workers": 0, "algorithm": "oneshot", "absence": sums}
    [record] = holdfast.run(Experiment(task=task(cuts), encoder="scattering:8", **usual)).records
    assert record.leading is not None
    assert record.leading > 0.6
    with pytest.raises(HoldfastError, match="records at risk"):
        make_plan(Experiment(task=task(Survival()), **usual))
    with pytest.raises(HoldfastError, match="a mean of times and events is no time"):
        make_plan(Experiment(task=task(cuts), **{**usual, "absence": "feddig"}))
