"""The attack that `holdfast attack-search` varies: a direction mixed of several, its length, its rounds, slander."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.attacks.contract import Attack
from holdfast.attacks.knowing import Slander, output_row
from holdfast.attacks.panel_lies import PanelLie
from holdfast.attacks.updates import Sight
from holdfast.core.rows import norms_of
from holdfast.core.tensors import flat


@dataclass(frozen=True)
class Mixture(Attack):
    """Sends a mixture of what it learnt, of what harms the mean, and of what ruins one class, as long as it likes.

        d_i = own u(own_i) - against u(mean_j x_j) - spread u(sd_j x_j) - push u(e),    u(x) = x / |x|
        delta_i = length x median_j |x_j| x u(d_i)

    x_j are the honest deltas, e the output's row and bias of class `target`; own = -1 flips signs. With `victims` it
    also lies as a tester, as `slander` does, and on panels. What `holdfast attack-search` finds is one of these.

    >>> sight = Sight(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0]]), torch.zeros(2), torch.Generator())
    >>> Mixture(length=10, own=-1.0, against=0.0).tamper(sight)  # 10 x 2, against (3, 4)
    tensor([[-12., -16.]])
    """

    length: float = 1.0
    own: float = 0.0
    against: float = 1.0
    spread: float = 0.0
    push: float = 0.0
    target: int = 0
    victims: int = 0
    words: PanelLie = "opposite"  # what liars say on panels (panel_lies.py)
    omniscient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.length >= 0 or self.victims < 0 or self.target < 0:
            given = f"{self.length}, {self.victims} and {self.target}"
            raise ValueError(f"length, victims and target must not be negative, got {given}.")

    @property
    def kind(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("tester", "update") if self.victims else ("update",)

    def report(
        self, honest: Mapping[int, float], accomplices: Collection[int], generator: torch.Generator
    ) -> dict[int, float]:
        return Slander(self.victims).report(honest, accomplices, generator)

    def tamper(self, sight: Sight) -> Tensor:
        honest = sight.honest.double()
        common = -self.against * unit(honest.mean(0)) - self.spread * unit(honest.std(0, correction=0))
        if self.push:
            common = common - self.push * unit(flat(output_row(sight.like, self.target), list(sight.like)).double())
        mixed = torch.stack([self.own * unit(row) + common for row in sight.own.double()])
        loud = self.length * float(norms_of(sight.honest).quantile(0.5))
        return torch.stack([loud * unit(row) for row in mixed]).to(sight.own.dtype)


def unit(vector: Tensor) -> Tensor:
    """The vector at length one; zeros stay zeros."""
    found: Tensor = vector / vector.norm().clamp_min(1e-30)
    return found
