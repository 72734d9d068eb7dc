"""What a round's tests say: overall, at each site with an interval, of those who left; and when a run stops early."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from kind_tasks import classes, wanted

import holdfast
from holdfast.cli.comparing import on_those_who_left
from holdfast.core.errors import HoldfastError
from holdfast.core.types import Message, Reply
from holdfast.data.bootstrap import interval_of
from holdfast.data.class_metrics import Sensitivity, best_threshold
from holdfast.data.metrics import Accuracy, Measure, Rmse
from holdfast.data.ranking_metrics import Auroc
from holdfast.engines.checked import checked
from holdfast.engines.inline import Inline
from holdfast.record import Record
from holdfast.report.run_data import read_story
from holdfast.report.words import headline
from holdfast.runs.build import make_plan
from holdfast.runs.early_stopping import STOPPED, Patience, Stop
from holdfast.runs.evaluation import bounded, common_threshold, together
from holdfast.runs.store import Run

AUROC = Auroc().measure


# Over several clients


def test_what_adds_up_is_pooled_and_what_does_not_is_a_weighted_mean() -> None:
    sums = {
        0: {"accuracy": [8.0, 10.0], "auroc": [0.9 * 10, 10.0]},
        1: {"accuracy": [5.0, 30.0], "auroc": [0.5 * 30, 30.0]},
    }
    metrics, counts = [Accuracy(), Auroc()], {0: 10, 1: 30}
    assert together(metrics, sums, counts, {0, 1}) == pytest.approx({"accuracy": 13 / 40, "auroc": 0.6})
    assert together(metrics, sums, counts, {0}) == pytest.approx({"accuracy": 0.8, "auroc": 0.9})
    assert together(metrics, sums, counts, {7}) == {}


def test_a_client_counts_no_more_than_its_samples_do() -> None:
    assert bounded(Rmse(), [4e9, 1e9], 10) == pytest.approx([40.0, 10.0])
    assert bounded(Rmse(), [4.0, 5.0], 10) == [4.0, 5.0]
    sums = {0: {"accuracy": [0.0, 1e12]}, 1: {"accuracy": [10.0, 10.0]}}
    assert together([Accuracy()], sums, {0: 10, 1: 10}, {0, 1}) == pytest.approx({"accuracy": 0.5})


def test_the_common_threshold_is_a_median_that_a_lie_moves_little() -> None:
    def told(place: int) -> dict[str, list[float]]:
        sums = [0.0] * 200
        sums[place], sums[100 + place - 10] = 5.0, 5.0
        return {"sensitivity": sums}

    assert best_threshold(told(60)["sensitivity"]) == 0.51
    found = {0: told(30), 1: told(40), 2: told(90)}
    assert common_threshold([Sensitivity()], found) == 0.4
    nobody = {"sensitivity": [1.0] + [0.0] * 199}
    assert common_threshold([Sensitivity()], {0: nobody}) is None
    assert common_threshold([Accuracy()], {}) is None


# An interval


def test_a_bootstrap_interval_is_about_two_deviations_wide() -> None:
    generator = torch.Generator().manual_seed(0)
    output, labels = torch.eye(2)[torch.randint(2, (400,), generator=generator)], torch.zeros(400, dtype=torch.long)
    low, high = interval_of(Accuracy(), output, labels, torch.Generator().manual_seed(1)) or (0, 0)
    share = float((output.argmax(1) == 0).float().mean())
    deviation = (share * (1 - share) / 400) ** 0.5
    assert low == pytest.approx(share - 1.96 * deviation, abs=0.01)
    assert high == pytest.approx(share + 1.96 * deviation, abs=0.01)
    again = interval_of(Accuracy(), output, labels, torch.Generator().manual_seed(1))
    assert [low, high] == again
    assert interval_of(Auroc(), output, labels, torch.Generator()) is None  # one class alone
    assert interval_of(Accuracy(), output[:0], labels[:0], torch.Generator()) is None


def test_the_interval_of_many_samples_is_as_wide_as_it_should_be() -> None:
    generator = torch.Generator().manual_seed(0)
    output, labels = torch.eye(2)[(torch.rand(20_000, generator=generator) < 0.3).long()], torch.zeros(20_000).long()
    low, high = interval_of(Accuracy(), output, labels, torch.Generator().manual_seed(1)) or (0, 0)
    assert high - low == pytest.approx(2 * 1.96 * (0.3 * 0.7 / 20_000) ** 0.5, rel=0.2)
    assert low < 0.7 < high


# A run


def test_a_run_tells_sites_with_their_samples_and_those_who_left_apart(tmp_path: Path) -> None:
    keys = {"scenario": "forever:2", "metrics": ["auroc", "accuracy", "sensitivity", "specificity"], "lr": 0.2}
    keys["scenario"] = {"name": "intervals", "away": [[1, 3, 10], [2, 4, 10]]}
    history = holdfast.run(wanted("classes", rounds=4, **keys), tmp_path / "run")
    first, last = history.records[0], history.records[-1]
    plan = make_plan(history.experiment)
    assert first.absent_metrics == {}
    assert (first.interval, first.client_intervals) == (None, {})
    assert last.client_samples == {client: len(plan.parts[client][1]) for client in range(3)}
    right = sum(last.client_metrics["accuracy"][c] * last.client_samples[c] for c in (1, 2))
    assert last.absent_metrics["accuracy"] == pytest.approx(right / sum(last.client_samples[c] for c in (1, 2)))
    assert last.threshold is not None
    for low, high, value in (
        (*last.interval, last.leading),  # type: ignore[misc]
        *((*last.client_intervals[c], last.by_client[c]) for c in range(3)),
    ):
        assert 0 <= low <= value <= high <= 1
    assert last.class_measure == Accuracy().measure
    assert len(last.by_class) == 2
    assert Run.open(tmp_path / "run").records()[-1] == last
    [words] = headline([read_story(tmp_path / "run")])
    assert f"On the data of those who are away: AUROC {last.absent_metrics['auroc']:.3g}" in words


def test_sensitivity_is_at_the_threshold_of_the_clients_validation_samples() -> None:
    history = holdfast.run(wanted("classes", rounds=2, lr=0.2, metrics=["sensitivity", "specificity"]))
    record, plan = history.records[-1], make_plan(history.experiment)
    assert record.threshold is not None
    net = plan.model()
    assert history.state is not None
    with torch.no_grad():
        for name, weight in net.named_parameters():
            weight.copy_(history.state.model[name])
        chance = net(plan.task.test.inputs[0]).double().softmax(1)[:, 1]
    ill, called = plan.task.test.labels == 1, chance >= record.threshold
    assert record.metrics["sensitivity"] == pytest.approx(float(called[ill].double().mean()))
    assert record.metrics["specificity"] == pytest.approx(float((~called[~ill]).double().mean()))


def test_without_a_test_set_the_clients_own_samples_speak() -> None:
    task = dataclasses.replace(classes(), test=classes().test.take(torch.arange(0)))
    plan_keys = {"clients": 3, "partition": "iid", "rounds": 2, "lr": 0.2, "workers": 0, "model": "linear"}
    history = holdfast.run(holdfast.Experiment(task=task, **plan_keys))  # type: ignore[arg-type]
    last = history.records[-1]
    right = sum(last.client_metrics["accuracy"][c] * last.client_samples[c] for c in range(3))
    assert last.metrics["accuracy"] == pytest.approx(right / sum(last.client_samples.values()))
    assert (last.class_metrics, last.interval, last.chance) == ({}, None, None)


class Liar(Inline):
    """Its first client claims a billion samples, all of them right."""

    def ask(self, messages: Sequence[Message]) -> Any:
        answers = super().ask(messages)
        if messages[0].job != "evaluate":
            return answers
        lie = {**answers[0].scalars["metrics"], "accuracy": [10**9, 10**9]}
        return [Reply(0, {}, {**answers[0].scalars, "metrics": lie, "samples": 10**9}), *answers[1:]]


def test_a_client_that_claims_many_samples_counts_for_its_own() -> None:
    def engine(plan: Any, folder: Path | None) -> Any:
        model = plan.model()
        return Liar({id: plan.client(id, model, folder) for id in range(3)}, folder)

    away = {"name": "intervals", "away": [[0, 1, 10], [1, 1, 10]]}
    [record] = holdfast.run(wanted("classes", rounds=1, scenario=away), engine=engine).records
    assert max(record.client_samples.values()) < 1000
    assert record.absent_metrics["accuracy"] < 0.99


@pytest.mark.parametrize(
    "told",
    [
        {"samples": 0},
        {"samples": 2**60},
        {"samples": 1.5},
        {"samples": None},
        {"interval": [1.0]},
        {"interval": [0.2, float("nan")]},
        {"interval": [0.3, 0.2]},
        {"interval": "ab"},
        {"interval": [True, 2.0]},
    ],
    ids=str,
)
def test_an_evaluation_that_cannot_be_is_refused(told: dict[str, Any]) -> None:
    question = Message(0, 0, "evaluate")
    good = {"metrics": {}, "samples": 3, "interval": [0.1, 0.2]}
    assert isinstance(checked(Reply(0, {}, good), question), Reply)
    assert not isinstance(checked(Reply(0, {}, {**good, **told}), question), Reply)


# Early stopping


def record(round: int, values: dict[int, float], away: Sequence[int] = ()) -> Record:
    return Record(
        round, dict.fromkeys(away, "away (x)"), {}, [], {}, {}, {}, 0.0, 0, 0, {}, measure=AUROC,
        client_metrics={"auroc": values}, client_samples={0: 10, 1: 30},
    )  # fmt: skip


def test_it_stops_after_so_many_tests_without_a_better_value() -> None:
    stop = Stop(AUROC, Patience(2, 0.01))
    values = [0.5, 0.7, 0.705, 0.6]  # .705 is not better by more than .01
    records = [record(t, {0: v, 1: v}) for t, v in enumerate(values)]
    assert [stop.reason(records[: n + 1]) is not None for n in range(4)] == [False, False, False, True]
    assert str(stop.reason(records)).startswith(STOPPED)
    smaller = Stop(Measure("auroc", smaller_is_better=True), Patience(2))
    assert smaller.reason(records) is not None  # .5 was the least


def test_it_goes_by_those_who_are_there_weighted_by_samples() -> None:
    stop = Stop(AUROC, Patience(1))
    assert stop.reason([record(0, {0: 1.0, 1: 0.0}), record(1, {0: 0.0, 1: 0.5})]) is None  # .25, then .375
    assert stop.reason([record(0, {0: 0.5, 1: 0.0}), record(1, {0: 0.4, 1: 1.0}, away=[1])]) is None  # .125, then .4
    assert stop.reason([record(0, {0: 0.5, 1: 0.5}), record(1, {0: 0.4, 1: 1.0}, away=[1])]) is not None
    assert stop.reason([record(0, {0: 0.5}), *(record(t, {0: 0.1}, away=[0, 1]) for t in (1, 2, 3))]) is None


def test_a_run_stops_early_and_a_resumed_one_at_the_same_round(tmp_path: Path) -> None:
    experiment = wanted("classes", rounds=40, lr=1.0, stop="auroc:2", checkpoint_every=3, evaluate_every=1)
    whole = holdfast.run(experiment, tmp_path / "whole")
    rounds = len(whole.records)
    assert 3 <= rounds < 40
    assert whole.records[-1].notes[-1].startswith(STOPPED)
    assert whole.records[-1].client_intervals
    assert (tmp_path / "whole" / f"checkpoints/{rounds:06d}.safetensors").exists()
    assert len(holdfast.resume(tmp_path / "whole").records) == rounds  # over: only read
    model = (tmp_path / "whole" / "model.safetensors").read_bytes()
    for name in (f"checkpoints/{rounds:06d}.safetensors", "model.safetensors"):  # as if it had been killed before
        (tmp_path / "whole" / name).unlink()
    again = holdfast.resume(tmp_path / "whole")
    assert [r.metrics for r in again.records] == [r.metrics for r in whole.records]
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == model
    assert json.loads((tmp_path / "whole" / "experiment.json").read_text())["stop"] == "auroc:2"


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        ("brier:3", "stop: 'brier' is not among the run's metrics"),
        ("auroc:0", "patience must be at least 1"),
        ("auroc:waiting=3", "stop: 'auroc' has no option 'waiting'"),
        ("none:3", "stop: 'none' has no options"),
    ],
)
def test_a_stop_that_cannot_be_is_one_sentence(stop: str, words: str) -> None:
    with pytest.raises(HoldfastError, match=words):
        make_plan(wanted("classes", stop=stop))


def test_a_comparison_tells_each_method_on_the_data_of_those_who_left() -> None:
    away = {"name": "intervals", "away": [[1, 1, 9]]}
    left = [holdfast.run(wanted("regression", rounds=1, seed=seed, scenario=away)) for seed in (0, 1)]
    there = holdfast.run(wanted("regression", rounds=1))
    values = [history.records[-1].absent_metrics["rmse"] for history in left]
    [line] = on_those_who_left([*left, there])
    assert line.startswith("On the data of those who are away, intervals")
    assert line.endswith(f": fedavg {sum(values) / 2:.3g}")
