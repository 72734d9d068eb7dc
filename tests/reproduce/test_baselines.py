"""LDA from digests against numbers by hand and against scikit's definition written out, and the other baselines."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from feddig_helpers import digest_of, experiment
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot

from holdfast.core.errors import HoldfastError
from holdfast.digests.digest import make_digest
from holdfast.digests.stretching import spread_of
from holdfast.play import run
from holdfast.reproduce.baselines import (
    centralised,
    fit_lda,
    lda_accuracy,
    lda_from_digests,
    without_digests,
)


def clouds(count: int, seed: int, classes: int = 3, size: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal clouds with one covariance, around means that are the same for every seed."""
    fixed, generator = torch.Generator().manual_seed(7), torch.Generator().manual_seed(seed)
    means = 2.0 * torch.randn(classes, size, generator=fixed)
    mixing = torch.randn(size, size, generator=fixed)
    labels = torch.arange(count) % classes
    return means[labels] + torch.randn(count, size, generator=generator) @ mixing, labels


def test_two_dimensions_by_hand() -> None:
    """Means (0, 0) and (4, 0); residuals (+-1, 0) and (0, +-2) in each class: S = diag(4, 16) / (8 - 2)."""
    cross = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    x = torch.cat([cross, cross + torch.tensor([4.0, 0.0])])
    y = one_hot(torch.tensor([0] * 4 + [1] * 4), 2).float()
    fitted = fit_lda(x, y, shrink=0.0)
    torch.testing.assert_close(fitted.weight, torch.tensor([[0.0, 0.0], [4 / (4 / 6), 0.0]], dtype=torch.float64))
    half = torch.log(torch.tensor(0.5, dtype=torch.float64))
    torch.testing.assert_close(fitted.bias, torch.stack([half, half - 0.5 * 16 / (4 / 6)]))


def test_hard_labels_give_textbook_lda() -> None:
    x, labels = clouds(300, 1)
    fitted = fit_lda(x, one_hot(labels, 3).float(), shrink=0.0)
    means = torch.stack([x[labels == c].double().mean(0) for c in range(3)])
    pooled = sum((x[labels == c].double() - means[c]).T @ (x[labels == c].double() - means[c]) for c in range(3)) / 297
    inverse = torch.linalg.inv(pooled)
    torch.testing.assert_close(fitted.weight, means @ inverse)
    expected = torch.log(torch.tensor(1 / 3)) - 0.5 * torch.einsum("ci,ij,cj->c", means, inverse, means)
    torch.testing.assert_close(fitted.bias, expected)


@pytest.mark.parametrize("weights", ["balanced", "random", (0.5, 0.25, 0.25)])
def test_mixed_digests_find_means_and_covariance_of_what_was_mixed(weights: object) -> None:
    x, labels = clouds(30_000, 2)
    made = make_digest(x, labels, 3, spd=3, weights=weights, generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    mixed = fit_lda(made.features, made.labels, spread_of(made), shrink=0.0)
    plain = fit_lda(x, one_hot(labels, 3).float(), shrink=0.0)
    assert float((mixed.weight - plain.weight).norm() / plain.weight.norm()) < 0.05
    test, truth = clouds(3000, 3)
    right = [(fitted(test).argmax(1) == truth).double().mean() for fitted in (mixed, plain)]
    assert abs(right[0] - right[1]) < 0.01


@settings(max_examples=25)
@given(st.integers(0, 50), st.floats(0.1, 10.0), st.floats(-5.0, 5.0))
def test_scaling_and_shifting_all_features_changes_no_decision(seed: int, scale: float, shift: float) -> None:
    x, labels = clouds(60, seed)
    y = one_hot(labels, 3).float()
    test, _ = clouds(40, seed + 100)
    moved = fit_lda(x * scale + shift, y)(test * scale + shift)
    plain = fit_lda(x, y)(test)
    top = plain.topk(2, dim=1).values
    sure = (top[:, 0] - top[:, 1]) > 1e-3
    assert torch.equal(moved.argmax(1)[sure], plain.argmax(1)[sure])


def test_a_class_nobody_has_is_never_predicted_and_few_digests_do_no_harm() -> None:
    fitted = lda_from_digests([digest_of([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])])
    scores = fitted(torch.randn(50, 2, generator=torch.Generator().manual_seed(0)))
    assert set(scores.argmax(1).tolist()) <= {0, 2}
    assert bool(torch.isneginf(scores[:, 1]).all())


def test_without_digests_there_is_a_sentence() -> None:
    with pytest.raises(HoldfastError, match="there are none"):
        lda_from_digests([])
    with pytest.raises(HoldfastError, match="this run holds none"):
        lda_accuracy(run(experiment(absence="none", rounds=1)))


def test_lda_from_the_digests_of_a_run() -> None:
    history = run(experiment(rounds=1, model="full:width=4,hidden=8"))  # the features are the last of two inputs
    assert lda_accuracy(history) > 0.9
    away = run(experiment(rounds=2, scenario={"name": "intervals", "away": [[0, 1, 3]]}))
    assert lda_accuracy(away) <= 0.75, "the class of a client that never came cannot be known"


def test_the_same_features_without_digests() -> None:
    plain = without_digests(experiment(model="auto", algorithm="scaffold", scenario="sequential"))
    assert (plain.model.name, plain.absence.name, plain.algorithm.name) == ("features", "none", "scaffold")
    assert plain.scenario.name == "sequential"
    assert without_digests(replace(plain, model="cnn")).model.name == "cnn"  # type: ignore[arg-type]


def test_centralised_learns_what_a_federation_of_single_classes_learns_slowly() -> None:
    federated = experiment(rounds=3, absence="none")
    assert run(centralised(federated)).final_accuracy > run(federated).final_accuracy + 0.05
    assert centralised(experiment(attack="sign-flip", attackers=1)).attackers == 0
