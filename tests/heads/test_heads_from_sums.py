"""Heads from joint sums: scikit-learn on the pooled records as the oracle, and who left costs nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score

from holdfast.core.errors import HoldfastError
from holdfast.data.kinds import Classes, Hazards, Labels, Regression, Survival
from holdfast.digests.sums import UNIT, SumDigest, bounds_of, make_sums, open_sums, seal_sums
from holdfast.heads.from_sums import PENALTIES, class_evidence, labels, least_squares, regression
from holdfast.heads.solved import lda
from holdfast.heads.sum_samples import most_likely
from holdfast.privacy import noise


def sums(kind, classes, z, y, range=UNIT, private=None) -> SumDigest:  # type: ignore[no-untyped-def]
    made = make_sums(kind, classes, np.asarray(z, dtype=np.float64), y, range, private, noise.seeded(1))
    return open_sums(seal_sums(made, "mine", "encoder"))


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_diabetes(return_X_y=True)
    return x / np.abs(x).max() / math.sqrt(x.shape[1]), y


@pytest.mark.parametrize("penalty", [0.0, 0.01, 1.0])
def test_five_sites_that_all_left_are_pooled_ridge(penalty: float) -> None:
    """scikit-learn's diabetes: the same R2 on records that nobody saw, to 1e-6 and far below."""
    x, y = diabetes()
    sites = [np.arange(place, 342, 5) for place in range(5)]
    digests = [sums(Regression(), 0, x[part], torch.tensor(y[part])[:, None]) for part in sites]
    oracle = Ridge(alpha=penalty).fit(x[:342], y[:342]) if penalty else None
    found, _ = regression(digests, penalty)
    ours = x[342:] @ found["weight"][0].double().numpy() + found["bias"].item()
    if oracle is None:
        design = np.c_[np.ones(342), x[:342]]
        weights = np.linalg.lstsq(design, y[:342], rcond=None)[0]
        theirs = np.c_[np.ones(100), x[342:]] @ weights
    else:
        theirs = oracle.predict(x[342:])
    assert r2_score(y[342:], ours) == pytest.approx(r2_score(y[342:], theirs), abs=1e-6)


def test_the_penalty_is_chosen_by_generalised_cross_validation() -> None:
    """The printed formula, computed from the records themselves."""
    x, y = diabetes()
    x, y = x[:80], y[:80]
    digest = sums(Regression(), 0, x, torch.tensor(y)[:, None])
    slope, intercept, expected = least_squares(digest.sums)
    away = x - x.mean(0)
    values = np.linalg.eigvalsh(away.T @ away)
    scores = {}
    for share in PENALTIES:
        alpha = share * values.mean()
        fit = Ridge(alpha=alpha).fit(x, y)
        free = 80 - 1 - (values / (values + alpha)).sum()
        scores[alpha] = 80 * ((y - fit.predict(x)) ** 2).sum() / free**2
    alpha = min(scores, key=lambda one: scores[one])
    fit = Ridge(alpha=alpha).fit(x, y)
    assert slope == pytest.approx(fit.coef_, rel=1e-6)
    assert intercept == pytest.approx(fit.intercept_)
    assert expected == pytest.approx(1 - scores[alpha] / y.var())


def test_a_public_range_scales_and_comes_back() -> None:
    x, y = diabetes()
    t = torch.tensor(y)[:, None]
    plain = regression([sums(Regression(), 0, x, t)], 0.01)[0]
    scaled = regression([sums(Regression(), 0, x, t, (0.0, 400.0))], 0.01)[0]
    assert torch.allclose(plain["weight"], scaled["weight"], rtol=1e-5)
    assert torch.allclose(plain["bias"], scaled["bias"], rtol=1e-5)
    with pytest.raises(HoldfastError, match="different ranges"):
        regression([sums(Regression(), 0, x, t), sums(Regression(), 0, x, t, (0.0, 400.0))])


def test_labels_are_discriminants_of_two_classes_each() -> None:
    random = np.random.default_rng(0)
    y = (random.random((600, 2)) < [0.3, 0.6]).astype(float)
    x = 0.1 * random.normal(size=(600, 3)) + 0.2 * y @ np.array([[1.0, 0, 0.5], [0, 1.0, 0]])
    found = labels([sums(Labels(), 2, x[p], torch.tensor(y[p])) for p in (slice(250), slice(250, 600))])
    for label in range(2):
        oracle = LinearDiscriminantAnalysis(solver="lsqr").fit(x, y[:, label])
        ours = x @ found["weight"][label].double().numpy() + found["bias"][label].item()
        assert np.corrcoef(ours, oracle.decision_function(x))[0, 1] > 0.999
        assert ((ours > 0) == (oracle.predict(x) > 0.5)).mean() > 0.98


def test_hazards_follow_from_counts_and_sums() -> None:
    """Two groups, hazards 0.1 and 0.4 in each of three intervals: the log-odds come back."""
    random = np.random.default_rng(1)
    group = random.random(10_000) < 0.5
    hazard = np.where(group, 0.4, 0.1)
    time = random.geometric(hazard).astype(float)
    event = time <= 3
    rows = torch.tensor(np.c_[np.minimum(time, 3.5), event])
    z = np.where(group, 0.5, -0.5)[:, None] + 0.5 * random.normal(size=(10_000, 1))
    z /= np.abs(z).max()
    kind = Hazards((1.0, 2.0, 3.0))
    found = most_likely([sums(kind, 0, z[:100], rows[:100]), sums(kind, 0, z[100:], rows[100:])], 0)
    shares = torch.sigmoid(torch.tensor(z).float() @ found["weight"].T + found["bias"])
    for place in range(3):
        at_risk = time > place
        died = at_risk & (time == place + 1)
        assert float(shares[torch.tensor(at_risk)][:, place].mean()) == pytest.approx(
            died.sum() / at_risk.sum(), abs=0.03
        )
    assert float(shares[torch.tensor(group)].mean()) > float(shares[torch.tensor(~group)].mean()) + 0.1


def test_classes_are_pooled_discriminants() -> None:
    random = np.random.default_rng(2)
    y = random.integers(0, 3, 300)
    x = 0.1 * random.normal(size=(300, 4)) + 0.3 * np.eye(4)[y]
    evidence = class_evidence([sums(Classes(), 3, x[p], torch.tensor(y[p])) for p in (slice(90), slice(90, 300))])
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.02).fit(x, y)
    found = lda(evidence)
    ours = x @ found["weight"].double().numpy().T + found["bias"].double().numpy()
    theirs = oracle.decision_function(x)
    assert np.abs((ours - ours[:, :1]) - (theirs - theirs[:, :1])).max() < 1e-2


def test_noisy_sums_still_learn_where_records_are_many() -> None:
    random = np.random.default_rng(3)
    x = random.normal(size=(20_000, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = torch.tensor(x @ [30.0, -20.0, 0.0] + 50)[:, None]
    private = regression([sums(Regression(), 0, x, y, (0.0, 100.0), (3.0, 1e-5))])[0]
    assert private["weight"][0].tolist() == pytest.approx([30.0, -20.0, 0.0], abs=1.0)
    assert private["bias"].item() == pytest.approx(50.0, abs=1.0)


def test_kinds_without_sums_are_refused_with_the_reason() -> None:
    with pytest.raises(HoldfastError, match="compares each event with all records at risk"):
        bounds_of(Survival(), 0)
