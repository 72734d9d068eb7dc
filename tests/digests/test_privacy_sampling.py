"""What the moderator makes of moment digests: pooled means, covariances, and samples that stand in for a client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from moments_helpers import blobs, make

from holdfast.core.errors import HoldfastError
from holdfast.digests import moment_sampling as sampling
from holdfast.privacy import noise


def test_a_class_nobody_has_enough_of_is_never_drawn() -> None:
    """Class 4 has one record: its cell is not trusted, and no sample is ever given to it or to the empty class 5."""
    clients = []
    for seed in range(3):
        z, y = blobs(600, 4, 8, seed)
        clients.append(make(np.vstack([z, z[:1]]), np.append(y, 4), 6, source=noise.seeded(seed)))
    pooled = sampling.pool(clients)
    assert not pooled.counts[:, 4:].any()
    assert not pooled.covariances[4:].any()
    for client in range(3):
        features, labels = sampling.draw(pooled, client, torch.Generator().manual_seed(0))
        assert set(labels.tolist()) == {0, 1, 2, 3}
        assert torch.isfinite(features).all()


def test_without_noise_each_class_has_its_own_shape() -> None:
    """Two classes that are wide along different axes: what is drawn has each one's mean, and its widest axes."""
    random = np.random.default_rng(0)
    y = np.arange(6000) % 2
    wide = np.full((2, 12), 0.2)
    wide[0, 2:5], wide[1, 5:8] = 0.6, 0.6
    z = 2 * np.eye(12)[y] + wide[y] * random.normal(size=(6000, 12))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    features, labels = sampling.draw(sampling.pool([make(z, y, 2, epsilon=600.0)]), 0, torch.Generator().manual_seed(0))
    wanted = [np.cov(z[y == c].T) for c in range(2)]
    for c in range(2):
        drawn = features[labels == c].numpy()
        np.testing.assert_allclose(drawn.mean(0), z[y == c].mean(0), atol=0.03)
        seen = np.cov(drawn.T)
        assert np.linalg.norm(seen - wanted[c]) < 0.6 * np.linalg.norm(seen - wanted[1 - c])
        assert set(np.argsort(seen.diagonal())[-3:]) == set(np.argsort(wanted[c].diagonal())[-3:])


def test_samples_look_like_the_client() -> None:
    clients = []
    for seed in range(2):
        z, y = blobs(2000, 3, 6, seed)
        z[:, 0] += 0.3 * seed  # the second client differs
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        clients.append((z, y, make(z, y, 3, source=noise.seeded(seed))))
    pooled = sampling.pool([c[2] for c in clients])
    for place, (z, y, _) in enumerate(clients):
        features, labels = sampling.draw(pooled, place, torch.Generator().manual_seed(1))
        np.testing.assert_allclose(features.norm(dim=1), 1.0, atol=1e-5)
        for c in range(3):
            np.testing.assert_allclose(features[labels == c].mean(0), z[y == c].mean(0), atol=0.1)
        np.testing.assert_allclose(torch.bincount(labels, minlength=3).numpy(), np.bincount(y), atol=30)


def test_samples_repeat_with_their_generator() -> None:
    pooled = sampling.pool([make(*blobs(500, 3, 6, 0), 3)])
    one, other = (sampling.draw(pooled, 0, torch.Generator().manual_seed(4))[0] for _ in range(2))
    assert torch.equal(one, other)
    assert not torch.equal(one, sampling.draw(pooled, 0, torch.Generator().manual_seed(5))[0])


def test_shrinkage_by_hand() -> None:
    """Two clients, one class beside another; variances of noise and of true differences put in by hand."""
    counts = torch.tensor([[100.0, 100.0], [100.0, 0.0]], dtype=torch.float64)
    means = torch.tensor([[[0.2], [1.0]], [[-0.2], [0.0]]], dtype=torch.float64)
    shape = torch.ones(1, 1, dtype=torch.float64)
    exact, classes, unsure = sampling.shrunk_means(counts, means, torch.zeros(2, 2, dtype=torch.float64), shape)
    assert torch.allclose(exact[:, 0], means[:, 0])  # no noise: nothing shrinks
    assert torch.allclose(classes, torch.tensor([[0.0], [1.0]], dtype=torch.float64))
    assert not unsure.any()
    # Noise of variance .08: differences of .2 have an excess of .04 - .08/4 = .02, so .02/.1 of each is kept.
    noisy, classes, unsure = sampling.shrunk_means(counts, means, torch.full((2, 2), 0.08, dtype=torch.float64), shape)
    assert float(noisy[0, 0] - classes[0]) == pytest.approx(0.2 * 0.02 / 0.1)
    # Classes: middle 1/3, away -1/3 and 2/3, noise .04 and .08: b = 5/18 - .06, and -1/3 keeps b/(b + .04).
    true = 5 / 18 - 0.06
    assert float(classes[0]) == pytest.approx(1 / 3 - true / (true + 0.04) / 3)
    assert float(unsure[0]) == pytest.approx(true * 0.04 / (true + 0.04))


def test_equal_clients_shrink_to_their_classes() -> None:
    z, y = blobs(1200, 2, 4, 0)
    same = [make(z[i::4], y[i::4], 2, epsilon=0.5, source=noise.seeded(i)) for i in range(4)]
    pooled = sampling.pool(same)
    spread = pooled.means - pooled.means.mean(0)
    raw = np.stack([digest.means for digest in same])
    held = (pooled.counts > 0).numpy()
    assert float(spread.numpy()[held].std()) < (raw - raw.mean(0))[held].std()


def test_denoised_eigenvalues_are_the_true_variances_along_noisy_eigenvectors() -> None:
    """Against the oracle u' W u, which needs the truth: a smooth spectrum under noise that is as wide as all of it."""
    k, sigma = 200, 3.0
    random = np.random.default_rng(0)
    turned = np.linalg.qr(random.normal(size=(k, k)))[0]
    true = (turned * np.linspace(5, 60, k)) @ turned.T
    upper = np.triu(random.normal(0, sigma / np.sqrt(2), (k, k)), 1)
    seen = true + upper + upper.T + np.diag(random.normal(0, sigma, k))
    values, axes = (part.numpy() for part in sampling.denoised(torch.from_numpy(seen), sigma))
    oracle = np.einsum("ki,kl,li->i", axes, true, axes)
    assert np.abs(values - oracle).mean() < 0.2 * np.abs(np.linalg.eigvalsh(seen) - oracle).mean()
    assert np.abs(values - oracle).mean() < 0.5 * np.abs(oracle.mean() - oracle).mean()


def test_the_shared_shape_is_cleaned_of_noise() -> None:
    """A diagonal second moment with two strong directions, through noise: nearer to the truth than what was seen."""
    k, sigma = 40, 20.0
    true = np.diag(np.r_[900.0, 700.0, np.full(k - 2, 30.0)])
    random = np.random.default_rng(0)
    upper = np.triu(random.normal(0, sigma / np.sqrt(2), (k, k)), 1)
    seen = true + upper + upper.T + np.diag(random.normal(0, sigma, k))
    shape = sampling.shared_shape(torch.from_numpy(seen), sigma).numpy()
    assert np.trace(shape) == pytest.approx(1.0)
    wanted = true / np.trace(true)
    assert np.linalg.norm(shape - wanted) < 0.5 * np.linalg.norm(seen / np.trace(seen) - wanted)
    assert np.linalg.eigvalsh(shape).min() > 0


def test_pooling_refuses_what_it_cannot_use() -> None:
    with pytest.raises(HoldfastError, match="none"):
        sampling.pool([])
    with pytest.raises(HoldfastError, match="disagree"):
        sampling.pool([make(*blobs(100, 2, 3, 0), 2), make(*blobs(100, 2, 4, 0), 2)])
    with pytest.raises(HoldfastError, match="enough records"):
        sampling.pool([make(*blobs(6, 2, 3, 0), 2)])


@pytest.mark.parametrize("k", [1, 2, 20])
def test_covariances_stay_positive_under_any_noise(k: int) -> None:
    for epsilon in (0.2, 300.0):
        digests = [make(*blobs(900, 3, k, i), 3, epsilon=epsilon, source=noise.seeded(i)) for i in range(4)]
        if k == 2:  # directions that leave nothing at right angles to them
            strong = np.eye(2)[[0, 1] * 3] * 0.6
            digests[0] = replace(digests[0], strong=strong, owner=np.array([0, 0, 1, 1, 2, 2]))
        pooled = sampling.pool(digests)
        held = pooled.counts.sum(0) > 0
        assert torch.linalg.eigvalsh(pooled.covariances[held]).min() > 0


@pytest.mark.parametrize("trace", [-1e6, -1.0, 0.0])
def test_a_second_moment_of_noise_alone_still_makes_samples(trace: float) -> None:
    digest = make(*blobs(900, 3, 4, 0), 3)
    drowned = replace(digest, shared=trace * np.eye(4))  # few records and much noise, or a liar
    pooled = sampling.pool([drowned])
    assert torch.linalg.eigvalsh(pooled.covariances).min() > 0
    features, _ = sampling.draw(pooled, 0, torch.Generator().manual_seed(0))
    assert features.norm(dim=1).max() < 1 + 1e-6  # and finite
