"""Stretched rows have the spread of the records that were mixed, whatever mixed them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from release_helpers import ABOUT, method
from torch import Tensor

from holdfast.absence import FedDig
from holdfast.context import About
from holdfast.digests.digest import Digest, make_digest, seal_digest
from holdfast.digests.mixing import Laplace, Strategy, read_weights
from holdfast.digests.received import samples_of
from holdfast.digests.release import make_release
from holdfast.digests.stretching import class_means, spread_of, stretched
from holdfast.privacy.noise import seeded

MEANS = torch.tensor([[0.3, 0.0, 0.0], [0.0, 0.4, 0.0], [0.1, 0.1, -0.4]])
ROOTS = torch.diag_embed(torch.tensor([[0.20, 0.10, 0.05], [0.05, 0.20, 0.10], [0.10, 0.10, 0.10]]))


def records(each: int = 2000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """So many records of each of three classes, with their own means and covariances."""
    labels = torch.arange(3).repeat_interleave(each)
    noise = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(seed))
    return MEANS[labels] + (ROOTS[labels] @ noise[:, :, None])[:, :, 0], labels


def mixed(
    features: Tensor, labels: Tensor, spd: int = 4, weights: str = "balanced", strategy: Strategy = "within"
) -> Digest:
    chance = torch.Generator().manual_seed(1)
    return make_digest(features, labels, 3, spd=spd, weights=read_weights(weights), strategy=strategy, generator=chance)


@pytest.mark.parametrize(
    ("spd", "weights"), [(1, "balanced"), (2, "balanced"), (4, "balanced"), (3, "0.5/0.3/0.2"), (4, "random")]
)
def test_each_class_has_the_second_moments_of_its_records(spd: int, weights: str) -> None:
    features, labels = records()
    digest = mixed(features, labels, spd, weights)
    found = stretched(digest)
    for c in range(3):
        own, rows, raw = features[labels == c], found.features[found.labels[:, c] == 1], digest.labels[:, c] == 1
        assert torch.allclose(rows.mean(0), digest.features[raw].mean(0), atol=1e-6)  # means stay
        assert torch.allclose(rows.T.cov(), own.T.cov(), atol=0.006)  # largest: 0.04
        assert torch.allclose(digest.features[raw].T.cov(), own.T.cov() * spread_of(digest), atol=0.003)


def test_rows_of_several_classes_spread_around_the_means_that_were_solved_for() -> None:
    features, labels = records(4000)
    digest = mixed(features, labels, strategy="across")
    found = stretched(digest)
    means = class_means(digest.features.double(), digest.labels.double())
    assert torch.allclose(means.float(), MEANS, atol=0.02)
    rest = found.features - found.labels @ means.float()
    usual = (ROOTS @ ROOTS).mean(0)  # sum_k w_k^2 S_c / s: all classes are as frequent
    assert torch.allclose(rest.T.cov(), usual, atol=0.003)
    assert torch.equal(found.labels, digest.labels)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_where_rows_are_few_they_spread_by_the_share_that_was_derived(rows: int) -> None:
    """(1 - (1 - s)/n) S around the true mean: of one row s S, as it was."""
    spd, times = 4, 3000
    chance = torch.Generator().manual_seed(2)
    many = torch.randn(times, rows, spd, generator=chance).mean(2)
    labels = torch.ones(rows, 1)
    found = [
        stretched(Digest(some_rows[:, None], labels, "", "", spd, "within", "balanced", "none", 40, 40)).features
        for some_rows in many
    ]
    share = 1 - (1 - 1 / spd) / rows
    assert float(torch.cat(found).square().mean()) == pytest.approx(share, rel=0.06)


def test_the_part_of_the_papers_noise_is_taken_off() -> None:
    features, labels = records(8000)
    noise = Laplace(epsilon=0.005, samples=8000, seed=3)  # of scale 0.025 tau
    digest = make_digest(features, labels, 3, noise=noise, strategy="within", generator=torch.Generator())
    variance = 2 * noise.scale(float(features.abs().max())) ** 2
    for c in range(3):
        at = digest.labels[:, c] == 1
        spread = stretched(digest, noise=variance).features[at].T.cov().trace()
        assert float(stretched(digest).features[at].T.cov().trace()) > 1.2 * float((ROOTS[c] @ ROOTS[c]).trace())
        assert float(spread) == pytest.approx(float((ROOTS[c] @ ROOTS[c]).trace()), rel=0.1)


def test_rows_that_are_nothing_but_noise_shrink_to_their_mean() -> None:
    labels = torch.ones(50, 1)
    rows = torch.randn(50, 3, generator=torch.Generator().manual_seed(4))
    digest = Digest(rows, labels, "", "", 4, "within", "balanced", "noise", 200, 200)
    assert torch.allclose(stretched(digest, noise=4.0).features, rows.mean(0).expand(50, 3), atol=1e-6)


@pytest.mark.parametrize("options", [FedDig(mode="dp-label-public", epsilon=100.0), FedDig(spd=2, epsilon=0.005)])
def test_what_stands_in_is_as_wide_as_the_records_also_under_noise(options: FedDig) -> None:
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(4).repeat_interleave(1000)
    noise = 0.2 * torch.randn(4000, 9, generator=generator)
    features = 0.5 * torch.nn.functional.normalize(torch.eye(9)[labels] + noise)  # short, so that no bound is met
    sealed, _ = make_release(options, ABOUT, features, labels, generator, seeded(6))

    def spread(rows: Tensor, classes: Tensor) -> float:
        return sum(float(rows[classes == c].T.cov().trace()) for c in range(4))

    [found] = samples_of(options, method(options), {0: sealed}, 0, [0])
    [raw] = samples_of(replace(options, printed=True), method(options), {0: sealed}, 0, [0])
    own = spread(features, labels)
    assert spread(found.features, found.labels.argmax(1)) == pytest.approx(own, rel=0.15)
    assert abs(spread(raw.features, raw.labels.argmax(1)) - own) > 0.3 * own


def test_what_a_client_says_of_its_mixing_does_not_count() -> None:
    features, labels = records(40)
    digest = mixed(0.1 * features, labels)
    options, about = FedDig(), About("corners", 3, "finger", (3,), norm_bound=1.0)
    rows = {}
    for weights in ("balanced", "1e-9/0/0/0", "random", "nonsense"):
        bench = method(options)
        bench = replace(bench, bench=replace(bench.bench, about=about))
        sealed = seal_digest(replace(digest, task="corners", encoder="finger", weights=weights, signed=False))
        [found] = samples_of(options, bench, {0: sealed}, 0, [0])
        rows[weights] = found.features
    assert all(torch.equal(rows["balanced"], found) for found in rows.values())


@given(
    some.integers(1, 40), some.sampled_from([1, 2, 4, 9]), some.floats(0, 2), some.integers(0, 2**32), some.booleans()
)
def test_stretched_rows_keep_within_what_records_can_be(
    rows: int, spd: int, noise: float, seed: int, signed: bool
) -> None:
    chance = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, 2, 3, generator=chance)
    labels = torch.distributions.Dirichlet(torch.full((3,), 0.3)).sample((rows,))
    digest = Digest(features, labels, "", "", spd, "across", "balanced", "none", rows * spd, rows * spd, signed=signed)
    found = stretched(digest, 1.0, noise)
    assert found.features.shape == features.shape
    assert bool(found.features.isfinite().all())
    assert float(found.features.flatten(1).norm(dim=1).max()) <= 1.0 + 1e-5
    assert signed or float(found.features.min()) >= 0
    if noise == 0 and spd > 1 and signed:
        wide = stretched(digest).features.flatten(1).double()
        middle = labels.double() @ class_means(features.flatten(1).double(), labels.double())
        assert torch.allclose(wide - middle, math.sqrt(spd) * (features.flatten(1).double() - middle), atol=1e-4)
