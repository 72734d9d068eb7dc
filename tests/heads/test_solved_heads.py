"""Heads in closed form: numbers by hand, scikit-learn and SciPy on the pooled records, and any split the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.digests.digest import Digest, make_digest
from holdfast.heads import solved
from holdfast.heads.evidence import Evidence, cleaned, mixed_evidence
from holdfast.models.heads import Head
from holdfast.models.networks import fill

CLASSES, K = 3, 4


def records(seed: int = 0, n: int = 240) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    means = torch.randn(CLASSES, K, generator=generator)
    mix = torch.randn(K, K, generator=generator)
    features = means[labels] + 0.6 * torch.randn(n, K, generator=generator) @ mix
    return features / features.norm(dim=1).max(), labels


def pooled(x: Tensor, y: Tensor) -> Evidence:
    """What the records say, with covariances as scikit-learn has them (divided by n)."""
    z = x.double()
    parts = [z[y == c] for c in range(CLASSES)]
    return Evidence(
        torch.tensor([float(len(part)) for part in parts], dtype=torch.float64),
        torch.stack([part.mean(0) for part in parts]),
        torch.stack([torch.cov(part.T, correction=0) for part in parts]),
    )


def scores(weights: dict[str, Tensor], x: Tensor, form: str = "linear") -> np.ndarray:
    network = Head(form).build((), CLASSES, (K,))  # type: ignore[arg-type]
    fill(network, weights, weights)
    with torch.no_grad():
        return np.asarray(network(x.float()).double().numpy())


def test_by_hand_two_classes_on_a_line() -> None:
    """Means 0 and 4, variance 1 in both, three records against one: log-odds 4 z - 8 - log 3."""
    two = Evidence(
        torch.tensor([3.0, 1.0]).double(), torch.tensor([[0.0], [4.0]]).double(), torch.ones(2, 1, 1).double()
    )
    found = solved.lda(two)
    assert (found["weight"][1] - found["weight"][0]).item() == pytest.approx(4.0)
    assert (found["bias"][1] - found["bias"][0]).item() == pytest.approx(-8.0 - math.log(3))
    # Within 1, between 3/4 x 1/4 x 16 = 3: the total variance is 4, and FedCGS's slope 4/4.
    assert two.total.item() == pytest.approx(4.0)
    cgs = solved.fedcgs(two)
    assert (cgs["weight"][1] - cgs["weight"][0]).item() == pytest.approx(1.0)
    # sum z z' = n_1 16 + n W = 16 + 4 = 20, B = (0, 4): ridge without a penalty has the slope 1/5, times the factor.
    assert two.gram.item() == pytest.approx(20.0)
    weight = torch.linalg.solve(two.gram, torch.tensor([[0.0, 4.0]]).double()).T
    assert weight.flatten().tolist() == pytest.approx([0.0, 0.2])


def test_lda_is_scikit_learns_on_the_pooled_records() -> None:
    x, y = records()
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=solved.SHRINK).fit(x.double().numpy(), y.numpy())
    ours, theirs = scores(solved.lda(pooled(x, y)), x), oracle.decision_function(x.double().numpy())
    assert np.abs((ours - ours[:, :1]) - (theirs - theirs[:, :1])).max() < 1e-3
    assert (ours.argmax(1) == oracle.predict(x.double().numpy())).all()


def test_nearest_mean_and_ridge_are_scikit_learns() -> None:
    x, y = records(1)
    evidence, z = pooled(x, y), x.double().numpy()
    centroid = NearestCentroid().fit(z, y.numpy())
    assert (scores(solved.nearest_mean(evidence), x).argmax(1) == centroid.predict(z)).all()
    gram = evidence.gram
    alpha = solved.SHRINK * float(gram.trace()) / K
    assert torch.allclose(gram, x.double().T @ x.double())
    oracle = Ridge(alpha=alpha, fit_intercept=False).fit(z, np.eye(CLASSES)[y.numpy()])
    found = solved.ridge(evidence)["weight"].double().numpy()
    sharp = found[0, 0] / oracle.coef_[0, 0]
    assert found == pytest.approx(sharp * oracle.coef_, rel=1e-4, abs=1e-5)
    assert sharp > 1


def test_qda_is_the_gaussians_log_density() -> None:
    x, y = records(2)
    evidence = pooled(x, y)
    ours = scores(solved.qda(evidence), x, "quadratic")
    theirs = []
    for c in range(CLASSES):
        mix = (1 - solved.OWN) * evidence.within + solved.OWN * evidence.covariances[c]
        covariance = solved.shrunken(mix, solved.OWN_SHRINK).numpy()
        density = multivariate_normal(evidence.means[c].numpy(), covariance).logpdf(x.double().numpy())
        theirs.append(density + math.log(float(evidence.counts[c] / evidence.counts.sum())))
    expected = np.stack(theirs, 1)
    assert np.abs((ours - ours[:, :1]) - (expected - expected[:, :1])).max() < 1e-2


def digest_of(x: Tensor, y: Tensor, spd: int = 1, **keys: object) -> Digest:
    generator = torch.Generator().manual_seed(1)
    usual: dict[str, object] = {"strategy": "within"}
    return make_digest(x, y, CLASSES, generator=generator, spd=spd, **{**usual, **keys})  # type: ignore[arg-type]


def test_however_the_records_are_dealt_out_the_head_is_the_same() -> None:
    x, y = records(3)
    one = mixed_evidence([digest_of(x, y)])
    order = y.argsort()  # the worst split: nearly one class each
    dealt = [digest_of(x[part], y[part]) for part in order.split(61)]
    four = mixed_evidence(dealt)
    for solve in (solved.nearest_mean, solved.lda, solved.fedcgs, solved.qda, solved.ridge):
        for name, tensor in solve(one).items():
            assert torch.allclose(tensor, solve(four)[name], rtol=1e-4, atol=1e-4), (solve, name)


def test_mixing_is_undone_in_the_covariances() -> None:
    """Means of four records, within and across classes, and with noise: the covariance of the records comes back."""
    x, y = records(4, 40_000)
    true = pooled(x, y)
    for keys in ({}, {"weights": "random"}, {"weights": (0.4, 0.3, 0.2, 0.1)}, {"strategy": "across"}):
        found = mixed_evidence([digest_of(x, y, 4, **keys)])
        assert torch.allclose(found.means, true.means, atol=0.02), keys
        assert float((found.within - true.within).norm() / true.within.norm()) < 0.05, keys
    rows = digest_of(x, y, 4)
    noise = 0.05 * torch.randn(rows.features.shape, generator=torch.Generator().manual_seed(2))
    noisy = mixed_evidence([Digest(rows.features + noise, *list(vars(rows).values())[1:])], 0.05**2)
    assert float((noisy.within - true.within).norm() / true.within.norm()) < 0.05


def test_nobodys_class_is_never_the_answer() -> None:
    x, y = records(5)
    kept = y != 2
    evidence = mixed_evidence([digest_of(x[kept], y[kept], 2)])
    assert evidence.held.tolist() == [True, True, False]
    for form, solve in (("linear", solved.lda), ("quadratic", solved.qda), ("linear", solved.ridge)):
        weights = solve(evidence)
        assert all(bool(tensor.isfinite().all()) for tensor in weights.values())
        assert (scores(weights, x, form).argmax(1) != 2).all()


def test_no_digests_is_a_sentence() -> None:
    with pytest.raises(HoldfastError, match="there are none"):
        mixed_evidence([])


def test_noise_takes_no_covariance_below_a_tenth_of_the_mean() -> None:
    values = torch.linalg.eigvalsh(cleaned(torch.diag(torch.tensor([1.0, 3.0]).double()), 1.0))
    assert values.tolist() == pytest.approx([0.1, 2.0])
