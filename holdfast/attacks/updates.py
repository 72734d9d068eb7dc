"""Attacks on the updates themselves: hostile clients send something else than they learnt.

An attack is a frozen dataclass whose fields are its options. `tamper(sight)` returns the deltas that the hostile
clients send; those marked `omniscient` need to see the honest clients' deltas, as a coalition with a spy would. In a
round in which no honest client is there, these send what they learnt: delta_i = own_i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import ClassVar, Literal

import torch
from torch import Tensor

from holdfast.attacks.contract import Attack
from holdfast.core.errors import HoldfastError
from holdfast.core.rows import dots, inner_products, squared_distances
from holdfast.core.types import Tensors


@dataclass(frozen=True)
class Sight:
    """What the hostile clients of a round see, as flat vectors."""

    own: Tensor  # (h, d): the deltas they would send if they were honest
    honest: Tensor  # (g, d): the deltas of the others; only for the omniscient
    model: Tensor  # (d,): the model they were sent
    generator: torch.Generator
    previous: Tensor | None = None  # (d,): how the model moved in the round before; only for those that `looks_back`
    like: Tensors = field(default_factory=dict)  # the names and shapes behind a vector, in its order

    def noise(self) -> Tensor:
        """Standard normal values in the shape of their deltas."""
        return torch.randn(self.own.shape, generator=self.generator, dtype=self.own.dtype)

    def same(self, vector: Tensor) -> Tensor:
        """All of them send this one vector."""
        return vector.to(self.own.dtype).expand_as(self.own).clone()


@dataclass(frozen=True)
class RandomWeights(Attack):
    """Sends a model with random weights, as large as its own would have been: the hostile client of FedTest.

        delta_i = r - w,    r ~ N(0, (scale x rms(w + own_i))^2)

    Ghaleb et al.: Federated Testing (FedTest), section IV.
    """

    scale: float = 1.0
    kind: ClassVar[tuple[str, ...]] = ("update",)

    def tamper(self, sight: Sight) -> Tensor:
        size = (sight.model + sight.own).square().mean(1, keepdim=True).sqrt()
        return self.scale * size * sight.noise() - sight.model


@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends the opposite of what it learnt: delta_i = -scale x own_i (Li et al., RSA, AAAI 2019)."""

    scale: float = 1.0
    kind: ClassVar[tuple[str, ...]] = ("update",)

    def tamper(self, sight: Sight) -> Tensor:
        return -self.scale * sight.own


@dataclass(frozen=True)
class Gaussian(Attack):
    """Sends noise: delta_i ~ N(0, sd^2) in each coordinate (Blanchard et al., NeurIPS 2017)."""

    sd: float = 1.0
    kind: ClassVar[tuple[str, ...]] = ("update",)

    def tamper(self, sight: Sight) -> Tensor:
        return self.sd * sight.noise()


@dataclass(frozen=True)
class Scale(Attack):
    """Shouts: delta_i = scale x own_i, so that it outweighs the others (Bagdasaryan et al., AISTATS 2020)."""

    scale: float = 10.0
    kind: ClassVar[tuple[str, ...]] = ("update",)

    def tamper(self, sight: Sight) -> Tensor:
        return self.scale * sight.own


@dataclass(frozen=True)
class ALittleIsEnough(Attack):
    """Hides within the honest spread: delta = mean + z x standard deviation, in each coordinate.

        s = floor(n / 2 + 1) - f,    z = Phi^-1((n - f - s) / (n - f))

    unless z is given: with s honest clients beyond it, mean + z sd still looks like the majority. In a round in which
    so many honest clients are away that no z follows, it sends what it learnt: delta_i = own_i.

    >>> round(ALittleIsEnough().reach(50, 24), 4)  # s = 2: Phi^-1(24 / 26)
    1.4261

    Baruch, Baruch, Goldberg: A Little Is Enough, NeurIPS 2019.
    """

    z: float | None = None
    kind: ClassVar[tuple[str, ...]] = ("update",)
    omniscient: ClassVar[bool] = True

    def reach(self, n: int, f: int) -> float:
        """z for f hostile clients of n."""
        if self.z is not None:
            return self.z
        share = (n - f - (n // 2 + 1 - f)) / (n - f) if n > f else 1.0
        if not 0 < share < 1:
            raise HoldfastError(
                f"attack 'alie': no z follows from {f} hostile clients of {n}; say one, as in alie:1.5."
            )
        return NormalDist().inv_cdf(share)

    def check(self, clients: int, attackers: int) -> None:
        self.reach(clients, attackers)

    def tamper(self, sight: Sight) -> Tensor:
        hostile = len(sight.own)
        try:
            z = self.reach(len(sight.honest) + hostile, hostile)
        except HoldfastError:
            return sight.own
        return sight.same(sight.honest.mean(0) + z * sight.honest.std(0, correction=0))


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Turns the average around: delta = -epsilon x mean of the honest deltas.

    The plain mean of all then points against the honest one if epsilon x f > n - f.

    Xie, Koyejo, Gupta: Fall of Empires, UAI 2020.
    """

    epsilon: float = 0.5
    kind: ClassVar[tuple[str, ...]] = ("update",)
    omniscient: ClassVar[bool] = True

    def tamper(self, sight: Sight) -> Tensor:
        return sight.same(-self.epsilon * sight.honest.mean(0))


@dataclass(frozen=True)
class Mimic(Attack):
    """All copy one honest client, the most extreme one, so that the others lose weight.

        z = the direction in which the honest deltas vary most,    i* = argmax |<z, x_i>|,    delta = x_i*

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022.
    """

    kind: ClassVar[tuple[str, ...]] = ("update",)
    omniscient: ClassVar[bool] = True

    def tamper(self, sight: Sight) -> Tensor:
        gram = inner_products(sight.honest, torch.arange(len(sight.honest)))
        centred = gram - gram.mean(0)  # <x_i - mean, x_j>
        direction = torch.linalg.eigh(centred - centred.mean(1, keepdim=True)).eigenvectors[:, -1]
        return sight.same(sight.honest[int((direction @ centred).abs().argmax())])


@dataclass(frozen=True)
class MinMax(Attack):
    """As far from the mean as can be while no farther from any honest delta than two of them are from each other.

        delta = mean + gamma p,    gamma the largest with max_i |delta - x_i| <= max_ij |x_i - x_j|

    p is against the standard deviation, the mean (unit length) or its sign; gamma is the least root of n quadratics.

    Shejwalkar, Houmansadr: Manipulating the Byzantine, NDSS 2021.
    """

    direction: Literal["std", "unit", "sign"] = "std"
    kind: ClassVar[tuple[str, ...]] = ("update",)
    omniscient: ClassVar[bool] = True

    def tamper(self, sight: Sight) -> Tensor:
        mean = sight.honest.mean(0)
        p, gram, square = _against(sight.honest, mean, self.direction)
        away = gram.diagonal() - 2 * gram.mean(1) + gram.mean()  # |mean - x_i|^2
        towards = p.double() @ mean.double() - dots(sight.honest, p, torch.arange(len(gram)))  # <p, mean - x_i>
        room = (squared_distances(gram).max() - away).clamp_min(0)
        gammas = ((towards.square() + square * room).sqrt() - towards) / square
        return sight.same(mean + float(gammas.min()) * p if square > 0 else mean)


@dataclass(frozen=True)
class MinSum(Attack):
    """As min-max, with the sum of squared distances to all honest deltas at most that of the farthest honest one.

        gamma the largest with sum_i |delta - x_i|^2 <= max_i sum_j |x_i - x_j|^2

    Shejwalkar, Houmansadr: Manipulating the Byzantine, NDSS 2021.
    """

    direction: Literal["std", "unit", "sign"] = "std"
    kind: ClassVar[tuple[str, ...]] = ("update",)
    omniscient: ClassVar[bool] = True

    def tamper(self, sight: Sight) -> Tensor:
        mean = sight.honest.mean(0)
        p, gram, square = _against(sight.honest, mean, self.direction)
        away = gram.diagonal() - 2 * gram.mean(1) + gram.mean()
        room = (squared_distances(gram).sum(1).max() - away.sum()).clamp_min(0)
        return sight.same(mean + math.sqrt(room / (len(gram) * square)) * p if square > 0 else mean)


def _against(honest: Tensor, mean: Tensor, direction: str) -> tuple[Tensor, Tensor, Tensor]:
    """The direction p, the honest deltas' inner products, and |p|^2."""
    if direction == "std":
        p = -honest.std(0, correction=0)
    elif direction == "unit":
        p = -torch.nn.functional.normalize(mean, dim=0)
    else:
        p = -mean.sign()
    return p, inner_products(honest, torch.arange(len(honest))), p.double().square().sum()


@dataclass(frozen=True)
class FreeRider(Attack):
    """Takes the model without working for it: sends zero, noise of deviation sd, or how the model moved last round.

    Lin, Du, Liu: Free-riders in Federated Learning, 2019.
    """

    manner: Literal["zero", "noise", "previous"] = "zero"
    sd: float = 1e-3
    kind: ClassVar[tuple[str, ...]] = ("update",)

    @property
    def looks_back(self) -> bool:
        return self.manner == "previous"

    def tamper(self, sight: Sight) -> Tensor:
        if self.manner == "noise":
            return self.sd * sight.noise()
        if self.manner == "previous" and sight.previous is not None:
            return sight.same(sight.previous)
        return torch.zeros_like(sight.own)  # before the second round nothing has moved
