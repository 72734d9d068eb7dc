"""Trained heads, the choice without test data, and what each digest adds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from moments_helpers import blobs, make
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.data.task import Samples
from holdfast.digests.digest import Digest, make_digest
from holdfast.heads import trained
from holdfast.heads.choosing import HEADS, Noise, accuracy, choose_head, fit, held_out, model_of
from holdfast.heads.evidence import mixed_evidence
from holdfast.heads.expecting import SPLIT, Judge, expected, halves_of_moments
from holdfast.privacy import noise

CLASSES = 3


def clients(seed: int = 0, k: int = 6, each: int = 160) -> tuple[list[Digest], Samples]:
    """Three clients, the first of which alone holds class 0; and records of all classes to test on."""
    generator = torch.Generator().manual_seed(seed)
    means = 1.2 * torch.randn(CLASSES, k, generator=generator)

    def some(labels: Tensor) -> Tensor:
        x = means[labels] + torch.randn(len(labels), k, generator=generator)
        return x / 10

    held = [torch.arange(each) % 3, torch.arange(each) % 2 + 1, torch.arange(each) % 2 + 1]
    digests = [make_digest(some(y), y, CLASSES, generator=generator, strategy="within", spd=4) for y in held]
    y = torch.arange(600) % 3
    return digests, Samples((some(y),), torch.nn.functional.one_hot(y, CLASSES).float())


@pytest.mark.parametrize("head", HEADS)
def test_each_head_learns_from_digests_alone(head: str) -> None:
    digests, test = clients()
    network = fit(head, digests)
    assert accuracy(network, test) > (0.85 if head != "nearest-mean" else 0.8)
    again = fit(head, digests)
    assert all(
        torch.equal(a, b) for a, b in zip(network.state_dict().values(), again.state_dict().values(), strict=True)
    )
    assert model_of(head).split(":")[0] in ("head", "features")


def test_ccvr_is_logistic_regression_on_drawn_records() -> None:
    digests, test = clients(1)
    evidence = mixed_evidence(digests)
    found = trained.ccvr(evidence)
    few = trained.drawn(evidence, torch.Generator().manual_seed(5))
    oracle = LogisticRegression(C=1e4, max_iter=2000).fit(few.inputs[0].double().numpy(), few.labels.numpy())
    x = test.inputs[0]
    ours = (x @ found["weight"].T + found["bias"]).argmax(1).numpy()
    assert (ours == oracle.predict(x.double().numpy())).mean() > 0.95


def test_drawn_records_have_the_moments() -> None:
    digests, _ = clients(2, each=4000)
    evidence = mixed_evidence(digests)
    some = trained.drawn(evidence, torch.Generator().manual_seed(1))
    counts = torch.bincount(some.labels, minlength=CLASSES)
    assert torch.allclose(counts.double(), evidence.counts, atol=1.5)
    for c in range(CLASSES):
        x = some.inputs[0][some.labels == c].double()
        assert torch.allclose(x.mean(0), evidence.means[c], atol=0.02)


def test_fishermix_keeps_the_subspace_of_fisher() -> None:
    """Two classes that differ along one axis, with much spread along another: the subspace is the first."""
    generator = torch.Generator().manual_seed(3)
    y = torch.arange(2000) % 2
    x = torch.randn(2000, 2, generator=generator) * torch.tensor([0.02, 0.3])
    x[:, 0] += 0.2 * (y - 0.5)
    digest = make_digest(x, y, 2, generator=generator, strategy="within", spd=1)
    subspace = fit("fishermix", [digest]).state_dict()["subspace"][0]
    assert abs(float(subspace[0] / subspace.norm())) > 0.98


def test_the_choice_is_made_by_rows_left_out_and_each_digest_adds() -> None:
    digests, test = clients(4)
    kept, left = held_out(digests, Noise(), 0)
    assert len(left) == sum(len(d) // 5 for d in digests)
    assert sum(map(len, kept)) == sum(map(len, digests)) - len(left)
    fitted = choose_head("auto", digests)
    assert set(fitted.judged) == set(HEADS)
    assert fitted.name == "kernel"  # no head is clearly better
    assert (fitted.expected, fitted.judges) == (fitted.judged["kernel"], len(left))
    assert fitted.at_most is None
    # Only the first holds class 0, so without it nobody can know that class.
    assert fitted.adds[0] is not None
    assert fitted.adds[0] > max(0.03, abs(fitted.adds[1] or 0.0))
    assert accuracy(fitted.network, test) == pytest.approx(fitted.expected, abs=0.12)


def test_moments_are_not_judged_by_their_own_fit() -> None:
    features, labels = blobs(600, 3, 6, 1)
    digest = make(features, labels, 3, epsilon=10.0, source=noise.seeded(1))
    fitted = choose_head("auto", [digest])
    assert (fitted.name, list(fitted.adds)) == ("lda", [None])
    soft = torch.nn.functional.one_hot(torch.from_numpy(labels).long(), 3).float()
    true = accuracy(fitted.network, Samples((torch.from_numpy(features).float(),), soft))
    assert fitted.at_most is not None
    assert fitted.expected < true < fitted.at_most + 0.03  # blobs are Gaussian: the upper end is what is true of them
    assert math.isnan(choose_head("qda", [digest]).expected)  # what is not linear cannot be told


def test_the_range_to_expect_by_hand() -> None:
    """Classes at -1 and 1 with variance 1, scores -z and z: right with Phi(1), and Phi(1 / 1.8) if wide."""
    one = torch.ones(2, 1, 1).double()
    means = torch.tensor([[-1.0], [1.0]]).double()
    weight, bias = means, torch.zeros(2)
    exact = Judge(torch.full((2,), 1e6).double(), means, 0 * one, one)
    assert expected(weight, bias, exact, 0) == pytest.approx((0.711, 0.841), abs=0.02)
    unsure = Judge(exact.counts, means, 0.75 * one, one)  # their error is part of what scores spread by: less is drawn
    assert expected(weight, bias, unsure, 0)[1] == pytest.approx(0.977, abs=0.02)  # Phi(1 / 0.5)


def test_halves_of_moments_have_independent_noise() -> None:
    """a x one + other / a has no draw left in it: (a^2 + 1) / a times what was split."""
    features, labels = blobs(600, 3, 6, 1)
    digest = make(features, labels, 3, epsilon=10.0, source=noise.seeded(1))
    [one], [other] = halves_of_moments([digest], 0)
    assert (one.means != digest.means).any()
    for name in ("means", "shared"):
        first, second, whole = (getattr(part, name) for part in (one, other, digest))
        np.testing.assert_allclose((first + SPLIT**2 * second) / (1 + SPLIT**2), whole, atol=1e-9)
    assert 1 / one.scales.first**2 + 1 / other.scales.first**2 == pytest.approx(1 / digest.scales.first**2)


def test_bad_choices_are_sentences() -> None:
    digests, _ = clients()
    with pytest.raises(HoldfastError, match="did you mean 'lda'"):
        choose_head("ldaa", digests)
    features, labels = blobs(600, 3, 6, 1)
    moments = make(features, labels, 3, epsilon=10.0, source=noise.seeded(1))
    with pytest.raises(HoldfastError, match="one mode"):
        fit("lda", [digests[0], moments])
    assert np.isfinite(float(fit("lda", digests).state_dict()["weight"].sum()))


def test_a_server_step_on_rows_alone_learns_smoothed_labels() -> None:
    rows = Samples((torch.eye(2).repeat(200, 1),), torch.eye(2).repeat(200, 1))
    network = torch.nn.Linear(2, 2)
    trained.server_step(network, rows, learning=replace(trained.LEARNING, lr=0.5))
    found = torch.softmax(network(torch.eye(2)), 1)
    assert torch.allclose(
        found.diagonal(), torch.tensor(1 - trained.SMOOTH / 2), atol=0.01
    )  # not 1: classes share SMOOTH


def test_of_too_few_rows_to_leave_one_out_nothing_is_expected() -> None:
    x, y = torch.eye(2).repeat(8, 1) / 2, torch.arange(2).repeat(8)
    digest = make_digest(x, y, 2, generator=torch.Generator(), strategy="within", spd=4)
    fitted = choose_head("auto", [digest])
    assert (fitted.name, fitted.judges, dict(fitted.judged)) == ("kernel", 0, {})
    assert math.isnan(fitted.expected)
