"""What every public encoder P_R offers: images in, features out, and a fingerprint all sites can compare."""

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


@dataclass(frozen=True)
class Encoder:
    """An encoder made for one shape of image; it has no state and learns nothing."""

    name: str
    image_shape: tuple[int, ...]
    feature_shape: tuple[int, ...]
    fingerprint: str  # SHA-256 of all that determines the features: the same on every site, or the digests do not mix
    network: nn.Module  # float images in [0, 1] (n, C, H, W) -> features (n, *feature_shape)
    norm_bound: float | None = None  # no feature vector in a digest is longer than this; None: no bound is known
    batch: int = 250

    def encode(self, images: Tensor) -> Tensor:
        """Features (N, *feature_shape), float32, of images (N, C, H, W), uint8 or float in [0, 1]."""
        check_images(images, self.image_shape, f"encoder {self.name!r}")
        if len(images) == 0:
            return torch.empty(0, *self.feature_shape)
        self.network.eval()
        with torch.no_grad():
            return torch.cat([self.network(as_floats(some)).contiguous() for some in images.split(self.batch)])


class EncoderChoice(Protocol):
    """What an experiment may choose: a frozen dataclass of options that makes an encoder for a shape of image."""

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder: ...


def as_floats(images: Tensor) -> Tensor:
    """Images as float32 in [0, 1]."""
    return images.float() / 255.0 if images.dtype == torch.uint8 else images.float()


def check_images(images: Tensor, shape: tuple[int, ...], where: str) -> None:
    """Refuse samples of another shape or kind, images with floats outside [0, 1], vectors that are not finite."""
    if images.ndim != len(shape) + 1 or tuple(images.shape[1:]) != tuple(shape):
        raise HoldfastError(
            f"{where}: it was made for images of shape {tuple(shape)}, but got a tensor of shape "
            f"{tuple(images.shape)}; make an encoder for that shape."
        )
    if images.dtype == torch.uint8:
        return
    if not images.is_floating_point():
        raise HoldfastError(f"{where}: images must be uint8 or float in [0, 1], not {images.dtype}.")
    if len(shape) != 3:
        if not bool(images.isfinite().all()):
            raise HoldfastError(f"{where}: some samples are not finite.")
        return
    if len(images) and not (float(images.min()) >= 0.0 and float(images.max()) <= 1.0):  # NaN fails too
        raise HoldfastError(f"{where}: float images must lie in [0, 1]; divide by their largest possible value first.")


def check_shape(shape: tuple[int, ...], name: str, smallest: int, channels: tuple[int, ...] | None = None) -> None:
    """Refuse image shapes an encoder cannot work on."""
    if len(shape) != 3 or min(shape) < 1:
        raise HoldfastError(
            f"encoder {name!r}: it encodes images of shape (channels, height, width), but the task's samples have "
            f"shape {tuple(shape)}; choose an encoder of your own for them."
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
