"""Each kind of target from the task to the trained model; chosen losses and metrics; what does not fit is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kind_tasks import samples, wanted
from torch import Tensor

import holdfast
from holdfast.cli import main
from holdfast.core.errors import HoldfastError
from holdfast.data.contract import Kind
from holdfast.data.kinds import Classes, Counts, Hazards, Labels, Regression, Survival, kind_of
from holdfast.data.losses import Focal, Huber, LabelFocal, Weighted
from holdfast.data.survival import Cox
from holdfast.runs.build import make_plan
from holdfast.runs.export import load_model

LEARNT = {
    "classes": ("auroc", 0.97),
    "labels": ("auroc", 0.97),
    "counts": ("deviance", 1.9),
    "survival": ("c-index", 0.8),
    "hazards": ("c-index", 0.8),
}


@pytest.mark.parametrize("task", LEARNT)
def test_each_kind_is_learnt_and_loaded_again(task: str, tmp_path: Path) -> None:
    lr = 0.02 if task == "counts" else 0.2
    history = holdfast.run(wanted(task, lr=lr, rounds=8), tmp_path / "run")
    name, reach = LEARNT[task]
    assert history.measure.name == name
    value = history.leading[-1]
    assert value < reach if history.measure.smaller_is_better else value > reach
    assert history.failures == []
    assert sorted(history.records[-1].by_client) == [0, 1, 2]
    model = load_model(tmp_path / "run")
    plan = make_plan(history.experiment)
    assert (model.kind, [metric.name for metric in model.metrics]) == (
        plan.task.kind if task == "hazards" else model.kind,
        [metric.name for metric in plan.task.metrics],
    )
    test = plan.task.test
    outputs = model.outputs(test.inputs[0].numpy())
    assert model.measure(outputs, test.labels.numpy()) == pytest.approx(dict(history.records[-1].metrics), rel=1e-6)
    answers = model.predict(test.inputs[0].numpy())
    assert answers.shape == (200, len(model.kind.columns(model.class_names)))
    assert (answers >= 0).all()
    if task == "hazards":
        assert (np.diff(answers, axis=1) <= 0).all()


def test_two_clients_full_batches_of_cox_are_the_stratified_model() -> None:
    """FedAvg's step weighted by samples is a step down the sum of the clients' partial likelihoods."""
    experiment = wanted("survival", clients=2, rounds=1, batch_size=1000, momentum=0.0, lr=0.1)
    plan = make_plan(experiment)
    start = plan.model()
    total, count = torch.zeros(()), 0
    for train, _, _ in plan.parts:
        part = plan.task.train.take(train)
        total = total + Cox()(start(part.inputs[0]), part.labels) * len(part)
        count += len(part)
    (total / count).backward()
    after = holdfast.run(experiment).state
    assert after is not None
    for name, weight in start.named_parameters():
        assert weight.grad is not None
        assert torch.allclose(after.model[name], weight.detach() - 0.1 * weight.grad, atol=1e-6)


CHOSEN = [
    ("classes", "weighted:1/3", Weighted((1.0, 3.0))),
    ("classes", {"name": "weighted", "weights": [1, 3]}, Weighted((1.0, 3.0))),
    ("classes", "focal", Focal(2.0)),
    ("classes", {"name": "focal:1", "weights": [1, 2]}, Focal(1.0, (1.0, 2.0))),
    ("labels", "focal:1.5", LabelFocal(1.5)),
    ("regression", "huber:0.5", Huber(0.5)),
    ("survival", "cox:breslow", Cox("breslow")),
]


@pytest.mark.parametrize(("task", "loss", "made"), CHOSEN, ids=str)
def test_a_loss_is_chosen_and_learnt_with(task: str, loss: Any, made: object) -> None:
    experiment = wanted(task, loss=loss, rounds=2)
    assert make_plan(experiment).task.loss == made
    first, last = holdfast.run(experiment).records
    assert last.loss is not None
    assert first.loss is not None
    assert last.loss < first.loss
    assert experiment.fingerprint != wanted(task, rounds=2).fingerprint


def test_losses_are_plain_means_of_hard_and_soft_labels() -> None:
    """So that no record's gradient depends on the others (DP-SGD), and digests can be learnt from."""
    output, hard = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 2, 1, 0])
    soft = torch.nn.functional.one_hot(hard, 3).float()
    for loss in (Weighted((1.0, 2.0, 0.5)), Focal(2.0, (1.0, 2.0, 0.5)), Focal(0.0)):
        alone = torch.stack([loss(output[i : i + 1], hard[i : i + 1]) for i in range(6)]).mean()
        assert loss(output, hard) == pytest.approx(float(alone))
        assert loss(output, soft) == pytest.approx(float(alone))
    plain = torch.nn.functional.cross_entropy(output, hard)
    assert Focal(0.0)(output, hard) == pytest.approx(float(plain))
    yes = (output > 0.3).float()
    assert LabelFocal(0.0)(output, yes) == pytest.approx(
        float(torch.nn.functional.binary_cross_entropy_with_logits(output, yes))
    )


def test_metrics_are_chosen_and_the_first_one_leads() -> None:
    names = ["brier", "sensitivity", "specificity", "auprc", "f1", "ece", "accuracy"]
    history = holdfast.run(wanted("classes", metrics=names, rounds=2))
    assert history.measure.name == "brier"
    assert list(history.records[-1].metrics) == names
    assert history.measure.smaller_is_better
    from_text = wanted("classes", metrics="auprc/accuracy")
    assert [metric.name for metric in make_plan(from_text).task.metrics] == ["auprc", "accuracy"]


@pytest.mark.parametrize(
    ("task", "keys", "words"),
    [
        ("survival", {"protect": "dp-sgd"}, "the objective has no loss of each record alone"),
        ("classes", {"loss": "huber"}, "loss: 'huber' is not for tasks of kind 'classes'; it has weighted, focal"),
        ("counts", {"loss": "cox"}, "loss: 'cox' is not for tasks of kind 'count'; leave out loss"),
        ("classes", {"loss": "focall"}, "loss: 'focall' is not known; did you mean 'focal'"),
        ("classes", {"loss": "weighted:1/2/3"}, "needs a weight for each of 2 classes, got 3"),
        ("classes", {"loss": "weighted:1/-2"}, "weights must be numbers of at least 0"),
        ("classes", {"loss": "weighted"}, "loss: 'weighted' needs the option 'weights'"),
        ("classes", {"loss": "focal:-1"}, "gamma must be at least 0"),
        ("classes", {"loss": "auto:2"}, "loss: 'auto' has no options"),
        ("survival", {"loss": "cox:exact"}, "'exact' is not known"),
        ("classes", {"metrics": ["aurocc"]}, "metrics: 'aurocc' is no metric of a task with 2 classes; did you mean"),
        ("regression", {"metrics": ["auroc"]}, "metrics: 'auroc' is no metric of a task with regression"),
        ("classes", {"metrics": []}, "metrics: name at least one"),
        ("classes", {"metrics": ["auroc", "auroc"]}, "none twice"),
        ("labels", {"absence": "feddig"}, "'paper' is made for classes"),
        ("labels", {"trust": "jury"}, "trust 'jury' needs classes"),
        ("survival", {"partition": "dirichlet:0.1"}, "partition 'dirichlet:0.1' needs classes"),
        ("hazards", {"model": "kind_tasks:wide"}, r"it gives \(4, 7\) .* needs 4 numbers"),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(task: str, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(HoldfastError, match=words) as refused:
        make_plan(wanted(task, **keys))
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_hazards_are_protected_by_dp_sgd() -> None:
    plan = make_plan(wanted("hazards", protect="dp-sgd", rounds=1))
    assert plan.guard is not None


@pytest.mark.parametrize(
    ("kind", "rows", "words"),
    [
        (Labels(), torch.zeros(3, 2), "expected 3 numbers for each sample"),
        (Labels(), torch.full((3, 3), 0.5), "a label is 0 or 1"),
        (Counts(), torch.tensor([1.0, -1.0]), "whole numbers of at least 0"),
        (Counts(), torch.tensor([1.5]), "whole numbers of at least 0"),
        (Survival(), torch.zeros(3), "expected rows of time and event"),
        (Survival(), torch.tensor([[-1.0, 1.0]]), "times must be numbers of at least 0"),
        (Survival(), torch.tensor([[float("nan"), 1.0]]), "times must be numbers of at least 0"),
        (Survival(), torch.tensor([[1.0, 2.0]]), "an event is 0"),
        (Survival(), torch.tensor([[1.0, 0.0]]), "there is no event among its 1 samples"),
    ],
)
def test_targets_that_are_none_are_refused(kind: Kind, rows: Tensor, words: str) -> None:
    with pytest.raises(HoldfastError, match=words):
        kind.read(rows, 3, "here")


@pytest.mark.parametrize("text", ["hazards", "hazards:", "hazards:2,1", "hazards:a", "hazards:0,1", "cox", "count:1"])
def test_a_kind_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(HoldfastError):
        kind_of(text)


@pytest.mark.parametrize("kind", [Classes(), Labels(), Regression(), Counts(), Survival(), Hazards((0.5, 1e6))])
def test_a_kind_is_read_from_its_text(kind: Kind) -> None:
    assert type(kind_of(kind.spec)) is type(kind)
    assert kind_of(kind.spec).spec == kind.spec


def test_survival_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def command(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["holdfast", *words])
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        assert not end.value.code, said.out + said.err
        return said.out + said.err

    out = str(tmp_path / "run")
    holdfast.run(wanted("hazards", rounds=2), out)
    few = samples(Survival(), 5, 7)
    np.savez(tmp_path / "new.npz", x=few.inputs[0].numpy(), y=few.labels.numpy())
    said = command("predict", out, str(tmp_path / "new.npz"), "--out", str(tmp_path / "p.npz"))
    assert "beyond 0.25" in said
    assert "5 samples; C-index" in said
    with np.load(tmp_path / "p.npz") as saved:
        assert saved["survival"].shape == (5, 4)
        assert saved["columns"].tolist()[0] == "beyond 0.25"
    told = json.loads(command("predict", out, str(tmp_path / "new.npz"), "--json"))
    assert set(told["predictions"][0]) == {"beyond 0.25", "beyond 0.5", "beyond 1", "beyond 2"}
    assert "accuracy" not in told
