"""Kinds of tasks and their metrics: a regression from the task to the report, and what needs classes refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from regression_tasks import (
    wanted,
)

import holdfast
from holdfast.client.evaluate import find_odd_sums
from holdfast.core.errors import HoldfastError
from holdfast.core.types import Message, Reply
from holdfast.data.kinds import Classes, Regression
from holdfast.data.metrics import R2, Accuracy, Mae, Measure, Metric, Rmse, value_of
from holdfast.data.named import load_task
from holdfast.data.partitions import Sizes
from holdfast.runs.build import make_plan
from holdfast.runs.store import Run

RMSE = Measure("rmse", smaller_is_better=True)


# Metrics by hand


OUTPUT, LABELS = torch.tensor([[1.0], [2.0], [6.0]]), torch.tensor([[1.0], [4.0], [1.0]])


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (Rmse(), math.sqrt((0 + 4 + 25) / 3)),
        (Mae(), (0 + 2 + 5) / 3),
        (R2(), 1 - 29 / (1 + 4 + 1)),  # the mean of 1, 4, 1 is 2
    ],
)
def test_a_regressions_metrics_by_hand(metric: Metric, value: float) -> None:
    whole = metric.sums(OUTPUT, LABELS)
    assert metric.value(whole) == pytest.approx(value, rel=1e-12)
    parts = [metric.sums(OUTPUT[at], LABELS[at]) for at in ([0], [1, 2])]  # two clients
    assert [sum(pair) for pair in zip(*parts, strict=True)] == pytest.approx(whole)
    assert len(whole) == metric.width
    assert metric.possible(whole)


def test_accuracy_by_hand() -> None:
    scores, labels = torch.eye(3)[[0, 1, 1, 2]], torch.tensor([0, 1, 2, 2])
    assert Accuracy().sums(scores, labels) == [3.0, 4.0]
    assert Accuracy().value([3.0, 4.0]) == 0.75
    parts = [Accuracy().sums(scores[at], labels[at]) for at in ([0, 2], [1, 3])]
    assert [sum(pair) for pair in zip(*parts, strict=True)] == [3.0, 4.0]


def test_a_metric_that_comes_to_nothing_has_no_value() -> None:
    alike = torch.full((3, 1), 7.1)
    assert value_of(R2(), R2().sums(OUTPUT, alike)) is None
    nothing = torch.zeros(0, 1)
    assert [value_of(metric, metric.sums(nothing, nothing)) for metric in (Rmse(), Mae(), R2())] == [None] * 3


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"rmse": [1.0, 2.0], "mse": [1.0, 2.0]},
        {"rmse": [1.0], "mae": [1.0, 2.0], "r2": [1.0] * 4},
        {"rmse": [-1.0, 2.0], "mae": [1.0, 2.0], "r2": [1.0] * 4},
        {"rmse": [1.0, 0.0], "mae": [1.0, 2.0], "r2": [1.0] * 4},
        {"rmse": [1.0, math.inf], "mae": [1.0, 2.0], "r2": [1.0] * 4},
        {"rmse": [1.0, True], "mae": [1.0, 2.0], "r2": [1.0] * 4},
        {"rmse": "ab", "mae": [1.0, 2.0], "r2": [1.0] * 4},
    ],
)
def test_sums_that_a_client_cannot_have_are_refused(told: dict[str, object]) -> None:
    metrics = Regression().metrics(0)
    assert find_odd_sums({"rmse": [1.0, 2.0], "mae": [1.0, 2.0], "r2": [1.0] * 4}, metrics) is None
    assert find_odd_sums(told, metrics)
    assert (
        find_odd_sums({"accuracy": [3.0, 2.0]}, Classes().metrics(3)) == "its accuracy has impossible sums, [3.0, 2.0]"
    )


# A regression, played


@pytest.mark.parametrize(
    "method",
    [
        {"algorithm": "fedavg"},
        {"algorithm": "fedprox:0.1"},
        {"algorithm": "scaffold"},
        {"trust": "median", "attack": "signflip", "attackers": 1},
        {"trust": "krum", "partition": "sizes", "clients": 5},
        {"trust": "fltrust"},
        {"scenario": "sequential", "server_optimizer": "momentum", "model": "linear"},
        {"samples": 100},
    ],
    ids=lambda method: "-".join(map(str, method.values())),
)
def test_a_regression_is_learnt(method: dict[str, Any]) -> None:
    history = holdfast.run(wanted(**method))
    first, last = history.records[0], history.records[-1]
    assert list(last.metrics) == ["rmse", "mae", "r2"]
    assert first.leading is not None
    assert last.leading is not None
    assert last.leading < first.leading
    assert history.measure == RMSE
    assert history.final == pytest.approx(sum(history.leading[-3:]) / 3)
    assert history.failures == []
    assert (history.accuracy, last.class_metrics) == ([], {})
    assert last.chance is not None
    assert 1 - (last.leading / last.chance) ** 2 == pytest.approx(last.metrics["r2"], abs=1e-4)
    with pytest.raises(HoldfastError, match="This run has no accuracy"):
        _ = history.final_accuracy


def test_the_test_set_is_measured_as_a_whole_and_clients_by_their_own_samples() -> None:
    experiment = wanted(rounds=1)
    history = holdfast.run(experiment)
    plan = make_plan(experiment)
    assert history.state is not None
    weights = history.state.model
    net = plan.model()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            weight.copy_(weights[name])
        off = net(plan.task.test.inputs[0])[:, 0] - plan.task.test.labels[:, 0]
        own = plan.task.train.take(plan.parts[2][1])
        there = net(own.inputs[0])[:, 0] - own.labels[:, 0]
    [record] = history.records
    assert record.metrics["mae"] == pytest.approx(float(off.abs().mean()), rel=1e-5)
    assert record.metrics["rmse"] == pytest.approx(float(off.square().mean().sqrt()), rel=1e-5)
    assert record.by_client[2] == pytest.approx(float(there.square().mean().sqrt()), rel=1e-5)
    assert sorted(record.client_metrics["mae"]) == [0, 1, 2, 3]


def test_a_folder_keeps_the_metrics_and_resumes(tmp_path: Path) -> None:
    whole = holdfast.run(wanted(rounds=3), tmp_path / "whole")
    records = Run.open(tmp_path / "whole").records()
    assert [record.metrics for record in records] == [record.metrics for record in whole.records]
    assert records[-1].client_metrics == whole.records[-1].client_metrics
    assert records[-1].measure == RMSE
    for name in ("checkpoints/000003.safetensors", "model.safetensors"):
        (tmp_path / "whole" / name).unlink()
    again = holdfast.resume(tmp_path / "whole")
    assert again.leading == whole.leading
    assert "accuracy" not in (tmp_path / "whole" / "rounds.jsonl").read_text()


def test_workers_and_one_process_measure_alike() -> None:
    one, several = holdfast.run(wanted(rounds=2)), holdfast.run(wanted(rounds=2, workers=2))
    assert one.leading == several.leading
    assert one.records[-1].client_metrics == several.records[-1].client_metrics


def test_a_users_own_metric_leads() -> None:
    history = holdfast.run(wanted("by_share", rounds=3))
    assert list(history.records[-1].metrics) == ["within one", "mae"]
    assert history.measure == Measure("within one", "%")
    assert history.final_text.endswith("%")


def test_a_model_whose_outputs_are_no_numbers_has_failed() -> None:
    history = holdfast.run(wanted("HIGH", rounds=1))
    assert history.final == pytest.approx(1e30)
    record = history.records[0]
    object.__setattr__(record, "metrics", {})
    assert "the rmse of the final model is not a finite number" in history.failures[0]
    assert history.final_text == "unknown"


# Refused before round 1


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"absence": "feddig"}, "'paper' is made for classes"),
        ({"trust": "jury"}, "trust 'jury' needs classes"),
        ({"trust": "fedtest"}, "trust 'fedtest' needs classes"),
        ({"trust": "servertest"}, "trust 'servertest' needs classes"),
        ({"attack": "labelflip", "attackers": 1}, "attack 'labelflip' needs classes"),
        ({"attack": "backdoor", "attackers": 1}, "attack 'backdoor' needs classes"),
        (
            {"partition": "dirichlet:0.1"},
            "partition 'dirichlet:0.1' needs classes.*choose partition = 'iid' or 'sizes'",
        ),
        ({"partition": "shards"}, "partition 'shards' needs classes"),
        ({"partition": "classes"}, "partition 'classes' needs classes"),
        ({"samples": 1000}, "samples: line has 240 training samples, not 1000"),
        ({"task": "flat"}, r"model: it gives \(4,\) for 4 samples of a regression"),
        ({"task": "WIDE"}, "metric: rmse does not work here .*width is 3, and it has 2 sums"),
        ({"task": "NO_NAME"}, "each metric needs a name"),
        ({"task": "TWICE"}, "two of its metrics have one name"),
        ({"task": "NAMED"}, "a task of kind 'regression' has no classes, so leave out class_names"),
        ({"task": "NAMELESS"}, "a task of kind 'classes' needs class_names"),
        ({"task": "SEVERAL"}, r"train: expected one number for each sample, got shape \(4, 2\)"),
        ({"task": "INFINITE"}, "test: some targets are NaN or infinite"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_one_sentence_before_round_1(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(HoldfastError, match=words) as refused:
        make_plan(wanted(**keys))
    assert "\n" not in str(refused.value)


def test_targets_are_read_as_a_column() -> None:
    task = load_task("regression_tasks:line")
    assert task.train.labels.shape == (240, 1)
    assert task.train.labels.dtype == torch.float32
    whole = Regression().read(torch.tensor([1, 2]), 0, "here")
    assert whole.tolist() == [[1.0], [2.0]]


def test_sizes_differ_and_nobody_is_left_out() -> None:
    parts = Sizes(0.5, 10)(torch.zeros(300, 1), 6, torch.Generator().manual_seed(0))
    sizes = [len(part) for part in parts]
    assert min(sizes) >= 10
    assert max(sizes) > 2 * min(sizes)
    assert torch.cat(parts).sort().values.tolist() == list(range(300))


def test_a_client_that_sends_impossible_sums_is_left_out() -> None:
    from holdfast.engines.inline import Inline

    class Liar(Inline):
        def ask(self, messages: Sequence[Message]) -> Any:
            answers = super().ask(messages)
            if messages[0].job != "evaluate":
                return answers
            first = answers[0]
            assert isinstance(first, Reply)
            lie = {**first.scalars["metrics"], "rmse": [-1.0, 5.0]}
            return [Reply(0, {}, {"metrics": lie, "samples": 5}), *answers[1:]]

    def engine(plan: Any, folder: Path | None) -> Any:
        model = plan.model()
        return Liar({id: plan.client(id, model, folder) for id in range(4)}, folder)

    [record] = holdfast.run(wanted(rounds=1), engine=engine).records
    assert sorted(record.by_client) == [1, 2, 3]
