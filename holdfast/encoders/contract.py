"""What every public encoder P_R offers: samples in, features out, and a fingerprint all sites can compare."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.core.tensors import bytes_of
from holdfast.core.types import Scalars
from holdfast.data.task import as_inputs
from holdfast.encoders.cache import Kept

JUST_BELOW_ONE = 1.0 - 2.0**-20  # a length that rounding cannot lift above 1


@dataclass(frozen=True)
class Encoder:
    """An encoder made for one shape of sample; it has no state and learns nothing."""

    name: str
    sample_shape: tuple[int, ...]
    feature_shape: tuple[int, ...]
    fingerprint: str  # SHA-256 of all that determines the features: the same on every site, or the digests do not mix
    network: nn.Module  # samples as a model reads them (images: floats in [0, 1]) -> features (n, *feature_shape)
    norm_bound: float | None = None  # no feature vector in a digest is longer than this; None: no bound is known
    batch: int = 250
    costly: bool = False  # features are kept on disk, so that no sample is encoded twice

    def encode(self, samples: Tensor) -> Tensor:
        """Features (N, *feature_shape), float32; images (N, C, H, W) are uint8 or float in [0, 1]."""
        check_samples(samples, self.sample_shape, f"encoder {self.name!r}")
        if len(samples) == 0:
            return torch.empty(0, *self.feature_shape)
        self.network.eval()
        if self.costly:
            return self._kept(threads=1).encode(samples)
        return torch.cat([self._features(some) for some in samples.split(self.batch)])

    def encode_ahead(self, samples: Tensor, rows: Tensor, threads: int) -> None:
        """Compute and keep the features of these rows, in so many threads, without holding them all."""
        self.network.eval()
        self._kept(threads).encode_ahead(samples, rows)

    def _kept(self, threads: int) -> Kept:
        return Kept(self.name, self.fingerprint, self._features, self.batch, threads)

    def _features(self, some: Tensor) -> Tensor:
        with torch.no_grad():
            features: Tensor = self.network(as_read(some)).contiguous()
            return features


class EncoderChoice(Protocol):
    """What an experiment may choose: a frozen dataclass of options that makes an encoder for a shape of image."""

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder: ...


def as_read(samples: Tensor) -> Tensor:
    """Samples as a model reads them, in float32 unless they are whole numbers."""
    values = as_inputs(samples)
    return values.float() if values.is_floating_point() else values


def check_samples(samples: Tensor, shape: tuple[int, ...], where: str) -> None:
    """Refuse samples of another shape, images with floats outside [0, 1], and values that are not finite."""
    if samples.ndim != len(shape) + 1 or tuple(samples.shape[1:]) != tuple(shape):
        raise HoldfastError(
            f"{where}: it was made for samples of shape {tuple(shape)}, but got a tensor of shape "
            f"{tuple(samples.shape)}; make an encoder for that shape."
        )
    if samples.dtype == torch.uint8:
        return
    if len(shape) != 3:
        if samples.is_floating_point() and not bool(samples.isfinite().all()):
            raise HoldfastError(f"{where}: some samples are not finite.")
        return
    if not samples.is_floating_point():
        raise HoldfastError(f"{where}: images must be uint8 or float in [0, 1], not {samples.dtype}.")
    if len(samples) and not (float(samples.min()) >= 0.0 and float(samples.max()) <= 1.0):  # NaN fails too
        raise HoldfastError(f"{where}: float images must lie in [0, 1]; divide by their largest possible value first.")


def check_shape(shape: tuple[int, ...], name: str, smallest: int, channels: tuple[int, ...] | None = None) -> None:
    """Refuse image shapes an encoder cannot work on."""
    if len(shape) != 3 or min(shape) < 1:
        raise HoldfastError(
            f"encoder {name!r}: it encodes images of shape (channels, height, width), but the task's samples have "
            f"shape {tuple(shape)}; choose encoder = 'auto'."
        )
    if min(shape[1:]) < smallest:
        raise HoldfastError(
            f"encoder {name!r}: images must be at least {smallest} x {smallest}, got {shape[1]} x {shape[2]}; "
            "enlarge them first."
        )
    if channels is not None and shape[0] not in channels:
        raise HoldfastError(
            f"encoder {name!r}: images must have {' or '.join(map(str, channels))} channels, got {shape[0]}; "
            "choose 'scattering', which takes any number."
        )


def measured_bound(encoder: Encoder, pictures: Tensor) -> float:
    """A public bound for an encoder that names none: twice the longest feature vector of drawn shapes.

    It is rounded up to three digits, since machines differ in the last bits.
    """
    longest = float(encoder.encode(pictures).flatten(1).norm(dim=1).max())
    if not 0 < longest < math.inf:
        raise HoldfastError(f"encoder {encoder.name!r}: drawn shapes give features of length {longest}.")
    scale = 10.0 ** (math.floor(math.log10(2 * longest)) - 2)
    return math.ceil(2 * longest / scale) * scale


def shortened(features: Tensor, bound: float) -> Tensor:
    """Features with each record at most `bound` long.

    >>> shortened(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    lengths = features.flatten(1).norm(dim=1)
    if not bool((lengths > bound).any()):
        return features
    factors: Tensor = (bound / lengths.clamp_min(1e-30)).clamp_max(1.0)
    return features * factors.view(-1, *[1] * (features.dim() - 1))


def fingerprint_of(recipe: Scalars, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a recipe and of tensors, whatever the order in which they are given.

    >>> fingerprint_of({"a": 1}, {"w": torch.zeros(2)})[:8]
    '5262c22b'
    """
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(bytes_of(tensor.cpu()))
    return digest.hexdigest()
