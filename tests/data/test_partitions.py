"""Who holds what: nothing twice, nobody empty, the same seed the same partition, and the promised skew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.data.partitions import (
    PARTITIONS,
    Dirichlet,
    Iid,
    RandomClasses,
    Shards,
    class_counts,
    divide,
    split,
)

ALL = [Iid(), Dirichlet(0.1, 1), Dirichlet(5.0, 2), RandomClasses(), RandomClasses(1, 3), RandomClasses(2, 2), Shards()]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def labels_of(sizes: list[int], seed: int) -> Tensor:
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return labels[torch.randperm(len(labels), generator=seeded(seed))]


cases = st.tuples(
    st.sampled_from(ALL),
    st.lists(st.integers(1, 40), min_size=2, max_size=8),
    st.integers(1, 12),
    st.integers(0, 2**31),
)


def possible(partition: Any, sizes: list[int], clients: int) -> bool:
    """Whether the request can be met at all, so that refusing it would be wrong."""
    if isinstance(partition, RandomClasses):
        enough_classes = clients * (partition.max_classes or len(sizes)) >= len(sizes) >= partition.min_classes
        return enough_classes and sum(sizes) >= clients * partition.min_classes
    each = {Iid: 1, Dirichlet: getattr(partition, "min_size", 1), Shards: 2}[type(partition)]
    return sum(sizes) >= clients * each


@settings(max_examples=300)
@given(cases)
def test_every_partition_is_disjoint_covering_and_leaves_nobody_empty(case: Any) -> None:
    partition, sizes, clients, seed = case
    labels = labels_of(sizes, seed)
    if not possible(partition, sizes, clients):
        with pytest.raises(HoldfastError, match="partition"):
            partition(labels, clients, seeded(seed))
        return
    if partition == RandomClasses(2, 2):
        assume(min(sizes) >= clients)  # two different classes for each: small classes may run out
    parts = partition(labels, clients, seeded(seed))
    assert len(parts) == clients
    assert all(part.dtype == torch.int64 and len(part) >= 1 for part in parts)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(labels)))
    assert all(torch.equal(part, part.sort().values) for part in parts)


@settings(max_examples=100)
@given(cases)
def test_same_seed_same_partition_and_the_counts_do_not_depend_on_the_order_of_the_labels(case: Any) -> None:
    partition, sizes, clients, seed = case
    labels = labels_of([size + 2 * clients for size in sizes], seed)
    if isinstance(partition, RandomClasses) and clients * (partition.max_classes or 99) < len(sizes):
        return
    parts = partition(labels, clients, seeded(seed))
    again = partition(labels, clients, seeded(seed))
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    if isinstance(partition, Iid):
        return
    other = labels.sort().values
    counts = class_counts(parts, labels, len(sizes))
    assert torch.equal(counts, class_counts(partition(other, clients, seeded(seed)), other, len(sizes)))


@pytest.mark.parametrize("partition", ALL)
def test_another_seed_is_another_partition(partition: Any) -> None:
    labels = labels_of([100] * 5, 0)
    first, second = partition(labels, 5, seeded(1)), partition(labels, 5, seeded(2))
    assert any(not torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_iid_shares_differ_by_one_at_most() -> None:
    assert sorted(map(len, Iid()(torch.zeros(11), 4, seeded(0)))) == [2, 3, 3, 3]


@settings(max_examples=60)
@given(st.floats(1e-6, 10), st.integers(1, 20), st.integers(1, 15), st.integers(0, 2**31))
def test_dirichlet_keeps_the_minimum_even_where_redrawing_is_hopeless(
    mu: float, clients: int, least: int, s: int
) -> None:
    labels = labels_of([clients * least // 3 + 1] * 3, s)  # hardly more than the minimum asks for
    parts = Dirichlet(mu, least)(labels, clients, seeded(s))
    assert min(map(len, parts)) >= least
    assert sum(map(len, parts)) == len(labels)


def test_dirichlet_shares_have_the_moments_of_the_distribution() -> None:
    """A share has mean 1/K and variance (K-1) / (K^2 (K mu + 1)): for K = 4, mu = 0.5 it is 3/48 = 0.0625."""
    labels = torch.arange(200).repeat_interleave(500)
    counts = class_counts(Dirichlet(0.5, 1)(labels, 4, seeded(3)), labels, 200)
    shares = counts.double() / 500
    assert torch.allclose(shares.mean(1), torch.full((4,), 0.25, dtype=torch.float64), atol=0.06)
    assert float(((shares - 0.25) ** 2).mean()) == pytest.approx(0.0625, rel=0.12)


def test_a_draw_that_suits_is_not_touched() -> None:
    """The first draw of NumPy's generator, when it already gives everybody enough, is the partition."""
    labels = torch.arange(3).repeat_interleave(1000)
    generator = np.random.default_rng(int(torch.randint(2**63 - 1, (1,), generator=seeded(0))))
    expected = divide(np.array([1000] * 3), generator.dirichlet([2.0] * 3, 3))
    assert expected.sum(1).min() >= 10
    counts = class_counts(Dirichlet(2.0)(labels, 3, seeded(0)), labels, 3)
    assert counts.tolist() == expected.tolist()


def test_of_hopeless_draws_the_one_that_lacks_fewest_is_mended_and_no_more_is_moved() -> None:
    labels = torch.arange(3).repeat_interleave(60)
    partition, clients = Dirichlet(0.05, 8), 12
    generator = np.random.default_rng(int(torch.randint(2**63 - 1, (1,), generator=seeded(0))))
    draws = [divide(np.array([60] * 3), generator.dirichlet([0.05] * clients, 3)) for _ in range(200)]
    lacking = [int(np.maximum(8 - draw.sum(1), 0).sum()) for draw in draws]
    assert min(lacking) > 0
    counts = class_counts(partition(labels, clients, seeded(0)), labels, 3).numpy()
    change = counts - draws[int(np.argmin(lacking))]
    assert np.maximum(change.sum(1), 0).sum() == min(lacking)
    assert np.maximum(change, 0).sum() == min(lacking)


def test_small_mu_is_skewed_and_large_mu_is_even() -> None:
    labels = torch.arange(6000) % 10
    skewed = class_counts(Dirichlet(0.05)(labels, 10, seeded(0)), labels, 10)
    even = class_counts(Dirichlet(1000.0)(labels, 10, seeded(0)), labels, 10)
    assert (skewed == 0).float().mean() > 0.4
    assert 45 < int(even.min()) <= int(even.max()) < 75


def test_shares_become_counts_that_add_up() -> None:
    sizes = np.array([7, 1, 1000])
    shares = np.random.default_rng(0).dirichlet([0.3] * 9, 3)
    counts = divide(sizes, shares)
    assert counts.sum(0).tolist() == [7, 1, 1000]
    assert np.abs(counts.T - shares * sizes[:, None]).max() <= 1.0


@settings(max_examples=100)
@given(st.integers(1, 4), st.integers(0, 4), st.integers(3, 15), st.integers(0, 2**31))
def test_random_classes_keep_their_bounds_and_every_class_is_held(least: int, more: int, clients: int, s: int) -> None:
    labels = labels_of([60] * 6, s)
    partition = RandomClasses(least, min(least + more, 6))
    if clients * min(least + more, 6) < 6:
        return
    counts = class_counts(partition(labels, clients, seeded(s)), labels, 6)
    held = (counts > 0).sum(1)
    assert int(held.min()) >= least
    assert int(held.max()) <= least + more
    assert (counts.sum(0) == 60).all()


def test_random_classes_draw_both_numbers_at_random() -> None:
    labels = torch.arange(10000) % 10
    counts = class_counts(RandomClasses()(labels, 50, seeded(0)), labels, 10)
    held = (counts > 0).sum(1)
    assert len(held.unique()) >= 8  # uniform in 1..10
    assert float(held.float().mean()) == pytest.approx(5.5, abs=1.2)
    assert len(counts[counts > 0].unique()) > 50


def test_one_sample_for_each_client_is_enough_for_random_classes() -> None:
    for seed in range(20):
        parts = RandomClasses()(torch.arange(3), 3, seeded(seed))
        assert list(map(len, parts)) == [1, 1, 1]


def test_shards_of_equal_classes_give_two_classes_each() -> None:
    labels = labels_of([20] * 10, 0)
    counts = class_counts(Shards(2)(labels, 10, seeded(0)), labels, 10)
    assert set(counts.unique().tolist()) <= {0, 10, 20}  # 20 shards of 10, none across two classes
    assert (counts.sum(1) == 20).all()
    assert int((counts > 0).sum(1).max()) == 2


@pytest.mark.parametrize(
    ("partition", "labels", "clients", "words"),
    [
        (Iid(), torch.zeros(3), 4, "3 samples are too few for 4 clients"),
        (Iid(), torch.zeros(3), 0, "must be at least 1, got 0"),
        (Dirichlet(), torch.zeros(30, 2), 1, "one whole-number label"),
        (Dirichlet(0.1, 10), torch.arange(39) % 2, 4, "39 samples are too few for 4 clients with at least 10 each"),
        (Shards(2), torch.arange(7), 4, "too few for 4 clients with at least 2 each"),
        (RandomClasses(3, 3), torch.arange(20) % 2, 4, "min_classes is 3, the data has 2 classes"),
        (RandomClasses(1, 2), torch.arange(20) % 10, 4, "cannot hold all 10; raise max_classes"),
        (RandomClasses(2, 2), torch.tensor([0] * 20 + [1]), 4, "too few samples to give 4 clients 2 of them"),
    ],
)
def test_the_impossible_is_refused(partition: Any, labels: Tensor, clients: int, words: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        partition(labels, clients, seeded(0))
    assert words in str(caught.value)


def test_partitions_are_choices_with_options() -> None:
    assert choose(PARTITIONS, Choice.parse("dirichlet:0.5", "partition"), "partition") == Dirichlet(0.5)
    assert choose(PARTITIONS, Choice.parse("shards:3", "partition"), "partition") == Shards(3)
    spec = {"name": "classes", "min_classes": 2, "max_classes": 4}
    assert choose(PARTITIONS, Choice.parse(spec, "partition"), "partition") == RandomClasses(2, 4)
    for bad in (
        "dirichlet:0",
        "dirichlet:nan",
        "dirichlet:min_size=0",
        "shards:0",
        "classes:0",
        "classes:max_classes=0",
    ):
        with pytest.raises(HoldfastError, match="partition"):
            choose(PARTITIONS, Choice.parse(bad, "partition"), "partition")


@settings(max_examples=100)
@given(st.integers(1, 500), st.integers(0, 2**31))
def test_split_is_disjoint_and_covering_and_train_is_the_largest(n: int, seed: int) -> None:
    index = torch.randperm(1000, generator=seeded(seed))[:n]
    train, validation, test = split(index, seeded(seed))
    assert torch.equal(torch.cat([train, validation, test]).sort().values, index.sort().values)
    assert len(train) >= max(len(validation), len(test), 1)
    assert len(train) >= 0.8 * n or n < 10
    assert len(validation) >= 1 or n < 2
    assert len(test) >= 1 or n < 3
    again = split(index, seeded(seed))
    assert torch.equal(again[2], test)


def test_split_is_random_and_refuses_nothing_at_all() -> None:
    index = torch.arange(100)
    assert not torch.equal(split(index, seeded(0))[2], split(index, seeded(1))[2])
    with pytest.raises(HoldfastError, match="without any sample"):
        split(index[:0], seeded(0))
