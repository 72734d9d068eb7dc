"""The recommended encoder: moduli of fixed Gabor filters, seen along the principal directions of drawn shapes.

For an image x, and its copies x_0 = x, x_1, x_2, each half the size of the one before:

    s = [ pool(x) / 2, and pool( sqrt |x_j * g_t| ) for 3 scales j and 8 orientations t ],   pool: means on a 7 x 7 grid
    u = s / |s|
    z = W (u - m) / |W (u - m)|,    W = diag((lambda_i / lambda_1)^(-1/4)) V

where m, V, lambda are the mean, the first k principal directions and their variances of u over drawn shapes. So a grey
image gives 25 x 49 = 1,225 values and then k, nothing is learnt from anybody's data, and |z| <= 1. Of a colour image,
its lightness and its two opponent colours are treated alike and put side by side.

Reference: Bruna and Mallat, "Invariant scattering convolution networks", 2013, for the moduli.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from holdfast.core.errors import HoldfastError
from holdfast.core.types import Tensors
from holdfast.encoders.contract import JUST_BELOW_ONE, Encoder, as_read, check_shape, fingerprint_of
from holdfast.encoders.shapes import draw_shapes

VERSION = 1  # raise it whenever the same options would give other features
SHIPPED = Path(__file__).with_name("scattering.safetensors")
SHIPPED_DIRECTIONS = 128
SCALES = 3
ORIENTATIONS = 8
GRID = 7
TAPS = 9  # pixels of a filter's side
LOW_PASS = 0.5  # weight of the plain means beside the moduli
LONGEST = 64  # an image whose shorter side is longer is averaged down to it first
PICTURES = 2000  # drawn shapes whose principal directions are taken


@dataclass(frozen=True)
class Scattering:
    """Gabor moduli on `directions` principal directions of drawn shapes, re-weighted by (lambda/lambda_1)^-`power`."""

    directions: int = 128
    power: float = 0.25

    def __post_init__(self) -> None:
        if self.directions < 1:
            raise HoldfastError(f"encoder.directions: at least 1 is needed, got {self.directions}.")
        if not 0.0 <= self.power <= 1.0:
            raise HoldfastError(f"encoder.power: must lie in [0, 1], got {self.power}.")

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        """The encoder for images of this shape; the directions for common shapes come with the package."""
        check_shape(shape, "scattering", smallest=8)
        channels, height, width = shape
        most = min(PICTURES - 1, channels * (SCALES * ORIENTATIONS + 1) * GRID * GRID)
        if self.directions > most:
            raise HoldfastError(
                f"encoder.directions: images of shape {tuple(shape)} have {most} directions at most, "
                f"got {self.directions}."
            )
        shipped = shipped_axes(shape) if self.directions <= SHIPPED_DIRECTIONS else None
        axes = shipped or principal_axes((channels, *working_size(height, width)), self.directions)
        recipe = {
            "encoder": "scattering",
            "version": VERSION,
            "shape": list(shape),
            "directions": self.directions,
            "power": self.power,
        }
        # Computed axes differ in their last bits from machine to machine: there the recipe alone is the fingerprint.
        fingerprint = fingerprint_of(recipe, shipped or {})
        network = ScatteringNetwork(axes, self.directions, self.power)
        return Encoder("scattering", tuple(shape), (self.directions,), fingerprint, network, norm_bound=1.0)


class ScatteringNetwork(nn.Module):
    """Images to z, see the head of this file."""

    kernels: Tensor
    mean: Tensor
    weights: Tensor

    def __init__(self, axes: Tensors, count: int, power: float) -> None:
        super().__init__()
        variances = axes["variances"][:count].double()
        weights = axes["directions"][:, :count].double() * (variances / variances[0]) ** -power
        self.register_buffer("kernels", gabor_kernels())
        self.register_buffer("mean", axes["mean"].float())
        self.register_buffer("weights", weights.float())

    def forward(self, images: Tensor) -> Tensor:
        moduli = functional.normalize(gabor_moduli(images, self.kernels), dim=1)
        return functional.normalize((moduli - self.mean) @ self.weights, dim=1) * JUST_BELOW_ONE


def gabor_kernels() -> Tensor:
    """Even and odd Gabor filters in turn, (2 x ORIENTATIONS, 1, TAPS, TAPS): a Gaussian times a wave.

    Wave number 3 pi / 4, deviation 0.8 pixels along the wave and 1.6 across it; a flat image gives 0.
    """
    steps = torch.arange(TAPS, dtype=torch.float64) - TAPS // 2
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    kernels = []
    for turn in range(ORIENTATIONS):
        angle = math.pi * turn / ORIENTATIONS
        along = x * math.cos(angle) + y * math.sin(angle)
        across = y * math.cos(angle) - x * math.sin(angle)
        window = torch.exp(-(along**2 + across**2 / 4) / (2 * 0.8**2))
        window /= window.sum()
        even = window * torch.cos(along * 3 * math.pi / 4)
        kernels += [even - window * even.sum(), window * torch.sin(along * 3 * math.pi / 4)]
    return torch.stack(kernels)[:, None].float()


def gabor_moduli(images: Tensor, kernels: Tensor) -> Tensor:
    """The values s of float images (n, C, H, W), (n, C x 25 x 49); see the head of this file."""
    size = working_size(images.shape[2], images.shape[3])
    if size != tuple(images.shape[2:]):
        images = functional.interpolate(images, size, mode="area")
    planes = opponent_colours(images)
    count, channels = planes.shape[:2]
    parts = [LOW_PASS * functional.adaptive_avg_pool2d(planes, GRID).flatten(1)]
    layer = planes.reshape(count * channels, 1, *planes.shape[2:])
    for scale in range(SCALES):
        padded = functional.pad(layer, (TAPS // 2,) * 4, mode="replicate")
        # At the finest scale every second place is enough, since the moduli are averaged next.
        waves = functional.conv2d(padded, kernels, stride=2 if scale == 0 else 1)
        energy = waves[:, 0::2].square() + waves[:, 1::2].square()
        moduli = (energy + 1e-6).sqrt().sqrt()  # |.| and then the square root that evens out strong and faint edges
        parts.append(functional.adaptive_avg_pool2d(moduli, GRID).reshape(count, -1))
        if scale + 1 < SCALES:
            layer = functional.avg_pool2d(layer, 2)
    return torch.cat(parts, dim=1)


def working_size(height: int, width: int) -> tuple[int, int]:
    """The size at which images are filtered: their own, or with a shorter side of 64.

    >>> working_size(28, 28), working_size(224, 448)
    ((28, 28), (64, 128))
    """
    shrink = min(1.0, LONGEST / min(height, width))
    return round(height * shrink), round(width * shrink)


def opponent_colours(images: Tensor) -> Tensor:
    """Red, green, blue as lightness, red against green, and yellow against blue; other numbers of channels as they are.

    >>> opponent_colours(torch.tensor([1.0, 1.0, 0.0]).view(1, 3, 1, 1)).flatten().tolist()
    [0.6666666865348816, 0.0, 0.5]
    """
    if images.shape[1] != 3:
        return images
    red, green, blue = images.unbind(1)
    return torch.stack([(red + green + blue) / 3, (red - green) / 2, (red + green - 2 * blue) / 4], dim=1)


@functools.cache
def principal_axes(shape: tuple[int, int, int], count: int) -> Tensors:
    """Mean, first principal directions (columns) and variances of the normed moduli of drawn shapes."""
    kernels = gabor_kernels()
    pictures = draw_shapes(PICTURES, shape)
    moduli = torch.cat([gabor_moduli(as_read(some), kernels) for some in pictures.split(250)])
    unit = functional.normalize(moduli.double(), dim=1)
    mean = unit.mean(0)
    rest = unit - mean
    # The pictures' products with each other have the same variances as the covariance, and are fewer.
    variances, mixes = torch.linalg.eigh(rest @ rest.T / PICTURES)
    variances = variances.flip(0)[:count]
    directions = functional.normalize(rest.T @ mixes.flip(1)[:, :count], dim=0)
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    return {"mean": mean, "directions": directions * largest.sign(), "variances": variances.clamp(min=1e-12)}


@functools.cache
def shipped_axes(shape: tuple[int, ...]) -> Tensors | None:
    """The axes that come with the package for this shape of image, or None."""
    group = "x".join(map(str, shape)) + "/"
    tensors = {name: tensor for name, tensor in load_file(SHIPPED).items() if name.startswith(group)}
    return {name.removeprefix(group): tensor for name, tensor in tensors.items()} or None
