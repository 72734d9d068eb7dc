"""Metrics against numbers by hand and scikit-learn, torchmetrics and scikit-survival; what adds up, adds up."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.data.class_metrics import (
    F1,
    BalancedAccuracy,
    Brier,
    CalibrationError,
    Sensitivity,
    Specificity,
    best_threshold,
)
from holdfast.data.contract import Kind
from holdfast.data.kinds import Classes, Counts, Hazards, Labels, Regression, Survival
from holdfast.data.metrics import CountMae, Deviance, Metric, value_of
from holdfast.data.ranking_metrics import Auprc, Auroc
from holdfast.data.survival import CIndex


def drawn(kind: Kind, count: int, classes: int, seed: int, ties: bool = False) -> tuple[Tensor, Tensor]:
    """Outputs and labels of a kind by chance; with `ties` many of them are equal."""
    g = torch.Generator().manual_seed(seed)
    output = torch.randn(count, kind.outputs(classes), generator=g)
    output = output.round() if ties else output
    if isinstance(kind, Classes):
        return output, torch.randint(classes, (count,), generator=g)
    if isinstance(kind, Labels):
        return output, torch.randint(2, (count, classes), generator=g).float()
    if isinstance(kind, Survival):
        time, event = 1 + 3 * torch.rand(count, generator=g), torch.rand(count, generator=g) < 0.6
        return output, torch.stack([time.round() if ties else time, event.float()], 1)
    numbers = torch.randn(count, 1, generator=g)
    return output, (numbers.abs() * 2).round() if isinstance(kind, Counts) else numbers


KINDS = [
    (Classes(), 2), (Classes(), 4), (Labels(), 3), (Regression(), 0), (Counts(), 0), (Survival(), 0),
    (Hazards((2.0, 3.0)), 0),
]  # fmt: skip
EVERY = [(kind, classes, metric) for kind, classes in KINDS for metric in kind.all_metrics(classes)]


def name_of(value: object) -> str | None:
    return value.name if isinstance(value, Kind | Metric) else None


@pytest.mark.parametrize(("kind", "classes", "metric"), EVERY, ids=name_of)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(2, 40), cut=st.integers(0, 40), ties=st.booleans())
def test_sums_add_up_and_order_does_not_matter(
    kind: Kind, classes: int, metric: Metric, seed: int, count: int, cut: int, ties: bool
) -> None:
    output, labels = drawn(kind, count, classes, seed, ties)
    whole = metric.sums(output, labels)
    assert len(whole) == metric.width
    assert all(math.isfinite(one) for one in whole)
    assert metric.possible(whole)
    assert metric.count(whole) in (0, pytest.approx(count))  # none, of a metric that comes to nothing here
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    assert metric.sums(output[order], labels[order]) == pytest.approx(whole, rel=1e-9, abs=1e-9)
    if metric.adds_up:
        cut = min(cut, count)
        parts = [metric.sums(output[at], labels[at]) for at in (slice(0, cut), slice(cut, count))]
        assert [a + b for a, b in zip(*parts, strict=True)] == pytest.approx(whole, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("kind", "classes", "metric"), EVERY, ids=name_of)
def test_no_sample_has_no_value_and_a_lie_is_not_possible(kind: Kind, classes: int, metric: Metric) -> None:
    output, labels = drawn(kind, 0, classes, 0)
    nothing = metric.sums(output, labels)
    assert value_of(metric, nothing) is None
    assert not metric.possible([-1.0] * metric.width)
    if metric.measure.unit == "%" or metric.name in ("auroc", "auprc", "f1", "brier", "ece", "c-index"):
        more = [1.0] * metric.width
        more[0] = 5.0
        if metric.name not in ("sensitivity", "specificity", "ece"):  # there the first sum is a count
            assert not metric.possible(more)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_two_classes_against_scikit_learn(seed: int, ties: bool) -> None:
    output, labels = drawn(Classes(), 200, 2, seed, ties)
    chance = output.double().softmax(1)[:, 1].numpy()
    y, called = labels.numpy(), output.argmax(1).numpy()
    score = (output[:, 1].double() - output[:, 0].double()).numpy()
    expected = {
        "accuracy": sk.accuracy_score(y, called),
        "balanced-accuracy": sk.balanced_accuracy_score(y, called),
        "auroc": sk.roc_auc_score(y, score),
        "auprc": sk.average_precision_score(y, score),
        "f1": sk.f1_score(y, called),
        "brier": sk.brier_score_loss(y, chance),
    }
    for metric in Classes().all_metrics(2):
        if metric.name in expected:
            assert metric.value(metric.sums(output, labels)) == pytest.approx(expected[metric.name], rel=1e-9)


@pytest.mark.parametrize("ties", [False, True])
def test_more_classes_against_scikit_learn(ties: bool) -> None:
    output, labels = drawn(Classes(), 300, 4, 5, ties)
    chance = output.double().softmax(1).numpy()
    y, called = labels.numpy(), output.argmax(1).numpy()
    expected = {
        "balanced-accuracy": sk.balanced_accuracy_score(y, called),
        "auroc": sk.roc_auc_score(y, chance, multi_class="ovr", average="macro"),
        "auprc": sk.average_precision_score(np.eye(4)[y], chance, average="macro"),
        "f1": sk.f1_score(y, called, average="macro"),
        "brier": float(((chance - np.eye(4)[y]) ** 2).sum(1).mean()),
    }
    for metric in Classes().all_metrics(4):
        if metric.name in expected:
            assert metric.value(metric.sums(output, labels)) == pytest.approx(expected[metric.name], rel=1e-9)


def test_labels_against_scikit_learn() -> None:
    output, labels = drawn(Labels(), 150, 3, 7)
    y, chance, called = labels.numpy(), output.double().sigmoid().numpy(), (output > 0).numpy()
    expected = {
        "auroc": sk.roc_auc_score(y, chance, average="macro"),
        "auprc": sk.average_precision_score(y, chance, average="macro"),
        "f1": sk.f1_score(y, called, average="macro"),
        "label-accuracy": 1 - sk.hamming_loss(y, called),
        "brier": float(((chance - y) ** 2).mean()),
    }
    found = {metric.name: metric.value(metric.sums(output, labels)) for metric in Labels().all_metrics(3)}
    assert found == pytest.approx(expected, rel=1e-9)


def test_calibration_error_against_torchmetrics() -> None:
    from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

    metric = CalibrationError()
    output, labels = drawn(Classes(), 400, 2, 3)
    theirs = binary_calibration_error(output.softmax(1)[:, 1], labels, n_bins=15, norm="l1")
    assert metric.value(metric.sums(output, labels)) == pytest.approx(float(theirs), abs=1e-6)
    output, labels = drawn(Classes(), 400, 4, 3)
    theirs = multiclass_calibration_error(output.softmax(1), labels, 4, n_bins=15, norm="l1")
    assert metric.value(metric.sums(output, labels)) == pytest.approx(float(theirs), abs=1e-6)


def test_sensitivity_and_specificity_at_a_threshold_by_hand() -> None:
    chance = torch.tensor([0.105, 0.305, 0.605, 0.805, 0.905])
    output = torch.stack([torch.zeros(5), torch.logit(chance)], 1)
    labels = torch.tensor([0, 1, 0, 1, 1])
    for metric, at_half, at_low in ((Sensitivity(), 2 / 3, 1.0), (Specificity(), 0.5, 0.5)):
        sums = metric.sums(output, labels)
        assert metric.value(sums) == pytest.approx(at_half)
        assert metric.at(0.3).value(sums) == pytest.approx(at_low)
    sums = Sensitivity().sums(output, labels)
    # At .11 to .30 all positives and one of two negatives are right, at .61 to .80 two of three and both: 1.5, 1.667.
    assert best_threshold(sums) == 0.61
    assert best_threshold([*sums[:100], *[0.0] * 100]) is None


def test_the_best_threshold_is_youdens_on_the_roc_curve() -> None:
    output, labels = drawn(Classes(), 500, 2, 9)
    output[:, 1] += labels.float()
    sums = Sensitivity().sums(output, labels)
    threshold = best_threshold(sums)
    assert threshold is not None
    ours = sum(metric.at(threshold).value(sums) for metric in (Sensitivity(), Specificity())) - 1
    steps = (output.double().softmax(1)[:, 1] * 100).floor().numpy()
    false, true, _ = sk.roc_curve(labels.numpy(), steps)
    assert ours == pytest.approx(float((true - false).max()))


def test_ranks_by_hand_and_one_class_alone_has_none() -> None:
    output = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 2.0], [0.0, 0.0]])
    # positives 1 and 2 against negatives 1 and 0: 1/2 + 1 + 1 + 1 of 4 pairs
    assert Auroc().over(output, torch.tensor([0, 1, 1, 0])) == 3.5 / 4
    assert value_of(Auroc(), Auroc().sums(output, torch.tensor([1, 1, 1, 1]))) is None
    assert value_of(Auprc(), Auprc().sums(output, torch.tensor([0, 0, 0, 0]))) is None
    # clients of 3 and 1 samples: the mean of .9 and .5, weighted
    assert Auroc().value([3 * 0.9 + 1 * 0.5, 4.0]) == pytest.approx(0.8)
    assert not Auroc.adds_up
    nothing = torch.full((2, 2), math.nan)
    assert value_of(Auroc(), Auroc().sums(nothing, torch.tensor([0, 1]))) is None


def test_balanced_accuracy_leaves_out_classes_that_are_not_there() -> None:
    output = torch.eye(3)[[0, 0, 1]]
    metric = BalancedAccuracy(3)
    assert metric.value(metric.sums(output, torch.tensor([0, 1, 1]))) == pytest.approx((1 + 0.5) / 2)
    assert F1(3).value(F1(3).sums(output, torch.tensor([0, 1, 1]))) == pytest.approx((2 / 3 + 2 / 3) / 2)


def test_brier_of_more_classes_by_hand() -> None:
    assert Brier().value(Brier().sums(torch.zeros(1, 4), torch.tensor([2]))) == pytest.approx(0.75**2 + 3 * 0.25**2)


def test_counts_against_scikit_learn() -> None:
    output, labels = drawn(Counts(), 100, 0, 3)
    rate, y = output.double().exp().numpy(), labels.numpy()
    for metric, theirs in ((Deviance(), sk.mean_poisson_deviance), (CountMae(), sk.mean_absolute_error)):
        assert metric.value(metric.sums(output, labels)) == pytest.approx(theirs(y[:, 0], rate[:, 0]), rel=1e-9)


def test_numbers_against_scikit_learn() -> None:
    output, labels = drawn(Regression(), 100, 0, 4)
    theirs = (sk.root_mean_squared_error, sk.mean_absolute_error, sk.r2_score)
    for metric, one in zip(Regression().metrics(0), theirs, strict=True):
        expected = one(labels.double().numpy(), output.double().numpy())
        assert metric.value(metric.sums(output, labels)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_c_index_against_scikit_survival(seed: int, ties: bool) -> None:
    from sksurv.metrics import concordance_index_censored

    output, labels = drawn(Survival(), 700, 0, seed, ties)
    theirs = concordance_index_censored(labels[:, 1].numpy() > 0, labels[:, 0].numpy(), output[:, 0].numpy())[0]
    assert CIndex().over(output, labels) == pytest.approx(theirs, rel=1e-12)


def test_the_c_index_of_hazards_goes_by_the_chance_to_be_beyond_the_cuts() -> None:
    early, late = [3.0, 0.0], [-3.0, 0.0]  # logits of hazards
    rows = torch.tensor([[1.0, 1.0], [5.0, 0.0]])
    assert CIndex().over(torch.tensor([early, late]), rows) == 1.0
    assert CIndex().over(torch.tensor([late, early]), rows) == 0.0
    assert value_of(CIndex(), CIndex().sums(torch.zeros(2, 1), torch.tensor([[1.0, 0.0], [2.0, 0.0]]))) is None
