"""Attacks by testers: what a hostile client reports about the models it was asked to test (FedTest)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from holdfast.attacks.contract import Attack
from holdfast.attacks.knowing import sent
from holdfast.attacks.updates import Sight


@dataclass(frozen=True)
class Liar(Attack):
    """Praises its accomplices (1.0), slanders all others (0.0), and sends random weights, or what `update` says.

    >>> Liar().report({1: 0.8, 2: 0.1}, accomplices={2}, generator=torch.Generator())
    {1: 0.0, 2: 1.0}
    """

    update: Literal["random", "signflip", "honest"] = "random"
    kind: ClassVar[tuple[str, ...]] = ("tester", "update")

    def report(
        self, honest: Mapping[int, float], accomplices: Collection[int], generator: torch.Generator
    ) -> dict[int, float]:
        return {client: float(client in accomplices) for client in honest}

    def tamper(self, sight: Sight) -> Tensor:
        return sent(self.update, sight)


@dataclass(frozen=True)
class Colluder(Attack):
    """Lies within reason: accomplices are as good as the best it saw, plus a margin; others lose the margin.

        accomplice: min(1, max of the honest accuracies + margin),    other: max(0, accuracy - margin)

    >>> Colluder(0.25).report({1: 0.5, 2: 0.125, 3: 0.0}, accomplices={2}, generator=torch.Generator())
    {1: 0.25, 2: 0.75, 3: 0.0}
    """

    margin: float = 0.1
    update: Literal["random", "signflip", "honest"] = "random"
    kind: ClassVar[tuple[str, ...]] = ("tester", "update")

    def report(
        self, honest: Mapping[int, float], accomplices: Collection[int], generator: torch.Generator
    ) -> dict[int, float]:
        best = max(honest.values(), default=0.0)
        return {
            client: min(1.0, best + self.margin) if client in accomplices else max(0.0, accuracy - self.margin)
            for client, accuracy in honest.items()
        }

    def tamper(self, sight: Sight) -> Tensor:
        return sent(self.update, sight)


@dataclass(frozen=True)
class Nonsense(Attack):
    """Reports what is no accuracy: 7, -1, NaN, infinity, nothing at all, models nobody sent, or any number."""

    manner: Literal["seven", "negative", "nan", "inf", "missing", "unknown", "random"] = "seven"
    kind: ClassVar[tuple[str, ...]] = ("tester",)

    def report(
        self, honest: Mapping[int, float], accomplices: Collection[int], generator: torch.Generator
    ) -> dict[int, float]:
        if self.manner == "missing":
            return {}
        if self.manner == "unknown":
            return {-1 - client: accuracy for client, accuracy in honest.items()}
        if self.manner == "random":
            return dict(zip(honest, torch.rand(len(honest), generator=generator).tolist(), strict=True))
        value = {"seven": 7.0, "negative": -1.0, "nan": math.nan, "inf": math.inf}[self.manner]
        return dict.fromkeys(honest, value)
