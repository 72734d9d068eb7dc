"""How samples are mixed into digests, and the paper's noise: plain arithmetic, no knowledge of files or tasks."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError

Strategy = Literal["across", "within"]
Remainder = Literal["drop", "mix"]
Weights = Literal["balanced", "random"] | tuple[float, ...]
LEAST_PART = 0.1  # of an equal share: a sample that weighs less hides no other


@dataclass(frozen=True)
class Laplace:
    """The paper's noise, Lap(0, tau / (S epsilon)) on each value; its epsilon is nominal, not a guarantee."""

    epsilon: float = 0.005
    samples: int = 20_000  # the paper's constant S
    seed: int | None = None  # for tests only: seeded noise protects nothing

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < math.inf and self.samples > 0):
            raise HoldfastError(
                f"digest noise: epsilon and samples must be positive numbers, got {self.epsilon} and {self.samples}; "
                "leave epsilon out for no noise."
            )

    def scale(self, tau: float) -> float:
        """The scale of the noise; tau is the client's largest feature value.

        >>> Laplace(epsilon=0.005, samples=20_000).scale(3.0)
        0.03
        """
        return tau / (self.samples * self.epsilon)

    def __str__(self) -> str:
        guarantee = "nominal" if self.seed is None else "seeded, no guarantee"
        return f"laplace:epsilon={self.epsilon},samples={self.samples} ({guarantee})"


def mixing_plan(
    labels: Tensor, spd: int, strategy: Strategy, remainder: Remainder, generator: torch.Generator
) -> Tensor:
    """Which samples go into which digest, (m, spd); -1 marks an empty place in a digest made of fewer."""
    if strategy not in ("across", "within"):
        raise HoldfastError(f"digest strategy: {strategy!r} is not known; say 'across' or 'within' classes.")
    if remainder not in ("drop", "mix"):
        raise HoldfastError(f"digest remainder: {remainder!r} is not known; say 'drop' or 'mix'.")
    order = torch.randperm(len(labels), generator=generator)
    groups = [order]
    if strategy == "within":
        groups = [order[labels[order] == label] for label in labels.unique()]
    rows = []
    for group in groups:
        left_over = len(group) % spd
        if left_over and remainder == "mix":
            group = torch.cat([group, torch.full((spd - left_over,), -1)])
        rows.append(group[: len(group) // spd * spd].view(-1, spd))
    plan = torch.cat(rows)
    if len(plan) == 0:
        raise HoldfastError(
            f"digest: no class has {spd} samples to mix within the class; lower spd, mix across classes, "
            "or let remainders be mixed with fewer."
        )
    return plan


def mixing_weights(plan: Tensor, weights: Weights, generator: torch.Generator) -> Tensor:
    """The weights w_k (m, spd), float64: each row sums to one, and an empty place weighs nothing.

    >>> mixing_weights(torch.tensor([[5, 2], [0, -1]]), "balanced", torch.Generator()).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    spd = plan.shape[1]
    if weights == "balanced":
        shares = torch.ones(plan.shape, dtype=torch.float64)
    elif weights == "random":  # uniform over all weights that sum to one
        shares = -torch.log1p(-torch.rand(plan.shape, generator=generator, dtype=torch.float64)) + 1e-12
    elif isinstance(weights, str):
        raise HoldfastError(f"digest weights: {weights!r} is not known; say 'balanced', 'random' or {spd} numbers.")
    else:
        shares = torch.tensor(given_weights(weights, spd), dtype=torch.float64).repeat(len(plan), 1)
    shares = shares * (plan >= 0)
    total = shares.sum(1, keepdim=True)
    if bool((total <= 0).any()):
        raise HoldfastError(
            "digest weights: a remainder would be mixed with weight zero only; drop remainders or give other weights."
        )
    return shares / total


def read_weights(text: str) -> Weights:
    """Weights of mixing as the user says them.

    >>> read_weights("random"), read_weights("0.75/0.25")
    ('random', (0.75, 0.25))
    """
    if text == "balanced" or text == "random":
        return text  # type: ignore[return-value]  # mypy does not narrow str to the two words
    try:
        return tuple(float(part) for part in text.split("/"))
    except ValueError:
        raise HoldfastError(
            f"digest weights: {text!r} is not known; say 'balanced', 'random' or numbers as in 0.7/0.3."
        ) from None


def heaviest_weight(text: str, spd: int, fewest: int | None = None) -> float:
    """The largest share of a digest that one sample may have, where a digest is made of `fewest` to SpD samples.

    >>> heaviest_weight("balanced", 4), heaviest_weight("0.75/0.25", 2), heaviest_weight("random", 4)
    (0.25, 0.75, 1.0)
    >>> heaviest_weight("balanced", 4, fewest=3), heaviest_weight("0.25/0.5/0.25", 3, fewest=1)
    (0.3333333333333333, 1.0)
    """
    return 1.0 if text == "random" else max(max(row) for row in _rows(text, spd, fewest))


def surely_mixed(text: str, spd: int, fewest: int | None = None) -> int:
    """How many samples every digest is sure to mix: those that weigh a tenth of an equal share, or more.

    >>> surely_mixed("balanced", 4), surely_mixed("balanced", 4, fewest=1), surely_mixed("0.75/0.25", 2)
    (4, 1, 2)
    >>> surely_mixed("1/0/0/0", 4), surely_mixed("random", 4)  # chance may give nearly all to one sample
    (1, 1)
    """
    if text == "random":
        return 1
    return min(sum(share >= LEAST_PART / len(row) for share in row) for row in _rows(text, spd, fewest))


def _rows(text: str, spd: int, fewest: int | None) -> list[list[float]]:
    """The weights of digests made of `fewest` to SpD samples; a remainder takes the first places (mixing_weights)."""
    weights = read_weights(text)
    shares = [1.0] * spd if isinstance(weights, str) else list(weights)
    heads = [shares[:count] for count in range(fewest or spd, spd + 1)]
    return [[share / sum(head) for share in head] for head in heads if sum(head) > 0]


def given_weights(weights: Sequence[float], spd: int) -> list[float]:
    """Weights that the user gave, if they are as many as the samples of a digest and sum to one."""
    given = [float(weight) for weight in weights]
    if len(given) != spd:
        raise HoldfastError(f"digest weights: {len(given)} numbers were given for {spd} samples per digest.")
    if not all(0.0 <= weight <= 1.0 for weight in given) or abs(sum(given) - 1.0) > 1e-6:
        raise HoldfastError(f"digest weights: they must lie in [0, 1] and sum to one, got {tuple(given)}.")
    return given


def laplace_noise(noise: Laplace, tau: float, shape: Sequence[int]) -> Tensor:
    """Laplace noise, float64, from the operating system's entropy, unless a test asked for a seed."""
    source = np.random.Generator(np.random.PCG64(secrets.randbits(256) if noise.seed is None else noise.seed))
    return torch.from_numpy(source.laplace(0.0, noise.scale(tau), tuple(shape)))
