"""The encoder for time series: log energies of small fixed kernels, in the manner of MiniRocket.

A series x (channels, steps), each channel less its mean and divided by its deviation, is filtered by kernels of length
9 that have weight 2 at three places and -1 at six, at dilations 1, 2, 4, ..., on channels and with signs that a public
seed draws. Of each response c the value log2(rms c + 0.001) / 4 is taken, and of each channel of x itself asinh of its
mean, deviation, smallest and largest value. All values together are divided by their length: |z| <= 1.

MiniRocket counts how often c exceeds thresholds taken from training data; here nothing is learnt from anybody's data,
and energies did better (docs/encoders.md).

Reference: Dempster, Schmidt, Webb, "MiniRocket: a very fast (almost) deterministic transform for time series
classification", 2021.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.core.errors import HoldfastError
from holdfast.encoders.contract import JUST_BELOW_ONE, Encoder, fingerprint_of

VERSION = 1  # raise it whenever the same options would give other features
TAPS = 9
PLACES = tuple(itertools.combinations(range(TAPS), 3))  # where a kernel has weight 2
QUIET = 1e-3  # an energy that stands for none
SUMMARIES = 4  # of each channel: mean, deviation, smallest, largest


@dataclass(frozen=True)
class Series:
    """The log energies of `kernels` fixed kernels, and four summaries of each channel."""

    kernels: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.kernels <= 1 << 14:
            raise HoldfastError(f"encoder.kernels: must be 1 to {1 << 14}, got {self.kernels}.")
        if not 0 <= self.seed < 1 << 63:
            raise HoldfastError(f"encoder.seed: must not be below 0, got {self.seed}.")

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        """The encoder for series of this shape, (channels, steps)."""
        if len(shape) != 2 or shape[1] < TAPS:
            raise HoldfastError(
                f"encoder 'series': it encodes series of shape (channels, steps) with at least {TAPS} steps, but the "
                f"task's samples have shape {tuple(shape)}; choose encoder = 'auto'."
            )
        recipe = {"encoder": "series", "version": VERSION, "shape": list(shape), "kernels": self.kernels}
        fingerprint = fingerprint_of({**recipe, "seed": self.seed}, {})
        network = SeriesNetwork(shape[0], shape[1], self.kernels, self.seed)
        values = SUMMARIES * shape[0] + self.kernels
        return Encoder("series", tuple(shape), (values,), fingerprint, network, norm_bound=1.0)


class SeriesNetwork(nn.Module):
    """Series to z, see the head of this file."""

    def __init__(self, channels: int, steps: int, kernels: int, seed: int) -> None:
        super().__init__()
        self.dilations = [2**k for k in range(steps.bit_length()) if (TAPS - 1) * 2**k < steps]
        chance = np.random.default_rng(seed)  # NumPy's generator gives the same numbers on every machine
        drawn: dict[int, list[Tensor]] = {dilation: [] for dilation in self.dilations}
        for number in range(kernels):
            drawn[int(chance.choice(self.dilations))].append(kernel(PLACES[number % len(PLACES)], channels, chance))
        for dilation, weights in drawn.items():
            if weights:
                self.register_buffer(f"kernels_{dilation}", torch.stack(weights))

    def forward(self, series: Tensor) -> Tensor:
        mean, deviation = series.mean(2), series.std(2, correction=0)
        least, most = series.amin(2), series.amax(2)
        # A channel that hardly moves is rounding: it is not enlarged to deviation 1.
        floor = 1e-4 * torch.maximum(least.abs(), most.abs()) + 1e-12
        even = (series - mean[:, :, None]) / torch.maximum(deviation, floor)[:, :, None]
        values = [torch.asinh(summary) for summary in (mean, deviation, least, most)]
        for dilation in self.dilations:
            weights = getattr(self, f"kernels_{dilation}", None)
            if weights is not None:
                values.append(log_energies(even, weights, dilation))
        return functional.normalize(torch.cat(values, dim=1), dim=1) * JUST_BELOW_ONE


def log_energies(series: Tensor, weights: Tensor, dilation: int) -> Tensor:
    """log2(rms of each response + 0.001) / 4, with the ends held."""
    reach = dilation * (TAPS // 2)
    responses = functional.conv1d(functional.pad(series, (reach, reach), mode="replicate"), weights, dilation=dilation)
    return torch.log2(responses.square().mean(2).sqrt() + QUIET) / 4


def kernel(places: tuple[int, ...], channels: int, chance: np.random.Generator) -> Tensor:
    """One kernel (channels, 9): the same weights on some channels, each with its sign, and 0 on the others."""
    count = int(2 ** chance.uniform(0, math.log2(channels + 1)))
    chosen = chance.permutation(channels)[:count]
    weights = torch.full((TAPS,), -1.0)
    weights[list(places)] = 2.0
    signs = torch.zeros(channels)
    signs[torch.from_numpy(chosen)] = torch.from_numpy(chance.choice([-1.0, 1.0], count)).float()
    return signs[:, None] * weights / math.sqrt(count)
