"""Attacks on digests: what a hostile client leaves behind for the time it is away (FedDig).

`spoil(features, labels, classes, generator)` works on finished digests, features (m, ...) with soft labels
(m, classes), and as well on encoded samples with whole-number labels (m,), before any kind of digest is made of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from holdfast.attacks.contract import Attack
from holdfast.attacks.data import relabelled


@dataclass(frozen=True)
class BadDigest(Attack):
    """Digests with features negated, -scale x features, or drowned in noise of scale x their own rms."""

    manner: Literal["negate", "noise"] = "negate"
    scale: float = 1.0
    kind: ClassVar[tuple[str, ...]] = ("digest",)
    needs_classes: ClassVar[bool] = True

    def spoil(
        self, features: Tensor, labels: Tensor, classes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        if self.manner == "negate":
            return -self.scale * features, labels
        noise = torch.randn(features.shape, generator=generator, dtype=features.dtype)
        return features + self.scale * features.square().mean().sqrt() * noise, labels


@dataclass(frozen=True)
class FalseDigest(Attack):
    """Digests with right features and false labels: class y becomes classes - 1 - y.

    >>> FalseDigest().spoil(torch.zeros(1, 2), torch.tensor([[0.75, 0.25, 0.0]]), 3, torch.Generator())[1]
    tensor([[0.0000, 0.2500, 0.7500]])
    """

    kind: ClassVar[tuple[str, ...]] = ("digest",)
    needs_classes: ClassVar[bool] = True

    def spoil(
        self, features: Tensor, labels: Tensor, classes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        return features, relabelled(labels, list(reversed(range(classes))))
