"""Local optimisers: how a client turns gradients into steps. Each works on one weight at a time, in place.

    SGD      in settings.py
    Adam     m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2
             w <- w - lr (m / (1 - b1^k)) / (sqrt(v / (1 - b2^k)) + eps)          at step k = 1, 2, ...
    AdamW    w <- w - lr weight_decay w, then Adam's step

lr, momentum and weight_decay are keys of the experiment; weight_decay adds weight_decay w to g, except in AdamW.
An algorithm's correction (FedProx, FedDyn, AdaBest) is part of g: Adam scales it as it scales the loss's gradient.
The state starts anew each round; with `keep` it stays at the client, as of the last round in which its update counted.

torch.optim would do the same, but making any of its optimisers imports torch's compiler, 1.6 s in each process.
References: Kingma and Ba, ICLR 2015 (Adam); Loshchilov and Hutter, ICLR 2019 (AdamW).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.learning.settings import Learning, Optimizer, Sgd

States = dict[str, dict[str, Tensor]]  # name of a weight -> what its optimiser keeps of it


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam: steps of about lr in every weight, whatever the size of its gradients; weight decay is part of them.

    >>> w, state = torch.tensor([1.0]), Adam().begin(torch.zeros(1))
    >>> Adam().step(w, torch.tensor([50.0]), state, Learning(lr=0.25))  # the first step is lr in the gradient's sign
    >>> w
    tensor([0.7500])
    """

    decoupled: ClassVar[bool] = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and 0 < self.eps < math.inf):
            raise ValueError(
                f"beta1 and beta2 must be in [0, 1) and eps positive, got {self.beta1}, {self.beta2} and {self.eps}."
            )

    def begin(self, weight: Tensor) -> dict[str, Tensor]:
        return {"m": torch.zeros_like(weight), "v": torch.zeros_like(weight), "steps": torch.tensor(0)}

    def step(self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], learning: Learning) -> None:
        if learning.weight_decay and self.decoupled:
            weight.mul_(1 - learning.lr * learning.weight_decay)
        elif learning.weight_decay:
            gradient = gradient.add_(weight, alpha=learning.weight_decay)
        k = int(state["steps"].add_(1))
        m, v = state["m"], state["v"]
        m.lerp_(gradient, 1 - self.beta1)
        v.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        spread = v.sqrt().div_((1 - self.beta2**k) ** 0.5).add_(self.eps)
        weight.addcdiv_(m, spread, value=-learning.lr / (1 - self.beta1**k))

    def carry(self, state: dict[str, Tensor], steps: int, learning: Learning) -> Tensor:
        spread = state["v"].sqrt().div_((1 - self.beta2**steps) ** 0.5).add_(self.eps)
        return spread.reciprocal_()


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay beside the gradients: w shrinks by lr weight_decay w.

    >>> w, state = torch.tensor([1.0]), AdamW().begin(torch.zeros(1))
    >>> AdamW().step(w, torch.tensor([50.0]), state, Learning(lr=0.25, weight_decay=0.5))  # 1 - 0.125 - 0.25
    >>> w
    tensor([0.6250])
    """

    decoupled: ClassVar[bool] = True


@dataclass(frozen=True)
class Measured(Optimizer):
    """Another optimiser, with how far its steps would have carried a constant unit gradient (`carry`) summed up.

    >>> w, one = torch.zeros(1), Measured(Sgd())
    >>> state = one.begin(w)
    >>> for _ in range(2):
    ...     one.step(w, torch.tensor([4.0]), state, Learning(lr=0.5, momentum=0.5))
    >>> state["reach"], Learning(momentum=0.5).reach(2)
    (tensor([2.5000]), 2.5)
    """

    inner: Optimizer = field(default_factory=Sgd)

    def begin(self, weight: Tensor) -> dict[str, Tensor]:
        return {**self.inner.begin(weight), "reach": torch.zeros_like(weight), "taken": torch.tensor(0)}

    def step(self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], learning: Learning) -> None:
        self.inner.step(weight, gradient, state, learning)
        state["reach"] += self.inner.carry(state, int(state["taken"].add_(1)), learning)


@dataclass(frozen=True)
class SharedMomentum(Optimizer):
    """SGD with a momentum that the moderator sent and that stays as it is: w <- w - lr ((1 - beta) g + beta m)."""

    momentum: Mapping[str, Tensor] = field(default_factory=dict)

    def begin_named(self, name: str, weight: Tensor) -> dict[str, Tensor]:
        return {"m": self.momentum.get(name, torch.zeros_like(weight))}

    def step(self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], learning: Learning) -> None:
        if learning.weight_decay:
            gradient = gradient.add_(weight, alpha=learning.weight_decay)
        weight.sub_(gradient, alpha=learning.lr * (1 - learning.momentum))
        weight.sub_(state["m"], alpha=learning.lr * learning.momentum)


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}


def begin_states(optimizer: Optimizer, weights: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> States:
    """The state of each weight: as it was kept, under `weight/part`, or anew."""
    if kept:
        states: States = {name: {} for name in weights}
        for path, tensor in kept.items():
            name, _, part = path.rpartition("/")
            # Steps change it in place, and the older version must stay.
            states[name][part] = tensor.to(weights[name].device, copy=True)
        return states
    return {name: optimizer.begin_named(name, weight.detach()) for name, weight in weights.items()}


@torch.no_grad()
def descend(weights: Mapping[str, Tensor], states: States, learning: Learning) -> None:
    """One step of every weight that has a gradient."""
    for name, weight in weights.items():
        if weight.grad is not None:
            learning.optimizer.step(weight, weight.grad, states[name], learning.of(name))
