"""Server optimisers: what the moderator makes of the aggregated model. With D = aggregated - old, weight by weight:

    none       w <- w + D                                     the aggregated model itself
    momentum   v <- beta v + D,  w <- w + lr v                FedAvgM (Hsu, Qi and Brown 2019)
    adaptive   m <- b1 m + (1 - b1) D                         Reddi et al., ICLR 2021, Algorithm 2
               v <- v + D^2                                       FedAdagrad
               v <- v - (1 - b2) D^2 sign(v - D^2)                FedYogi
               v <- b2 v + (1 - b2) D^2                           FedAdam
               w <- w + lr m / (sqrt(v) + tau)

As printed there is no bias correction, m starts at 0 and v at tau^2 (it must be at least that). Public code differs:
Flower's FedAdam, FedYogi and FedAdagrad start v at 0, and its FedAdam corrects the bias of the first rounds (Kingma
and Ba's factor, for the round's number + 1). Here D is whatever algorithm and trust rule have aggregated.

D is minus the pseudo-gradient. Buffers are not touched. A round without updates, or one that diverged, changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.core.types import Tensors, pack, unpack


@dataclass(frozen=True)
class ServerOptimizer:
    """The aggregated model becomes the new one."""

    def begin(self, model: Tensors) -> Tensors:
        """The memory before round 1."""
        return {}

    def step(self, model: Tensors, aggregated: Tensors, memory: Tensors) -> tuple[Tensors, Tensors]:
        """The new model and the new memory, given the old model, the aggregated one and the old memory."""
        return aggregated, memory


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """FedAvgM: the model goes on in the direction of earlier rounds.

    >>> v = {"w": torch.tensor([2.0])}  # v = 0.5 x 2 + 3 = 4, w = 1 + 0.1 x 4
    >>> Momentum(beta=0.5, lr=0.1).step({"w": torch.tensor([1.0])}, {"w": torch.tensor([4.0])}, v)
    ({'w': tensor([1.4000])}, {'w': tensor([4.])})
    """

    beta: float = 0.9
    lr: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1 or not 0 < self.lr < math.inf:
            raise ValueError(f"beta must be in [0, 1) and lr positive, got {self.beta} and {self.lr}.")

    def begin(self, model: Tensors) -> Tensors:
        return {name: torch.zeros_like(weight) for name, weight in model.items()}

    def step(self, model: Tensors, aggregated: Tensors, memory: Tensors) -> tuple[Tensors, Tensors]:
        velocity = {n: self.beta * memory[n] + (aggregated[n] - w) for n, w in model.items()}
        return {n: w.add(velocity[n], alpha=self.lr) for n, w in model.items()}, velocity


@dataclass(frozen=True)
class Adagrad(ServerOptimizer):
    """FedAdagrad: v is the sum of all squares, so steps grow smaller.

    With b1 = 0, tau = 1 and D = 4: m = 4, v = 1 + 16 = 17, w = 0.5 x 4 / (sqrt(17) + 1).

    >>> adagrad, start = Adagrad(lr=0.5, tau=1.0), {"w": torch.tensor([0.0])}
    >>> model, memory = adagrad.step(start, {"w": torch.tensor([4.0])}, adagrad.begin(start))
    >>> model, memory
    ({'w': tensor([0.3904])}, {'m/w': tensor([4.]), 'v/w': tensor([17.])})
    """

    lr: float = 0.01
    beta1: float = 0.0
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 <= self.beta1 < 1:
            raise ValueError(f"beta1 must be in [0, 1), got {self.beta1}.")
        if not (0 < self.lr < math.inf and 0 < self.tau < math.inf):
            raise ValueError(f"lr and tau must be positive, got {self.lr} and {self.tau}.")

    def begin(self, model: Tensors) -> Tensors:
        zero = {name: torch.zeros_like(weight) for name, weight in model.items()}
        return pack(m=zero, v={name: torch.full_like(weight, self.tau**2) for name, weight in model.items()})

    def step(self, model: Tensors, aggregated: Tensors, memory: Tensors) -> tuple[Tensors, Tensors]:
        m, v = unpack(memory, "m"), unpack(memory, "v")
        moved = {n: aggregated[n] - w for n, w in model.items()}
        m = {n: self.beta1 * m[n] + (1 - self.beta1) * d for n, d in moved.items()}
        v = {n: self.squares(v[n], d.square()) for n, d in moved.items()}
        return {n: w + self.lr * m[n] / (v[n].sqrt() + self.tau) for n, w in model.items()}, pack(m=m, v=v)

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """The new v, given the old one and D^2."""
        return v + square


@dataclass(frozen=True)
class Adam(Adagrad):
    """FedAdam: steps of about lr in every weight; v is a moving mean of squares.

    With b1 = 0.5, b2 = 0.75, tau = 1 and D = 4: m = 2, v = 0.75 x 1 + 0.25 x 16 = 4.75, w = 0.5 x 2 / (sqrt(4.75) + 1).

    >>> adam, start = Adam(lr=0.5, beta1=0.5, beta2=0.75, tau=1.0), {"w": torch.tensor([0.0])}
    >>> model, memory = adam.step(start, {"w": torch.tensor([4.0])}, adam.begin(start))
    >>> model, memory
    ({'w': tensor([0.3145])}, {'m/w': tensor([2.]), 'v/w': tensor([4.7500])})
    """

    beta1: float = 0.9
    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta2 < 1:
            raise ValueError(f"beta2 must be in [0, 1), got {self.beta2}.")

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(Adam):
    """FedYogi: as FedAdam, but v moves by no more than (1 - beta2) D^2, also when D is small.

    >>> Yogi(beta2=0.75).squares(torch.tensor([1.0, 16.0]), torch.tensor([4.0, 4.0]))  # 1 + 0.25 x 4; 16 - 0.25 x 4
    tensor([ 2., 15.])
    """

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "none": ServerOptimizer,
    "momentum": Momentum,
    "adam": Adam,
    "yogi": Yogi,
    "adagrad": Adagrad,
}
