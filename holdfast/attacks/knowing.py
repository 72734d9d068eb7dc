"""Adversaries that know the jury's rule: as loud as its clip allows, where no gradient sees them, or by testimony.

The clip is 4 x the median length (`trust/jury.py`), so 4 is the usual `length`. `since`, `until` and `every` say when:
late, in every second round, or once in the last one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from holdfast.attacks.contract import Attack
from holdfast.attacks.panel_lies import PanelLie
from holdfast.attacks.updates import RandomWeights, Sight, SignFlip
from holdfast.core.errors import HoldfastError
from holdfast.core.rows import norms_of
from holdfast.core.tensors import norm_of
from holdfast.core.types import Tensors


@dataclass(frozen=True)
class LoudFlip(Attack):
    """Sends the opposite of what it learnt, as loud as a rule that clips by the median length lets it.

    delta_i = -length x median_j |x_j| x own_i / |own_i|,    x_j the honest deltas
    """

    length: float = 4.0
    kind: ClassVar[tuple[str, ...]] = ("update",)
    omniscient: ClassVar[bool] = True

    def tamper(self, sight: Sight) -> Tensor:
        usual = norms_of(sight.honest).quantile(0.5)
        factors = -self.length * usual / norms_of(sight.own).clamp_min(1e-30)
        return (sight.own.double() * factors[:, None]).to(sight.own.dtype)


@dataclass(frozen=True)
class Slander(Attack):
    """Testifies truly of most, so that it is believed, and frames a few honest members: they are as bad as the worst
    it saw, and its accomplices as good as the median. All accomplices frame the same ones.

    >>> Slander(victims=1).report({0: 0.9, 1: 0.5, 2: 0.75, 3: 0.25}, accomplices={3}, generator=torch.Generator())
    {0: 0.25, 1: 0.5, 2: 0.75, 3: 0.5}
    """

    victims: int = 3
    update: Literal["random", "signflip", "loudflip", "honest"] = "loudflip"
    words: PanelLie = "opposite"  # what they say on panels (panel_lies.py)
    kind: ClassVar[tuple[str, ...]] = ("tester", "update")
    omniscient: ClassVar[bool] = True

    def report(
        self, honest: Mapping[int, float], accomplices: Collection[int], generator: torch.Generator
    ) -> dict[int, float]:
        if not honest:
            return {}
        ranked = sorted(honest.values())
        framed = sorted(client for client in honest if client not in accomplices)[: self.victims]
        usual = {
            client: ranked[(len(ranked) - 1) // 2] if client in accomplices else honest[client] for client in honest
        }
        return {client: ranked[0] if client in framed else value for client, value in usual.items()}

    def tamper(self, sight: Sight) -> Tensor:
        return sent(self.update, sight)


def sent(update: str, sight: Sight) -> Tensor:
    """What lying testers send besides."""
    if update == "random":
        return RandomWeights().tamper(sight)
    if update == "loudflip":
        return LoudFlip().tamper(sight)
    return SignFlip().tamper(sight) if update == "signflip" else sight.own


@dataclass(frozen=True)
class DeadUnits(Attack):
    """Lowers the biases of hidden layers, besides its honest update, until ReLU units never fire: where nothing fires
    there is no gradient, and who judges by gradients sees nothing. The update is `length` x as long as the honest one.
    """

    length: float = 4.0
    kind: ClassVar[tuple[str, ...]] = ("update",)

    def rewrite(self, delta: Tensors, model: Tensors, generator: torch.Generator) -> Tensors:
        hidden = [name for name in biased(delta) if name != biased(delta)[-1]]
        if not hidden:
            raise HoldfastError("attack 'deadunits': the model has no hidden layer with biases.")
        push = {f"{name}.bias": -torch.ones_like(delta[f"{name}.bias"]) for name in hidden}
        return pushed(delta, push, self.length)


@dataclass(frozen=True)
class ClassPush(Attack):
    """Adds to its honest update a push on one class's output: its row and bias fall, so that nothing is called it.

    The push is `length` x as long as the honest update: only one class is ruined, which an average over classes hides.
    """

    target: int = 0
    length: float = 1.0
    kind: ClassVar[tuple[str, ...]] = ("update",)
    needs_classes: ClassVar[bool] = True

    def rewrite(self, delta: Tensors, model: Tensors, generator: torch.Generator) -> Tensors:
        row = output_row(delta, self.target)
        return pushed(delta, {name: -tensor for name, tensor in row.items()}, self.length)


def output_row(tensors: Tensors, target: int) -> Tensors:
    """Ones in the output's row and bias of one class, zeros elsewhere."""
    layers = biased(tensors)
    if not layers or not 0 <= target < len(tensors[f"{layers[-1]}.bias"]):
        raise HoldfastError(f"attack: the model has no output for class {target}.")
    found = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    for name in (f"{layers[-1]}.weight", f"{layers[-1]}.bias"):
        found[name][target] = 1.0
    return found


def biased(tensors: Tensors) -> list[str]:
    """The layers with weights and biases, in the order of the model, without normalisations."""
    names = [name.removesuffix(".weight") for name, t in tensors.items() if name.endswith(".weight") and t.dim() > 1]
    return [name for name in names if f"{name}.bias" in tensors]


def pushed(delta: Tensors, push: Tensors, length: float) -> Tensors:
    """The delta with a push that is `length` x as long as it."""
    factor = length * norm_of(delta) / norm_of(push)
    return {name: tensor + factor * push[name] if name in push else tensor for name, tensor in delta.items()}
