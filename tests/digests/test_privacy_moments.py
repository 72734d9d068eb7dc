"""The moment digest: its sensitivity searched, its sums exact, its noise as stated, and what a client makes of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from moments_helpers import blobs, make

from holdfast.audit.statistics import moment_ratio, stage_spreads, stage_values
from holdfast.core.errors import HoldfastError
from holdfast.digests import moments as summary
from holdfast.privacy import moment_noise as moments
from holdfast.privacy import noise
from holdfast.privacy.grid import quantise

W, S = moments.WEIGHT, moments.CLASSWISE  # the sensitivities hold for any S


def first(z: np.ndarray, label: int, classes: int = 2) -> np.ndarray:
    """What a record adds to stage 1, as the head of moments.py has it."""
    one = np.eye(classes)[label]
    return np.concatenate([one, np.outer(one, z).ravel()])


def second(u: np.ndarray, label: int, classes: int = 2) -> np.ndarray:
    """What a residual adds to stage 2; each pair off the diagonal once, times sqrt 2."""
    one = np.eye(classes)[label]
    row, column = np.triu_indices(len(u))
    square = np.outer(u, u)[row, column] * np.where(row == column, 1.0, math.sqrt(2.0))
    parts = [W / 2 * one, math.sqrt(W) * np.outer(one, u), math.sqrt(S) * np.outer(one, square)]
    return np.concatenate([part.ravel() for part in parts] + [math.sqrt(1 - S) * square])


def in_ball(z: np.ndarray) -> np.ndarray:
    return z / max(1.0, float(np.linalg.norm(z)))


@given(arrays.arrays(np.float64, (2, 3), elements=st.floats(-1, 1)), st.integers(0, 1), st.integers(0, 1))
@settings(max_examples=500)
def test_no_pair_of_records_exceeds_the_sensitivities(z: np.ndarray, c: int, d: int) -> None:
    one, other = in_ball(z[0]), in_ball(z[1])
    assert np.linalg.norm(first(one, c) - first(other, d)) <= moments.D1 + 1e-12
    assert np.linalg.norm(second(one, c) - second(other, d)) <= moments.D2 + 1e-12


def test_a_search_for_the_sensitivities_finds_them() -> None:
    """By stage and by whether the label changes; both stages reach their bound either way: hiding labels is free."""
    best: dict[tuple[str, bool], float] = {}
    for cosine in np.linspace(-1, 1, 81):  # -W/2 = -1/4 is among them
        for a in np.linspace(0, 1, 6):
            for b in np.linspace(0, 1, 6):
                one, other = a * np.array([1.0, 0.0]), b * np.array([cosine, math.sqrt(1 - cosine**2)])
                for label in (0, 1):
                    for name, adds in (("first", first), ("second", second)):
                        size = float(np.linalg.norm(adds(one, 0) - adds(other, label)))
                        best[name, label == 0] = max(best.get((name, label == 0), 0.0), size)
    assert best["first", True] == best["first", False] == pytest.approx(2.0, abs=1e-12)
    assert best["second", True] == pytest.approx(moments.D2, abs=1e-12)
    assert best["second", False] == pytest.approx(moments.D2, abs=1e-12)
    assert pytest.approx(2.5 / math.sqrt(2)) == moments.D2


@given(
    arrays.arrays(np.float64, (2, 4), elements=st.floats(-2, 2)),
    arrays.arrays(np.float64, (2, 4), elements=st.floats(-1, 1)),
    arrays.arrays(np.float64, 2, elements=st.floats(moments.LEAST_RADIUS, 1)),
    st.integers(0, 1),
)
@settings(max_examples=300)
def test_the_whole_numbers_that_get_noise_obey_the_ratio(
    z: np.ndarray, means: np.ndarray, radii: np.ndarray, label: int
) -> None:
    """Any two records, around any centres: each number's change over its own scale, added in squares, no margin."""
    scales, ratio, _ = moments.scales_for(3.0, 1e-5, 4)
    values = quantise(z, moments.GRID).values / moments.STEPS
    centres = moments.Centres(means, radii)
    assert moment_ratio((values[0], 0), (values[1], label), 2, scales, centres) <= ratio


@pytest.mark.parametrize(("epsilon", "ratio"), [(10.0, 2.0013), (3.0, 0.7191), (1.0, 0.2680)])
def test_both_stages_together_cost_what_is_claimed(epsilon: float, ratio: float) -> None:
    """sqrt(4.5)/sigma for the well-known sigmas 1.060, 2.950, 7.914 of the analytic Gaussian at delta 1e-5."""
    scales, found, spent = moments.scales_for(epsilon, 1e-5, 128)
    assert math.hypot(moments.D1 / scales.first, moments.D2 / scales.second) == pytest.approx(found, rel=1e-9)
    assert found == pytest.approx(ratio, abs=1e-3)
    assert epsilon - 1e-3 < spent <= epsilon


def test_the_claim_against_the_accountant_of_dp_accounting() -> None:
    """The two stages as two Gaussian mechanisms, composed by another's accountant."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    scales, _, spent = moments.scales_for(3.0, 1e-5, 16)
    stages = [
        pld.from_gaussian_mechanism(scales.first / moments.D1),
        pld.from_gaussian_mechanism(scales.second / moments.D2),
    ]
    assert stages[0].compose(stages[1]).get_epsilon_for_delta(1e-5) == pytest.approx(spent, abs=0.01)


def test_exact_sums_against_a_loop() -> None:
    values = np.random.default_rng(0).integers(-1024, 1025, (300, 5))
    labels = np.random.default_rng(1).integers(0, 3, 300)
    found = moments.exact_second(values, labels, 4)
    upper = np.triu_indices(5)
    for c in range(4):
        own = sum((np.outer(v, v) for v in values[labels == c]), np.zeros((5, 5), dtype=int))
        assert found.classwise[c].tolist() == own[upper].tolist()
    assert found.shared.tolist() == sum(np.outer(v, v) for v in values)[upper].tolist()
    assert found.counts.tolist() == [1024 * int((labels == c).sum()) for c in range(4)]
    assert found.sums.tolist() == [values[labels == c].sum(0).tolist() for c in range(4)]


def test_noise_has_the_stated_spread() -> None:
    """Without records only noise is left: its spread in each part, within 6 standard errors."""
    k, classes = 12, 200
    scales = moments.scales_for(1.0, 1e-5, k)[0]
    none = np.zeros((0, k)), np.zeros(0, dtype=int)
    one, _, two, _ = summary.stages(*none, classes, scales, noise.seeded(0))
    for stage, spread in zip((one, two), stage_spreads(classes, k, scales), strict=True):
        seen = stage_values(stage) / spread
        at = 0
        for part in vars(stage).values():
            few = seen[at : at + part.size]
            at += part.size
            assert few.std() == pytest.approx(1.0, rel=6 / math.sqrt(2 * part.size))
    s2 = scales.second * moments.STEPS  # the stated scales, by hand
    assert float(scales.sums) == pytest.approx(scales.first * moments.STEPS, rel=1e-5)
    assert float(scales.counts_2) == pytest.approx(4 * s2, rel=1e-5)
    assert float(scales.sums_2) == pytest.approx(math.sqrt(2) * s2, rel=1e-5)
    own = 0.8 * (0.268 / 2) ** 2  # epsilon 1 has the ratio 0.268
    assert float(scales.classwise[0]) == pytest.approx(s2 * moments.STEPS / math.sqrt(own), rel=1e-3)
    assert float(scales.shared[1]) == pytest.approx(s2 * moments.STEPS / math.sqrt(2 * (1 - own)), rel=1e-3)


def test_residuals_are_never_longer_than_one() -> None:
    z, y = blobs(300, 3, 6, 0)
    values = quantise(z, moments.GRID).values
    centres = moments.Centres(np.zeros((3, 6)), np.array([1.0, 0.5, 0.3]))
    found = moments.residuals(values, y, centres)
    assert (found**2).sum(1).max() <= moments.STEPS**2
    np.testing.assert_allclose(found / moments.STEPS, z, atol=0.01)  # unit length: its direction, whatever the radius
    near = moments.residuals(values // 4, y, centres)  # a quarter as long, so within every radius
    np.testing.assert_allclose(near[y == 1] / moments.STEPS, z[y == 1] / 4 / 0.5, atol=0.01)


def test_much_epsilon_gives_the_moments_themselves() -> None:
    z, y = blobs(900, 3, 6, 0)
    digest = make(z, y, 3, epsilon=600.0)
    means = np.stack([z[y == c].mean(0) for c in range(3)])
    np.testing.assert_allclose(digest.counts, np.bincount(y), atol=1)
    np.testing.assert_allclose(digest.means, means, atol=0.03)
    away = z - means[y]
    u = away / np.maximum(np.linalg.norm(away, axis=1), digest.radii[y])[:, None]
    np.testing.assert_allclose(digest.shared, u.T @ u, atol=15)
    for c in range(3):
        strong = digest.strong[digest.owner == c]
        true, vectors = np.linalg.eigh(u[y == c].T @ u[y == c] / (y == c).sum())
        base = np.delete(true, range(6 - len(strong), 6)).mean()
        assert len(strong) == 5  # all but one stand out of next to no noise
        np.testing.assert_allclose(sorted((strong**2).sum(1)), true[1:] - base, atol=0.01)
        assert abs(vectors[:, -1] @ strong[(strong**2).sum(1).argmax()]) == pytest.approx(
            math.sqrt(true[-1] - base), abs=0.01
        )


def test_a_planted_direction_is_found_with_the_strength_that_theory_says() -> None:
    """theta = 3 tau is seen at theta + tau^2/theta, and the best strength is theta (1 - 1/9); noise alone has none."""
    k, sigma = 300, 1.0
    tau = sigma * math.sqrt(k / 2)
    random = np.random.default_rng(0)
    upper = np.triu(random.normal(0, sigma / math.sqrt(2), (k, k)), 1)
    wigner = upper + upper.T + np.diag(random.normal(0, sigma, k))
    planted = np.zeros((k, k))
    planted[0, 0] = 3 * tau
    directions, strength = summary.spikes(torch.from_numpy(planted + wigner), sigma, 8)
    assert len(strength) == 1
    assert float(strength[0]) == pytest.approx(3 * tau * (1 - 1 / 9), rel=0.1)
    assert float(directions[0, 0] ** 2) == pytest.approx(1 - 1 / 9, abs=0.05)
    assert len(summary.spikes(torch.from_numpy(wigner), 1.05 * sigma, 8)[1]) == 0


def test_both_stages_make_a_mean_better_than_either() -> None:
    """Against the truth, over many releases: a mean's error is what the digest says it is."""
    z, y = blobs(600, 2, 5, 1, spread=0.2)
    true = np.stack([z[y == c].mean(0) for c in range(2)])
    errors, said = [], []
    for seed in range(60):
        digest = make(z, y, 2, epsilon=2.0, source=noise.seeded(seed))
        errors.append(((digest.means - true) ** 2).mean(1))
        said.append(digest.mean_noise**2)
    scales = moments.scales_for(2.0, 1e-5, 5)[0]
    assert np.mean(errors) == pytest.approx(np.mean(said), rel=0.3)
    assert np.mean(errors) < 0.7 * (scales.first / np.bincount(y).max()) ** 2  # better than stage 1 alone


def test_claim() -> None:
    z, y = blobs(2000, 10, 64, 0)
    claim = make(z, y, 10).claim
    assert (claim.mode, claim.adjacency, claim.delta) == ("moments", "replace one record", 1e-5)
    assert claim.epsilon_total == claim.epsilon_features == claim.epsilon_labels <= 3.0
    assert claim.guarantee == noise.SEEDED
    assert make(z, y, 10, source=noise.system()).claim.guarantee.startswith("(3, 1e-05)")


def test_safe_answers() -> None:
    z, y = blobs(200, 3, 4, 0)
    bad = z.copy()
    bad[7, 2] = np.nan
    with pytest.raises(HoldfastError, match="record 7, feature 2 is nan"):
        make(bad, y, 3)
    with pytest.raises(HoldfastError, match="classes 0 to 2"):
        make(z, y + 1, 3)
    with pytest.raises(HoldfastError, match="positive"):
        make(z, y, 3, epsilon=-1.0)
    with pytest.raises(HoldfastError, match="at least one class and one feature"):
        make(np.zeros((0, 0)), np.zeros(0, dtype=int), 3)
    with pytest.raises(HoldfastError, match="larger epsilon"):
        make(z, y, 3, epsilon=1e-3)
    assert make(z * 5, y, 3).clipped == 200
    assert make(z, y, 3).clipped == 0


def test_without_records_there_is_nothing_but_noise() -> None:
    digest = make(np.zeros((0, 8)), np.zeros(0, dtype=int), 4, epsilon=1.0)
    assert not digest.trusted.any()
    assert not digest.means.any()
    assert len(digest.strong) == 0
