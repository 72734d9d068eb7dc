"""The kernel head against least squares and explicit leave-one-out, and what must not stay in the model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.kernel_ridge import KernelRidge

from holdfast.data.task import Samples
from holdfast.digests.digest import make_digest
from holdfast.heads import kernel as module
from holdfast.heads.choosing import accuracy, fit
from holdfast.heads.evidence import mixed_evidence
from holdfast.heads.kernel import kernel, least_error
from holdfast.models.heads import bells


def ring(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Class 0 within a ring of class 1: no line parts them."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    angle = 6.2832 * torch.rand(count, generator=generator)
    length = 0.5 * y + 0.1 * torch.randn(count, generator=generator).abs()
    return torch.stack([length * angle.cos(), length * angle.sin()], 1), y


def test_what_no_line_parts_is_learnt_and_no_row_stays() -> None:
    x, y = ring(400)
    digest = make_digest(x, y, 3, generator=torch.Generator().manual_seed(1), strategy="within", spd=1)
    network = fit("kernel", [digest])
    new, labels = ring(200, seed=2)
    judge = Samples((new,), torch.nn.functional.one_hot(labels, 3).float())
    assert LinearDiscriminantAnalysis().fit(x, y).score(new, labels) < 0.7 < 0.97 < accuracy(network, judge)
    found = network.state_dict()
    apart = torch.cdist(digest.features @ found["metric"].T, found["centres"])
    assert float(apart.min()) > 1e-6
    assert float(found["bias"][2]) < -1000  # a class that nobody holds


def test_weights_are_those_of_penalised_least_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle: the rows, and below them the root of the penalty, by numpy's least squares."""
    monkeypatch.setattr(module, "CENTRES", 12)
    monkeypatch.setattr(module, "JITTER", 0.0)
    monkeypatch.setattr(module, "PENALTIES", (0.3,))
    x, y = ring(60)
    digest = make_digest(x, y, 2, generator=torch.Generator().manual_seed(1), strategy="within", spd=1)
    found = kernel(mixed_evidence([digest]), Samples((digest.features,), digest.labels))
    centres = found["centres"].double()
    at_rows, at_centres = bells(digest.features.double() @ found["metric"].double().T, centres), bells(centres, centres)
    shares = digest.labels.double().mean(0)
    root = np.linalg.cholesky(at_centres.numpy() + 1e-12 * np.eye(12)).T * 0.3**0.5
    wanted = np.linalg.lstsq(
        np.concatenate([at_rows.numpy(), root]),
        np.concatenate([(digest.labels.double() - shares).numpy(), np.zeros((12, 2))]),
        rcond=None,
    )[0]
    assert np.allclose(at_rows.numpy() @ wanted, at_rows @ found["weight"].double().T / module.SHARP, atol=1e-3)


def test_the_penalty_is_chosen_by_leaving_each_row_out_in_turn() -> None:
    x, y = ring(30)
    wrong = torch.rand(30, generator=torch.Generator().manual_seed(3)) < 0.3
    noisy = torch.nn.functional.one_hot((y + wrong) % 2, 2).double() - 0.5
    gram = bells(4 * x.double(), 4 * x.double())
    errors = {}
    for penalty in module.PENALTIES:
        missed = []
        for out in range(30):
            rest = [row for row in range(30) if row != out]
            oracle = KernelRidge(alpha=penalty, kernel="precomputed").fit(gram[rest][:, rest], noisy[rest])
            missed.append(oracle.predict(gram[[out]][:, rest]) - noisy[[out]].numpy())
        errors[penalty] = float(np.square(missed).mean())
    assert least_error(gram, noisy) == min(errors, key=lambda one: errors[one]) > min(module.PENALTIES)


def test_rows_that_are_all_alike_are_no_mistake() -> None:
    digest = make_digest(
        torch.full((8, 2), 0.5), torch.zeros(8).long(), 2, generator=torch.Generator(), strategy="within", spd=4
    )
    assert fit("kernel", [digest])(torch.full((1, 2), 0.5)).argmax() == 0
