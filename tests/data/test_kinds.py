"""Kinds of tasks and their metrics: a regression from the task to the report, and what needs classes refused."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast
from holdfast.cli import main
from holdfast.client.evaluate import find_odd_sums
from holdfast.core.errors import HoldfastError
from holdfast.core.types import Message, Reply
from holdfast.data.kinds import Classes, Regression
from holdfast.data.metrics import R2, Accuracy, Mae, Measure, Metric, Rmse, value_of
from holdfast.data.named import load_task
from holdfast.data.partitions import Sizes
from holdfast.data.task import Samples, Task
from holdfast.report.payload import payload
from holdfast.report.run_data import read_story
from holdfast.report.words import headline
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment, from_table
from holdfast.runs.export import load_model
from holdfast.runs.store import Run

RMSE = Measure("rmse", smaller_is_better=True)


def numbers(count: int, seed: int) -> Samples:
    """y = 2 x_0 - x_1 + 3 and a little noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator)
    return Samples((x,), 2 * x[:, 0] - x[:, 1] + 3 + 0.1 * torch.randn(count, generator=generator))


def line() -> Task:
    return Task("line", numbers(240, 1), numbers(80, 2), kind=Regression())


class Within(Metric):
    """The share of outputs that lie within 1 of the number."""

    name = "within one"
    unit = "%"

    def sums(self, output: Tensor, labels: Tensor) -> list[float]:
        return [float(((output - labels).abs() <= 1).sum()), float(len(labels))]

    def value(self, sums: Sequence[float]) -> float:
        return sums[0] / sums[1]


def by_share() -> Task:
    return Task("line", numbers(240, 1), numbers(80, 2), kind=Regression(), metrics=(Within(), Mae()))


def flat_network() -> nn.Module:
    """Gives (N,) in place of (N, 1)."""
    return nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))


def flat() -> Task:
    return Task("line", numbers(40, 1), numbers(8, 2), kind=Regression(), model=flat_network)


class Wide(Rmse):
    width = 3


WIDE = Task("wide", numbers(40, 1), numbers(8, 2), kind=Regression(), metrics=(Wide(),))


class Nameless(Metric):
    pass


NO_NAME = Task("no name", numbers(40, 1), numbers(8, 2), kind=Regression(), metrics=(Nameless(),))
TWICE = Task("twice", numbers(40, 1), numbers(8, 2), kind=Regression(), metrics=(Rmse(), Rmse()))
NAMED = Task("named", numbers(40, 1), numbers(8, 2), ("a", "b"), kind=Regression())
NAMELESS = Task("nameless", numbers(40, 1), numbers(8, 2))
SEVERAL = Task("several", Samples((torch.zeros(4, 3),), torch.zeros(4, 2)), numbers(8, 2), kind=Regression())
INFINITE = Task("infinite", numbers(8, 1), Samples((torch.zeros(1, 3),), torch.tensor([math.inf])), kind=Regression())
HIGH = Task(
    "high", numbers(40, 1), Samples((torch.zeros(2, 3),), torch.tensor([1e30, -1e30])), kind=Regression(),
)  # fmt: skip


def wanted(task: str = "line", **keys: Any) -> Experiment:
    usual = {"clients": 4, "partition": "iid", "rounds": 4, "lr": 0.02, "workers": 0, "batch_size": 16}
    return from_table({"task": f"{__name__}:{task}", **usual, **keys})


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
    assert (history.accuracy, last.class_metrics, last.chance) == ([], {}, None)
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


def test_digests_of_a_regression_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = command(
        monkeypatch, capsys, "digest", "make", "--out", str(tmp_path / "d"), "--task", f"{__name__}:line", code=1
    )
    assert "Error: " in said


def test_targets_are_read_as_a_column() -> None:
    task = load_task(f"{__name__}:line")
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


# The command line, the report, the trained model


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
    assert "240 + 80 samples, regression, 3" in command(monkeypatch, capsys, "check", file)
    assert "samples" in command(monkeypatch, capsys, "partition", file)
    ran = command(monkeypatch, capsys, "run", file, "--out", out)
    final = holdfast.resume(out).final
    assert f"fedavg under none: RMSE {final:.4g} (mean of the last 3 tests) after 4 rounds" in ran
    assert re.search(r"round 4, RMSE \d", ran)
    told = command(monkeypatch, capsys, "report", out)
    assert f"FedAvg reached RMSE {final:.4g} with everybody present" in told
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
    assert words.startswith(f"FedAvg reached RMSE {rows['fedavg']:.4g} with everybody present; FedProx:100 RMSE")
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
    assert headline([read_story(good)])[0].startswith("FedAvg rose to RMSE 1.333")
    accuracy = make_run(tmp_path / "other", [record(1, measure=Accuracy().measure, metrics={"accuracy": 0.5})])
    with pytest.raises(HoldfastError, match=r"measured by RMSE and accuracy in %, which do not compare"):
        headline([read_story(bad), read_story(accuracy)])


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
