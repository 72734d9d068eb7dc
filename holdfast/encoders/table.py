"""A table's columns as public features: what the schema makes of a record, brought to a length of at most 1.

Each of the k columns is a group of length at most 1 (data/tables/encode.py), so a record x is at most sqrt(k) long, and
z = x / sqrt(k) at most 1. The bound is tight, whereas the number of encoded values would give a larger one and with it
more noise for the same promise. It is linear: what is fitted to z is fitted to the columns.

With `fourier` = D, z becomes sqrt(2 / D) (cos(W z), sin(W z)), W of D / 2 rows drawn from N(0, 1 / width^2) by a public
seed: length exactly 1, and products of two such features approximate exp(-|z - z'|^2 / (2 width^2)).

Rahimi, Recht, Random Features for Large-Scale Kernel Machines, 2007.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.data.tables.schema import Schema
from holdfast.encoders.contract import Encoder, fingerprint_of, shortened

LENGTH = 1.0 - 2.0**-20  # which rounding cannot lift above 1


@dataclass(frozen=True)
class Table:
    """A table's columns as the schema scales them; with fourier=256, so many random Fourier features of them."""

    fourier: int = 0
    width: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.fourier < 0 or self.fourier % 2 or self.fourier > 1 << 16:
            raise ValueError(f"fourier must be an even number up to {1 << 16}, got {self.fourier}.")
        if not 0 < self.width < math.inf or not 0 <= self.seed < 1 << 63:
            raise ValueError("width must be above 0, and seed not below 0.")

    def fit_schema(self, schema: Schema | None, shape: tuple[int, ...]) -> Encoder:
        if schema is None or shape != (len(schema.encoded),):
            raise HoldfastError("encoder 'table' reads tables that a schema describes; choose another one, or 'auto'.")
        directions = self.directions(len(schema.encoded))
        recipe = {"encoder": "table", "fourier": self.fourier, "width": self.width, "seed": self.seed}
        tensors = {} if directions is None else {"directions": directions}
        return Encoder(
            "table",
            shape,
            (self.fourier or len(schema.encoded),),
            fingerprint_of({**recipe, "schema": schema.fingerprint}, tensors),
            Scaled(schema.longest, directions),
            norm_bound=1.0,
        )

    def directions(self, columns: int) -> Tensor | None:
        """W; NumPy's generator gives the same numbers on every machine."""
        if not self.fourier:
            return None
        drawn = np.random.default_rng(self.seed).standard_normal((self.fourier // 2, columns))
        return torch.from_numpy((drawn / self.width).astype(np.float32))


class Scaled(nn.Module):
    """x / longest, and its Fourier features if there are directions."""

    directions: Tensor | None

    def __init__(self, longest: float, directions: Tensor | None) -> None:
        super().__init__()
        self.longest = longest
        self.register_buffer("directions", directions)

    def forward(self, x: Tensor) -> Tensor:
        z = shortened(x / self.longest, LENGTH)
        if self.directions is None:
            return z
        angles = z @ self.directions.T
        return torch.cat([angles.cos(), angles.sin()], 1) * (LENGTH / math.sqrt(angles.shape[1]))
