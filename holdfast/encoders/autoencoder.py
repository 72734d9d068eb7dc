"""The FedDig paper's kind of encoder: a convolutional autoencoder's first half, 8 x 8 x 4 values after a ReLU.

It was trained to redraw drawn shapes, and no picture of anybody's was used. `random` is the same network, untrained.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import rng
from holdfast.core.types import Tensors
from holdfast.encoders.contract import Encoder, check_shape, fingerprint_of
from holdfast.encoders.guidance import guidance_producer, initialise

VERSION = 1
SHIPPED = Path(__file__).with_name("autoencoder.safetensors")
FEATURES = (4, 8, 8)
TRAINED_ON = {1: (1, 28, 28), 3: (3, 32, 32)}  # channels -> the pictures the shipped weights were trained on
HIDDEN = 16
STEP = 32  # images are framed in black to a multiple of this


class ConvEncoder(nn.Module):
    """Two rounds of convolution, ReLU and max-pooling, then four channels on an 8 x 8 grid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, HIDDEN, 3, padding=1)
        self.second = nn.Conv2d(HIDDEN, HIDDEN, 3, padding=1)
        self.third = nn.Conv2d(HIDDEN, FEATURES[0], 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.max_pool2d(self.first(frame(images)), 2).relu()
        hidden = functional.max_pool2d(self.second(hidden), 2).relu()
        return functional.adaptive_avg_pool2d(self.third(hidden), FEATURES[1:]).relu()


def frame(images: Tensor) -> Tensor:
    """Images with a black frame, so that their sides are multiples of 32.

    >>> frame(torch.ones(1, 1, 28, 30)).shape
    torch.Size([1, 1, 32, 32])
    """
    height, width = images.shape[2:]
    down, across = math.ceil(height / STEP) * STEP - height, math.ceil(width / STEP) * STEP - width
    return functional.pad(images, (across // 2, across - across // 2, down // 2, down - down // 2))


@dataclass(frozen=True)
class Autoencoder:
    """The encoder of an autoencoder that was trained on drawn shapes; its weights come with the package."""

    never_negative: ClassVar[bool] = True  # after a ReLU

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        """The encoder for images of this shape, grey or colour."""
        check_shape(shape, "autoencoder", smallest=16, channels=tuple(TRAINED_ON))
        weights = shipped_weights("encoder", shape[0])
        network = _empty(shape[0])
        network.load_state_dict(weights)
        recipe = {"encoder": "autoencoder", "version": VERSION, "shape": list(shape)}
        return Encoder("autoencoder", tuple(shape), FEATURES, fingerprint_of(recipe, weights), network)

    def decoder(self, shape: tuple[int, ...]) -> nn.Module:
        """The other half, the adversary's pseudo-inverse of the encoder: features (n, 4, 8, 8) to images in [0, 1]."""
        if tuple(shape) not in TRAINED_ON.values():
            known = " or ".join(map(str, TRAINED_ON.values()))
            raise HoldfastError(
                f"encoder 'autoencoder': its decoder draws images of shape {known}, not {tuple(shape)}."
            )
        network = guidance_producer(FEATURES, shape, torch.Generator())
        network.load_state_dict(shipped_weights("decoder", shape[0]))
        return network.requires_grad_(False).eval()


@dataclass(frozen=True)
class RandomConv:
    """The autoencoder's network with random weights: what an encoder is worth that has learnt nothing."""

    never_negative: ClassVar[bool] = True  # after a ReLU

    seed: int = 0

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        """The encoder for images of this shape."""
        check_shape(shape, "random", smallest=16)
        network = _empty(shape[0])
        initialise(network, rng(self.seed, -1, -1, "random encoder"))
        recipe = {"encoder": "random", "version": VERSION, "shape": list(shape)}
        return Encoder("random", tuple(shape), FEATURES, fingerprint_of(recipe, network.state_dict()), network)


def _empty(channels: int) -> ConvEncoder:
    """The network before its weights are set, frozen; building it draws nothing from the global generator."""
    with torch.device("meta"):
        network = ConvEncoder(channels)
    network.to_empty(device="cpu")
    network.requires_grad_(False)
    return network


@functools.cache
def shipped_weights(half: str, channels: int) -> Tensors:
    """The weights of one half for this number of channels, as they come with the package."""
    group = f"{half}/{channels}/"
    return {name.removeprefix(group): w for name, w in load_file(SHIPPED).items() if name.startswith(group)}
