"""How a client trains in a round: its settings, what an optimiser is, and the usual one, SGD.

SGD      v <- momentum v + g,  w <- w - lr v                                  (torch.optim.SGD)
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.learning.device import Precision


@dataclass(frozen=True)
class Optimizer:
    """What a local optimiser is made from: `begin` and `step`."""

    has_reach: ClassVar[bool] = False  # whether Learning.reach is true of it, which FedNova and SCAFFOLD need
    keep: bool = field(default=False, kw_only=True)  # keep the state from round to round, at the client

    def begin(self, weight: Tensor) -> dict[str, Tensor]:
        """The state of one weight before its first step."""
        return {}

    def begin_named(self, name: str, weight: Tensor) -> dict[str, Tensor]:
        """The same, of the weight of this name."""
        return self.begin(weight)

    def carry(self, state: dict[str, Tensor], steps: int, learning: Learning) -> Tensor | float:
        """How far this step, the last of so many, would have carried a constant unit gradient, in units of lr."""
        raise NotImplementedError

    def step(self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], learning: Learning) -> None:
        """One step of one weight; weight, gradient and state may be changed in place."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Stochastic gradient descent with momentum.

    >>> w, state = torch.tensor([1.0]), Sgd().begin(torch.zeros(1))
    >>> for _ in range(2):  # v = 2, then 0.5 x 2 + 2 = 3: w = 1 - 0.1 x 5
    ...     Sgd().step(w, torch.tensor([2.0]), state, Learning(lr=0.1, momentum=0.5))
    >>> w
    tensor([0.5000])
    """

    has_reach: ClassVar[bool] = True

    def begin(self, weight: Tensor) -> dict[str, Tensor]:
        return {"velocity": torch.zeros_like(weight)}

    def step(self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], learning: Learning) -> None:
        if learning.weight_decay:
            gradient = gradient.add_(weight, alpha=learning.weight_decay)
        speed = state["velocity"]
        speed.mul_(learning.momentum).add_(gradient)
        weight.sub_(speed, alpha=learning.lr)

    def carry(self, state: dict[str, Tensor], steps: int, learning: Learning) -> float:
        rho = learning.momentum
        return (1 - rho**steps) / (1 - rho)


Group = tuple[str, float] | tuple[str, float, float]  # pattern of weights' names, factor of lr, and of weight_decay


@dataclass(frozen=True)
class Learning:
    """How a client trains in a round."""

    epochs: int = 1
    batch_size: int = 32
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 0.0
    optimizer: Optimizer = field(default_factory=Sgd)
    clip_norm: float | None = None  # the most that the norm of a batch's gradient may be; longer ones are shortened
    precision: Precision = "float32"  # of forward passes and losses; weights are float32
    local_steps: int | None = None  # in a round, in place of epochs
    accumulate: int = 1  # parts in which the gradient of a batch is computed, one after another
    groups: tuple[Group, ...] = ()  # the first whose pattern fits a weight's name counts
    within: Callable[[float], float] | None = None  # the factor of lr once this share of a round's steps is done

    def factor(self, name: str) -> float:
        """The factor of lr for the weight of this name; 0: it is frozen.

        >>> learning = Learning(groups=(("head.*", 1.0), ("*", 0.0)))
        >>> learning.factor("head.bias"), learning.factor("conv1.weight"), Learning().factor("conv1.weight")
        (1.0, 0.0, 1.0)
        """
        return self.group_of(name)[1]

    def group_of(self, name: str) -> Group:
        return next((group for group in self.groups if fnmatchcase(name, group[0])), (name, 1.0))

    def of(self, name: str) -> Learning:
        """How the weight of this name learns.

        >>> learning = Learning(lr=0.5, weight_decay=0.1, groups=(("*bias", 1.0, 0.0),)).of("fc.bias")
        >>> learning.lr, learning.weight_decay
        (0.5, 0.0)
        """
        if not self.groups:
            return self
        _, factor, *decay = self.group_of(name)
        return replace(self, lr=self.lr * factor, weight_decay=self.weight_decay * (decay[0] if decay else 1.0))

    def at(self, lr: float) -> Learning:
        """The same at another learning rate; a step's own, so without what `replace` costs.

        >>> Learning(lr=0.5, momentum=0.25).at(0.125) == Learning(lr=0.125, momentum=0.25)
        True
        """
        now = copy(self)
        object.__setattr__(now, "lr", lr)
        return now

    def steps(self, samples: int, poisson: bool = False) -> int:
        """The steps of one round on so many samples; a last sample all alone joins the batch before it.

        Batches drawn by chance (DP-SGD) are ceil(samples / batch_size) an epoch. With `local_steps` it is that number.

        >>> Learning(epochs=2, batch_size=4).steps(9), Learning(epochs=2, batch_size=4).steps(9, poisson=True)
        (4, 6)
        """
        if self.local_steps is not None:
            return self.local_steps
        full, rest = divmod(samples, self.batch_size)
        alone = rest == 1 and self.batch_size > 1 and full > 0 and not poisson
        return self.epochs * (full + (rest > 0 and not alone))

    def reach(self, steps: int) -> float:
        """How far `steps` steps of SGD carry a constant unit gradient, in units of lr: FedNova's ||a||_1.

        With momentum rho, the gradient of step k counts (1 - rho^(steps - k + 1)) / (1 - rho) times, hence
        ||a||_1 = (steps - rho (1 - rho^steps) / (1 - rho)) / (1 - rho); without momentum it is `steps`.

        >>> Learning(momentum=0.0).reach(3), Learning(momentum=0.5).reach(2)  # 1.5 + 1
        (3.0, 2.5)
        """
        rho = self.momentum
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
