"""Mixed digests: the bound on whole numbers, one record in one digest, true claims, safe answers."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from holdfast.core.errors import HoldfastError
from holdfast.privacy import mechanisms, noise
from holdfast.privacy.accounting import compose
from holdfast.privacy.calibration import discrete_epsilon
from holdfast.privacy.claim import Claim
from holdfast.privacy.grid import Grid, quantise

FEATURES = np.random.default_rng(0).normal(size=(23, 6))
LABELS = np.array([0] * 10 + [1] * 12 + [3])  # class 2 is empty, class 3 has one record


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise: what is left is the exact sum whose sensitivity is claimed."""
    for name in ("laplace", "gaussian"):
        monkeypatch.setattr(mechanisms, name, lambda count, scale, source: np.zeros(count, dtype=np.int64))


def label_public(features: np.ndarray, labels: np.ndarray = LABELS, **changes: object) -> mechanisms.MixedDigests:
    options: dict[str, object] = {
        "spd": 4,
        "grid": Grid("l1", 1.0),
        "epsilon": 2.0,
        "delta": 0.0,
        "by_class": True,
        "generator": generator(),
        "source": noise.seeded(0),
    }
    return mechanisms.dp_label_public(features, labels, 4, **{**options, **changes})  # type: ignore[arg-type]


def full(features: np.ndarray, labels: np.ndarray = LABELS, **changes: object) -> mechanisms.MixedDigests:
    options: dict[str, object] = {
        "spd": 4,
        "grid": Grid("l2", 1.0),
        "epsilon_features": 2.0,
        "epsilon_labels": 1.0,
        "delta": 1e-5,
        "by_class": True,
        "generator": generator(),
        "source": noise.seeded(0),
    }
    return mechanisms.dp_full(features, labels, 4, **{**options, **changes})  # type: ignore[arg-type]


@given(
    arrays.arrays(np.float64, (5, 7), elements=st.floats(allow_nan=False, allow_infinity=False)),
    st.sampled_from(["l1", "l2"]),
    st.floats(1e-3, 1e3),
    st.sampled_from([1, 3, 100, 65536, 1 << 24]),
)
@settings(max_examples=200)
def test_quantised_records_obey_the_bound_exactly(x: np.ndarray, norm: str, clip: float, steps: int) -> None:
    values = quantise(x, Grid(norm, clip, steps)).values  # type: ignore[arg-type]
    for row in values.tolist():  # Python's whole numbers: nothing can overflow
        assert (sum(map(abs, row)) <= steps) if norm == "l1" else (sum(v * v for v in row) <= steps**2)


def test_quantising_is_close_and_counts_what_it_clips() -> None:
    x = np.array([[0.3, -0.4], [6.0, 8.0], [0.0, 0.0], [1.0, 0.0]])
    found = quantise(x, Grid("l2", 1.0, 1000))
    assert found.values.tolist() == [[300, -400], [600, 800], [0, 0], [1000, 0]]
    assert found.clipped == 1


def test_a_unit_vector_in_float32_does_not_count_as_clipped() -> None:
    x = torch.nn.functional.normalize(torch.randn(200, 64, generator=generator()), dim=1).numpy()
    assert quantise(x, Grid("l2", 1.0)).clipped == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("release", [label_public, full])
def test_features_that_are_not_finite_are_refused(bad: float, release: object) -> None:
    x = FEATURES.copy()
    x[3, 5] = bad
    with pytest.raises(HoldfastError, match=r"record 3, feature 5 is -?(nan|inf).*nothing was released"):
        release(x)  # type: ignore[operator]


def test_features_beyond_the_clip_are_clipped_and_counted() -> None:
    tame, wild = FEATURES / 100, FEATURES.copy() / 100
    wild[0] *= 1e12
    assert label_public(tame).clipped == 0
    assert label_public(wild).clipped == 1


@pytest.mark.parametrize("by_class", [True, False])
def test_groups_hold_each_record_once(by_class: bool) -> None:
    rows = mechanisms.groups(LABELS, 4, by_class, generator())
    assert sorted(rows[rows >= 0].tolist()) == list(range(23))
    if by_class:
        assert all(len(set(LABELS[row[row >= 0]])) == 1 for row in rows)
        assert len(rows) == 3 + 3 + 1
    else:
        assert len(rows) == 6


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_replaced_record_changes_one_sum_by_at_most_the_sensitivity(
    norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(monkeypatch)
    grid = Grid(norm, 1.0, 1000)  # type: ignore[arg-type]
    delta = 0.0 if norm == "l1" else 1e-5
    largest = 0.0
    for record in range(len(FEATURES)):
        one, other = FEATURES.copy(), FEATURES.copy()
        one[record], other[record] = [9, 0, 0, 0, 0, 0], [-9, 0, 0, 0, 0, 0]
        change = label_public(one, grid=grid, delta=delta).sums - label_public(other, grid=grid, delta=delta).sums
        assert (change != 0).any(1).sum() == 1
        largest = max(largest, float(np.abs(change).sum()))
        assert largest <= grid.sensitivity
    assert largest == grid.sensitivity == 2000  # the worst case is reached: the claim is tight


def test_label_public_without_noise_is_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    x = FEATURES / 100
    found = label_public(x, grid=Grid("l2", 1.0, 1 << 20), delta=1e-5)
    rows = mechanisms.groups(LABELS, 4, True, generator())
    for row, mean, soft in zip(rows, found.features, found.labels, strict=True):
        np.testing.assert_allclose(mean, x[row[row >= 0]].mean(0), atol=2e-6)
        assert soft[LABELS[row[0]]] == 1.0


def test_empty_classes_and_lone_records_get_full_noise() -> None:
    found = label_public(FEATURES)
    assert found.counts[:, 2].sum() == 0
    assert found.counts[-1].tolist() == [0, 0, 0, 1]
    assert found.claim.epsilon_total <= 2.0
    alone = label_public(FEATURES[:1], LABELS[:1])
    assert alone.sums.shape == (1, 6)
    draws = np.array([label_public(FEATURES[-1:], LABELS[-1:], source=noise.seeded(i)).sums[0, 0] for i in range(300)])
    assert draws.std() == pytest.approx(math.sqrt(2) * 65536, rel=0.25)  # Laplace of scale 2 * 65536 / epsilon 2


def test_claim_of_label_public() -> None:
    claim = label_public(FEATURES).claim
    assert (claim.mode, claim.noise, claim.delta, claim.spd) == ("dp-label-public", "discrete laplace", 0.0, 4)
    assert claim.sensitivity == 2 * 65536
    assert claim.scale == 65536.0
    assert claim.epsilon_total == claim.epsilon_pure == pytest.approx(2.0, rel=1e-9)
    assert claim.epsilon_labels == math.inf
    assert "labels and counts are public" in claim.adjacency
    assert claim.guarantee == noise.SEEDED
    assert label_public(FEATURES, source=noise.system()).claim.guarantee.startswith("(2, 0)-differential privacy")


def test_claim_of_full_adds_up() -> None:
    claim = full(FEATURES).claim
    assert claim.epsilon_total == pytest.approx(claim.epsilon_features + claim.epsilon_labels, rel=1e-9)
    assert claim.epsilon_total <= 3.0 + 1e-9
    assert claim.epsilon_features == pytest.approx(2.0, abs=1e-6)
    assert claim.epsilon_labels == pytest.approx(1.0, abs=1e-6)
    assert claim.epsilon_features == discrete_epsilon(claim.ratio, 1e-5, [(6, claim.scale)])
    assert claim.epsilon_pure == claim.epsilon_labels  # the accountant sees the labels too
    spent = compose([dataclasses.replace(claim, entropy=noise.SYSTEM)], 1e-5)
    assert claim.epsilon_features + 0.3 < spent <= claim.epsilon_total + 1e-6
    laplace = full(FEATURES, grid=Grid("l1", 1.0), delta=0.0).claim
    assert laplace.epsilon_pure == pytest.approx(laplace.epsilon_features + laplace.epsilon_labels, rel=1e-9)
    assert Claim.from_json(claim.as_json()) == claim
    public = label_public(FEATURES).claim
    assert Claim.from_json(public.as_json()) == public


@given(st.integers(2, 100), st.floats(0.01, 20))
def test_response_tickets_keep_their_promise(classes: int, epsilon: float) -> None:
    keep, other = mechanisms.response_tickets(classes, epsilon)
    assert keep + (classes - 1) * other == 2**32
    assert 0 < keep <= other * Fraction(math.exp(epsilon)) * (1 + Fraction(1, 10**12))


def test_randomised_response_frequencies() -> None:
    answers = mechanisms.randomised_response(np.full(100_000, 2), 4, math.log(3), noise.seeded(1))
    observed = np.bincount(answers, minlength=4)
    assert stats.chisquare(observed, np.array([1, 1, 3, 1]) / 6 * 100_000).pvalue > 1e-4


def test_full_groups_follow_the_answers_not_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records whose answers agree give the same groups, whatever their true labels are."""
    silent(monkeypatch)
    monkeypatch.setattr(mechanisms, "randomised_response", lambda labels, *rest: np.arange(len(labels)) % 4)
    one, other = full(FEATURES, LABELS), full(FEATURES, LABELS[::-1].copy())
    assert (one.sums == other.sums).all()
    assert (one.counts == other.counts).all()


def test_soft_labels_say_how_sure_they_are() -> None:
    found = full(FEATURES, epsilon_labels=math.log(9))
    assert found.keep == pytest.approx(9 / 12)
    assert found.labels.max() == pytest.approx(0.75)
    np.testing.assert_allclose(found.labels.sum(1), 1.0)


def test_the_published_settings_claim_6400() -> None:
    from holdfast.privacy.claim import paper

    claim = paper(features=256, spd=4, S=20_000, epsilon=0.005)
    assert (claim.epsilon_nominal, claim.epsilon_features, claim.epsilon_total) == (0.005, 6400.0, math.inf)
    assert "infinite" in claim.guarantee


def test_features_of_either_sign_cost_twice_as_much() -> None:
    """By hand: l = 3, tau = 2, SpD 4, so from (-2, -2, -2) to (2, 2, 2) a mean moves by 3 x 4 / 4 = 3 = 1.5 tau.

    Noise of scale tau / (S epsilon) = 2 / (100 x 0.05) = 0.4 then has a log-likelihood ratio of 3 / 0.4 = 7.5.
    """
    from holdfast.privacy.claim import paper

    claim = paper(features=3, spd=4, S=100, epsilon=0.05, signed=True)
    assert (claim.epsilon_features, claim.sensitivity) == (pytest.approx(7.5), pytest.approx(1.5))
    ratio = claim.sensitivity / claim.scale
    assert ratio == pytest.approx(7.5)
    assert paper(features=3, spd=4, S=100, epsilon=0.05).epsilon_features == pytest.approx(7.5 / 2)  # within [0, tau]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"spd": 0}, "at least one record"),
        ({"epsilon": 0.0}, "positive"),
        ({"epsilon": math.nan}, "positive"),
        ({"delta": 1e-5}, "set delta = 0"),
        ({"labels": np.array([0])}, "one for each record"),
        ({"labels": LABELS + 1}, "classes 0 to 3"),
        ({"labels": LABELS * 1.0}, "whole numbers"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, object], match: str) -> None:
    with pytest.raises(HoldfastError, match=match):
        label_public(FEATURES, **changes)  # type: ignore[arg-type]


def test_no_records_and_bad_tables_are_refused() -> None:
    with pytest.raises(HoldfastError, match="nothing to release"):
        label_public(FEATURES[:0], LABELS[:0])
    with pytest.raises(HoldfastError, match="a table"):
        label_public(FEATURES[0], LABELS[:6])
    for norm, clip, steps in (("l3", 1.0, 5), ("l1", 0.0, 5), ("l1", 1.0, 0)):
        with pytest.raises(HoldfastError, match="grid"):
            Grid(norm, clip, steps)  # type: ignore[arg-type]
