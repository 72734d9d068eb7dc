"""The moment digest: its sensitivity searched, its sums exact, its size, and what the moderator makes of it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from holdfast.errors import HoldfastError
from holdfast.privacy import moments, noise, sampling


def contribution(z: np.ndarray, label: int, classes: int) -> np.ndarray:
    """The vector x of the docstring: each pair off the diagonal once, times sqrt 2."""
    row, column = np.triu_indices(len(z))
    counts, sums = np.zeros(classes), np.zeros((classes, len(z)))
    counts[label], sums[label] = moments.KAPPA, z
    second = np.outer(z, z)[row, column] * np.where(row == column, 1.0, math.sqrt(2.0))
    return np.concatenate([counts, sums.ravel(), second])


def in_ball(z: np.ndarray) -> np.ndarray:
    return z / max(1.0, float(np.linalg.norm(z)))


def make(z: np.ndarray, y: np.ndarray, classes: int, **changes: object) -> moments.MomentDigest:
    options: dict[str, object] = {"epsilon": 3.0, "delta": 1e-5, "source": noise.seeded(0)}
    return moments.make(z, y, classes, **{**options, **changes})  # type: ignore[arg-type]


def blobs(n: int, classes: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(classes, k))
    y = random.integers(0, classes, n)
    z = centres[y] + 0.6 * random.normal(size=(n, k))
    return z / np.linalg.norm(z, axis=1, keepdims=True), y


@given(
    arrays.arrays(np.float64, (2, 3), elements=st.floats(-1, 1)),
    st.integers(0, 1),
    st.integers(0, 1),
)
@settings(derandomize=True, max_examples=500, deadline=None)
def test_no_pair_of_records_exceeds_the_sensitivity(z: np.ndarray, c: int, d: int) -> None:
    change = contribution(in_ball(z[0]), c, 2) - contribution(in_ball(z[1]), d, 2)
    assert np.linalg.norm(change) <= moments.SENSITIVITY + 1e-12


def test_a_search_for_the_sensitivity_finds_it() -> None:
    best = {True: 0.0, False: 0.0}
    for cosine in np.linspace(-1, 1, 41):
        for a in np.linspace(0, 1, 6):
            for b in np.linspace(0, 1, 6):
                one = a * np.array([1.0, 0.0])
                other = b * np.array([cosine, math.sqrt(1 - cosine**2)])
                for label in (0, 1):
                    size = float(np.linalg.norm(contribution(one, 0, 2) - contribution(other, label, 2)))
                    best[label == 0] = max(best[label == 0], size)
    assert best[True] == pytest.approx(math.sqrt(4.5), abs=1e-12)  # same label, cos = -1/2
    assert best[False] == pytest.approx(math.sqrt(4.5), abs=1e-12)  # another label, cos = 0: hiding labels is free


@given(
    arrays.arrays(np.float64, (2, 4), elements=st.floats(-2, 2)),
    st.integers(0, 1),
    st.sampled_from([16, 2048]),
)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_the_whole_numbers_that_get_noise_obey_the_ratio(z: np.ndarray, label: int, steps: int) -> None:
    """Each part's change over its own scale, added in squares, is at most (D/sigma)^2: no margin is needed."""
    scales, ratio, _ = moments.scales_for(3.0, 1e-5, 4, steps)
    values = moments.quantise(z, moments.Grid("l2", 1.0, steps)).values
    one = moments.exact_moments(values[:1], np.array([0]), 2, steps)
    other = moments.exact_moments(values[1:], np.array([label]), 2, steps)
    row, column = np.triu_indices(4)
    spread = [scales.counts, scales.sums, np.where(row == column, float(scales.diagonal), float(scales.off_diagonal))]
    change = sum(
        float((((a - b) / np.asarray(s, dtype=float)) ** 2).sum()) for a, b, s in zip(one, other, spread, strict=True)
    )
    assert math.sqrt(change) <= ratio


@pytest.mark.parametrize(("epsilon", "sigma"), [(10.0, 1.060), (3.0, 2.950), (1.0, 7.914)])
def test_known_sigmas_with_the_grid_paid_for(epsilon: float, sigma: float) -> None:
    scales, _, spent = moments.scales_for(epsilon, 1e-5, 64)
    assert scales.sigma == pytest.approx(sigma, abs=1e-3)
    assert epsilon - 1e-3 < spent <= epsilon


def test_exact_moments_against_a_loop() -> None:
    values = np.random.default_rng(0).integers(-2048, 2049, (300, 5))
    labels = np.random.default_rng(1).integers(0, 3, 300)
    counts, sums, triangle = moments.exact_moments(values, labels, 4, 2048)
    second = sum(np.outer(v, v) for v in values)
    assert triangle.tolist() == second[np.triu_indices(5)].tolist()
    assert counts.tolist() == [2048 * int((labels == c).sum()) for c in range(4)]
    assert sums.tolist() == [values[labels == c].sum(0).tolist() for c in range(4)]


def test_noise_has_the_stated_spread() -> None:
    """Without records only noise is left: its spread in each part, within 6 standard errors."""
    k, classes = 40, 300
    digest = make(np.zeros((0, k)), np.zeros(0, dtype=int), classes, epsilon=1.0)
    upper = digest.second[np.triu_indices(k, 1)]
    for part, sigma in (
        (digest.counts, 2 * digest.sigma),
        (digest.sums, digest.sigma),
        (np.diag(digest.second), digest.sigma),
        (upper, digest.sigma / math.sqrt(2)),
    ):
        assert part.std() == pytest.approx(sigma, rel=6 / math.sqrt(2 * part.size))
    assert (digest.second == digest.second.T).all()


def test_much_epsilon_gives_the_moments_themselves() -> None:
    z, y = blobs(500, 3, 6, 0)
    digest = make(z, y, 3, epsilon=600.0)
    np.testing.assert_allclose(digest.counts, np.bincount(y), atol=1)
    np.testing.assert_allclose(digest.second, z.T @ z, atol=1)
    np.testing.assert_allclose(digest.sums, [z[y == c].sum(0) for c in range(3)], atol=1)


def test_claim_and_size() -> None:
    z, y = blobs(2000, 10, 64, 0)
    digest = make(z, y, 10)
    claim = digest.claim
    assert (claim.mode, claim.adjacency, claim.delta) == ("moments", "replace one record", 1e-5)
    assert claim.epsilon_total == claim.epsilon_features == claim.epsilon_labels <= 3.0
    assert claim.guarantee == noise.SEEDED
    assert make(z, y, 10, source=noise.system()).claim.guarantee.startswith("(3, 1e-05)")
    packed, steps = moments.pack(digest)
    assert sum(array.size for array in packed.values()) == 2_730
    assert all(np.abs(array).max() < 2**23 for array in packed.values())
    back = moments.unpack(packed, steps, digest.sigma, claim)
    for name in ("counts", "sums", "second"):
        np.testing.assert_allclose(getattr(back, name), getattr(digest, name), atol=5e-4)


def test_packages_that_do_not_fit_are_refused() -> None:
    digest = make(*blobs(100, 3, 4, 0), 3)
    packed, steps = moments.pack(digest)
    with pytest.raises(HoldfastError, match="missing"):
        moments.unpack({"counts": packed["counts"]}, steps, 1.0, digest.claim)
    with pytest.raises(HoldfastError, match="do not fit"):
        moments.unpack({**packed, "second": packed["second"][:-1]}, steps, 1.0, digest.claim)
    with pytest.raises(HoldfastError, match="not finite"):
        moments.unpack(packed, {**steps, "sums": math.inf}, 1.0, digest.claim)


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
    assert make(z * 5, y, 3).clipped == 200
    assert make(z, y, 3).clipped == 0


def test_lda_learns_and_skips_a_class_nobody_holds() -> None:
    """Class 4 has one record: its cell is not trusted, and no record is ever given to it or to the empty class 5."""
    clients = []
    for seed in range(3):
        z, y = blobs(600, 4, 8, seed)
        clients.append(make(np.vstack([z, z[:1]]), np.append(y, 4), 6, source=noise.seeded(seed)))
    weight, bias = sampling.lda(clients)
    z, y = blobs(1000, 4, 8, 50)
    right = ((torch.from_numpy(z).float() @ weight.T + bias).argmax(1).numpy() == y).mean()
    assert right > 0.9
    assert torch.isinf(bias[4:]).all()
    drawn = sampling.sample(clients, torch.Generator().manual_seed(0))
    assert all(set(labels.tolist()) <= {0, 1, 2, 3} for _, labels in drawn)


def test_lda_without_noise_is_the_textbook() -> None:
    z, y = blobs(900, 3, 5, 3)
    digest = make(z, y, 3, epsilon=690.0)
    digest = dataclasses.replace(
        digest,
        counts=np.bincount(y) * 1.0,
        sums=np.stack([z[y == c].sum(0) for c in range(3)]),
        second=z.T @ z,
        sigma=0.0,
    )
    weight, bias = sampling.lda([digest])
    means = np.stack([z[y == c].mean(0) for c in range(3)])
    within = (z - means[y]).T @ (z - means[y]) / 900
    expected = np.linalg.solve(within, means.T).T
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-3)
    constants = -0.5 * (expected * means).sum(1) + np.log(np.bincount(y))
    np.testing.assert_allclose(bias.numpy(), constants, rtol=1e-3)


def test_samples_look_like_the_client() -> None:
    clients = []
    for seed in range(2):
        z, y = blobs(2000, 3, 6, seed)
        z[:, 0] += 0.3 * seed  # the second client differs
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        clients.append((z, y, make(z, y, 3, source=noise.seeded(seed))))
    drawn = sampling.sample([c[2] for c in clients], torch.Generator().manual_seed(1), count=3000)
    for (z, y, _), (features, labels) in zip(clients, drawn, strict=True):
        assert len(labels) == 3000
        np.testing.assert_allclose(features.norm(dim=1), 1.0, atol=1e-5)
        for c in range(3):
            np.testing.assert_allclose(features[labels == c].mean(0), z[y == c].mean(0), atol=0.06)
        shares = torch.bincount(labels, minlength=3).numpy() / 3000
        np.testing.assert_allclose(shares, np.bincount(y) / 2000, atol=0.02)


def test_samples_repeat_with_their_generator() -> None:
    digests = [make(*blobs(500, 3, 6, 0), 3)]
    one, other = (sampling.sample(digests, torch.Generator().manual_seed(4))[0][0] for _ in range(2))
    assert torch.equal(one, other)
    assert not torch.equal(one, sampling.sample(digests, torch.Generator().manual_seed(5))[0][0])


def test_shrinkage_follows_the_noise() -> None:
    """Equal clients: all difference is noise, so their means shrink to the class mean; no noise: nothing shrinks."""
    z, y = blobs(1200, 2, 4, 0)
    same = [make(z[i::4], y[i::4], 2, epsilon=0.5, source=noise.seeded(i)) for i in range(4)]
    pooled = sampling.pool(same)
    raw = [d.sums / d.counts[:, None] for d in same]
    shrunk = sampling.shrunk_means(same, pooled)
    before = np.mean([np.abs(r - pooled.means).mean() for r in raw])
    after = np.mean([np.abs(s - pooled.means).mean() for s in shrunk])
    assert after < before
    clear = [dataclasses.replace(d, sigma=0.0) for d in same]
    for kept, mean in zip(sampling.shrunk_means(clear, sampling.pool(clear)), raw, strict=True):
        np.testing.assert_allclose(kept, mean, atol=1e-9)


def test_pooling_refuses_what_it_cannot_use() -> None:
    with pytest.raises(HoldfastError, match="none"):
        sampling.pool([])
    with pytest.raises(HoldfastError, match="disagree"):
        sampling.pool([make(*blobs(100, 2, 3, 0), 2), make(*blobs(100, 2, 4, 0), 2)])
    with pytest.raises(HoldfastError, match="enough records"):
        sampling.pool([make(*blobs(6, 2, 3, 0), 2)])


def test_covariance_stays_positive_under_heavy_noise() -> None:
    digests = [make(*blobs(400, 3, 20, i), 3, epsilon=0.2, source=noise.seeded(i)) for i in range(3)]
    assert np.linalg.eigvalsh(sampling.pool(digests).covariance).min() > 0


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=6), st.integers(0, 500))
@settings(derandomize=True, deadline=None)
def test_shares_add_up(weights: list[float], count: int) -> None:
    found = sampling.shares(np.array(weights), count)
    total = sum(weights)
    assert found.sum() == (count if total > 0 else 0)
    if total > 0:
        assert np.abs(found - np.array(weights) / total * count).max() < 1 + 1e-6
