"""Who holds what: ways to deal the training samples out to the clients, and each client's own three parts.

A partition is called as partition(labels, clients, generator) and gives one sorted tensor of positions for each client:
no sample is held twice, and nobody is left without any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.core.errors import HoldfastError

Counts = NDArray[np.int64]  # clients x classes
DRAWS = 200  # of a whole Dirichlet partition, before the best of them is mended


@dataclass(frozen=True)
class Iid:
    """Every client gets an equal share (give or take one) of the shuffled samples."""

    def __call__(self, labels: Tensor, clients: int, generator: torch.Generator) -> list[Tensor]:
        _check(labels, clients, 1)
        order = torch.randperm(len(labels), generator=generator)
        return [part.sort().values for part in order.tensor_split(clients)]


@dataclass(frozen=True)
class Sizes:
    """The clients' shares of the shuffled samples are drawn from Dirichlet(mu, ..., mu): a small mu makes a few large.

    Every client holds at least min_size samples; labels do not matter.
    """

    mu: float = 1.0
    min_size: int = 10

    def __post_init__(self) -> None:
        _check_draw(self.mu, self.min_size)

    def __call__(self, labels: Tensor, clients: int, generator: torch.Generator) -> list[Tensor]:
        _check(labels, clients, self.min_size)
        shares = _numpy(generator).dirichlet(np.full(clients, self.mu), 1)
        counts = self.min_size + divide(np.array([len(labels) - clients * self.min_size]), shares)[:, 0]
        order = torch.randperm(len(labels), generator=generator)
        return [part.sort().values for part in order.split(counts.tolist())]


@dataclass(frozen=True)
class Dirichlet:
    """For each class, the clients' shares are drawn from Dirichlet(mu, ..., mu): the smaller mu, the more skewed.

    Every sample is held by somebody. The partition is redrawn until every client holds at least min_size samples.
    Where that has little chance (small mu, many clients), of 200 draws the one that lacks fewest samples is mended:
    who holds too few receives random samples of whoever then holds most, and nothing else changes.

    Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, 2019; Hsu et al., 2019.
    """

    needs_classes: ClassVar[bool] = True

    mu: float = 0.1
    min_size: int = 10

    def __post_init__(self) -> None:
        _check_draw(self.mu, self.min_size)

    def __call__(self, labels: Tensor, clients: int, generator: torch.Generator) -> list[Tensor]:
        _check_classes(labels, clients, self.min_size)
        random = _numpy(generator)
        _, sizes = np.unique(labels.numpy(), return_counts=True)
        best, lack = np.zeros((clients, len(sizes)), np.int64), math.inf
        for _ in range(DRAWS):
            shares = random.dirichlet(np.full(clients, self.mu), len(sizes))
            counts = divide(sizes, shares)
            lacking = np.maximum(self.min_size - counts.sum(1), 0).sum()
            if lacking < lack:
                best, lack = counts, lacking
            if lack == 0:
                break
        return _deal(labels, _fill(best, self.min_size, random), random)


@dataclass(frozen=True)
class RandomClasses:
    """Each client gets a random number of classes, and a random share of the samples of each.

    The number of classes is uniform in min_classes..max_classes (none: all there are), raised for some where the
    clients together would hold fewer than all classes. A class's samples are cut at uniformly random places between its
    holders, each getting at least one; so every class is held by somebody and every sample is used once.

    Ghaleb et al., FedTest, section III, which says that both numbers are random but not how they are drawn.
    """

    needs_classes: ClassVar[bool] = True

    min_classes: int = 1
    max_classes: int | None = None

    def __post_init__(self) -> None:
        if self.min_classes < 1:
            raise ValueError(f"min_classes must be at least 1, got {self.min_classes}.")
        if self.max_classes is not None and self.max_classes < self.min_classes:
            raise ValueError(f"max_classes ({self.max_classes}) must not be below min_classes ({self.min_classes}).")

    def __call__(self, labels: Tensor, clients: int, generator: torch.Generator) -> list[Tensor]:
        _check_classes(labels, clients, self.min_classes)
        random = _numpy(generator)
        _, sizes = np.unique(labels.numpy(), return_counts=True)
        most = min(len(sizes), self.max_classes or len(sizes))
        if self.min_classes > len(sizes):
            raise HoldfastError(
                f"partition classes: min_classes is {self.min_classes}, the data has {len(sizes)} classes."
            )
        if clients * most < len(sizes):
            raise HoldfastError(
                f"partition classes: {clients} clients with at most {most} classes each cannot hold all "
                f"{len(sizes)}; raise max_classes."
            )
        held = self._draw(sizes, clients, most, random)
        shares = np.zeros((len(sizes), clients))
        for c, holders in enumerate(held.T):
            shares[c, holders] = random.dirichlet(np.ones(holders.sum()))
        return _deal(labels, held + divide(sizes - held.sum(0), shares), random)

    def _draw(self, sizes: Counts, clients: int, most: int, random: np.random.Generator) -> NDArray[np.bool_]:
        """Who holds which class (clients x classes); a class has no more holders than samples."""
        wanted = random.integers(self.min_classes, most, clients, endpoint=True)
        while wanted.sum() < len(sizes):
            wanted[random.choice(np.flatnonzero(wanted < most))] += 1
        held = np.zeros((clients, len(sizes)), bool)
        for client, number in enumerate(wanted):
            room = sizes - held.sum(0)
            free = np.flatnonzero(room)
            reserved = self.min_classes * (clients - client - 1)  # so that those who come last find something
            if len(free) < self.min_classes:
                raise HoldfastError(
                    f"partition classes: the classes have too few samples to give {clients} clients "
                    f"{self.min_classes} of them each; lower min_classes or the number of clients."
                )
            held[client, random.choice(free, min(number, len(free), room.sum() - reserved), replace=False)] = True
        for c in np.flatnonzero(~held.any(0)):  # some class then has two holders: one of them takes this one instead
            client, spare = random.choice(np.argwhere(held & (held.sum(0) > 1)))
            held[client, spare], held[client, c] = False, True
        return held


@dataclass(frozen=True)
class Shards:
    """The samples, sorted by class, are cut into clients x per_client equal shards; a client gets per_client of them.

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017, section 3.
    """

    needs_classes: ClassVar[bool] = True

    per_client: int = 2

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise ValueError(f"per_client must be at least 1, got {self.per_client}.")

    def __call__(self, labels: Tensor, clients: int, generator: torch.Generator) -> list[Tensor]:
        _check_classes(labels, clients, self.per_client)
        shuffled = torch.randperm(len(labels), generator=generator)
        by_class = shuffled[labels[shuffled].argsort(stable=True)]
        shards = by_class.tensor_split(clients * self.per_client)
        dealt = torch.randperm(len(shards), generator=generator).reshape(clients, self.per_client)
        return [torch.cat([shards[s] for s in row]).sort().values for row in dealt.tolist()]


PARTITIONS: dict[str, type[Any]] = {
    "iid": Iid,
    "sizes": Sizes,
    "dirichlet": Dirichlet,
    "classes": RandomClasses,
    "shards": Shards,
}


def split(index: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """One client's samples in three parts at random: train, validation and test, 80 : 10 : 10.

    Validation and test get a tenth each, rounded down, but at least one sample from three on; of two samples one is for
    validation, and a single one is for training.

    >>> [tuple(map(len, split(torch.arange(n), torch.Generator()))) for n in (1, 2, 3, 10, 29, 100)]
    [(1, 0, 0), (1, 1, 0), (1, 1, 1), (8, 1, 1), (25, 2, 2), (80, 10, 10)]
    """
    n = len(index)
    if n == 0:
        raise HoldfastError("A client without any sample cannot take part; use fewer clients or another partition.")
    tenth = max(n // 10, 1)
    validation, test = (tenth, tenth) if n >= 3 else (n - 1, 0)
    shuffled = index[torch.randperm(n, generator=generator)]
    train = n - validation - test
    parts = (shuffled[:train], shuffled[train : train + validation], shuffled[train + validation :])
    return parts[0].sort().values, parts[1].sort().values, parts[2].sort().values


def class_counts(parts: Sequence[Tensor], labels: Tensor, classes: int) -> Tensor:
    """How many samples of each class each client holds: clients x classes.

    >>> class_counts([torch.tensor([0, 1]), torch.tensor([2])], torch.tensor([1, 1, 0]), 2).tolist()
    [[0, 2], [1, 0]]
    """
    return torch.stack([torch.bincount(labels[part], minlength=classes) for part in parts])


def divide(sizes: Counts, shares: NDArray[np.float64]) -> Counts:
    """Whole counts (clients x classes) from class sizes and shares (classes x clients): cut at the rounded running sum.

    >>> divide(np.array([10, 3]), np.array([[0.25, 0.75], [0.5, 0.5]])).tolist()
    [[2, 2], [8, 1]]
    """
    ends = np.rint(np.cumsum(shares, 1) / shares.sum(1, keepdims=True) * sizes[:, None]).astype(np.int64)
    counts: Counts = np.diff(ends, axis=1, prepend=0).T
    return counts


def _fill(counts: Counts, min_size: int, random: np.random.Generator) -> Counts:
    """Every client raised to min_size with random samples of whoever then holds most."""
    counts = counts.copy()
    for client in np.flatnonzero(counts.sum(1) < min_size):
        while (lack := min_size - counts[client].sum()) > 0:
            totals = counts.sum(1)
            donor = totals.argmax()
            moved = random.multivariate_hypergeometric(counts[donor], min(lack, totals[donor] - min_size))
            counts[donor] -= moved
            counts[client] += moved
    return counts


def _deal(labels: Tensor, counts: Counts, random: np.random.Generator) -> list[Tensor]:
    """Positions for each client: counts[client, class] random samples of each class, all of them used."""
    shuffled = random.permutation(len(labels))
    by_class = shuffled[labels.numpy()[shuffled].argsort(kind="stable")]
    clients, classes = counts.shape
    owner = np.repeat(np.tile(np.arange(clients), classes), counts.T.ravel())
    parts = np.split(by_class[owner.argsort(kind="stable")], counts.sum(1).cumsum()[:-1])
    return [torch.from_numpy(np.sort(part)) for part in parts]


def _numpy(generator: torch.Generator) -> np.random.Generator:
    """NumPy's generator, seeded from PyTorch's, which draws no Dirichlet of its own."""
    return np.random.default_rng(int(torch.randint(2**63 - 1, (1,), generator=generator)))


def _check_draw(mu: float, min_size: int) -> None:
    if not (math.isfinite(mu) and mu > 0):
        raise ValueError(f"mu must be above 0, got {mu}.")
    if min_size < 1:
        raise ValueError(f"min_size must be at least 1, got {min_size}.")


def _check_classes(labels: Tensor, clients: int, each: int) -> None:
    if labels.ndim != 1:
        raise HoldfastError(f"partition: expected one whole-number label per sample, got shape {tuple(labels.shape)}.")
    _check(labels, clients, each)


def _check(labels: Tensor, clients: int, each: int) -> None:
    if clients < 1:
        raise HoldfastError(f"partition: the number of clients must be at least 1, got {clients}.")
    if len(labels) < clients * each:
        raise HoldfastError(
            f"partition: {len(labels)} samples are too few for {clients} clients with at least {each} each; "
            f"use fewer clients or more data."
        )
