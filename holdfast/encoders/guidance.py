"""The guidance producer P_G: from features to a picture a model can be trained on; private to the moderator."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError

LAYERS = 3
HIDDEN = (32, 16)


class GuidanceProducer(nn.Module):
    """Three deconvolutions and a sigmoid; flat features first become a small picture by one linear layer."""

    def __init__(self, feature_shape: tuple[int, ...], image_shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.size = (height, width)
        self.start = _start(feature_shape, image_shape)
        self.spread = nn.Linear(feature_shape[0], math.prod(self.start)) if len(feature_shape) == 1 else nn.Identity()
        factor = max(height / self.start[1], width / self.start[2])
        widths = (self.start[0], *HIDDEN, channels)
        layers: list[nn.Module] = []
        for number, stride in enumerate(strides(factor)):
            kernel = max(4, stride) if stride > 1 else 3
            layers += [
                nn.ConvTranspose2d(widths[number], widths[number + 1], kernel, stride, (kernel - stride) // 2),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers[:-1], nn.Sigmoid())

    def forward(self, features: Tensor) -> Tensor:
        picture: Tensor = self.layers(self.spread(features).reshape(-1, *self.start))
        top = (picture.shape[2] - self.size[0]) // 2
        left = (picture.shape[3] - self.size[1]) // 2
        return picture[:, :, top : top + self.size[0], left : left + self.size[1]]


def strides(factor: float) -> list[int]:
    """How much each of the three layers enlarges the picture: powers of two, whose product is at least the factor.

    >>> strides(4), strides(32), strides(3.5), strides(1)
    ([2, 2, 1], [4, 4, 2], [2, 2, 1], [1, 1, 1])
    """
    doublings = max(0, math.ceil(math.log2(factor)))
    shares = [doublings // LAYERS + (layer < doublings % LAYERS) for layer in range(LAYERS)]
    return [2**share for share in shares]


def _start(feature_shape: tuple[int, ...], image_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape the deconvolutions start from: that of the features, or at most 8 x 8 for flat ones."""
    if len(feature_shape) == 3:
        return (feature_shape[0], feature_shape[1], feature_shape[2])
    sides = list(image_shape[1:])
    while max(sides) > 8:
        sides = [math.ceil(side / 2) for side in sides]
    return (HIDDEN[0], sides[0], sides[1])


def guidance_producer(
    feature_shape: tuple[int, ...], image_shape: tuple[int, ...], generator: torch.Generator
) -> nn.Module:
    """P_G for features (k,) or (c, h, w): a network whose output has the image's shape and lies in [0, 1].

    >>> producer = guidance_producer((4, 8, 8), (1, 28, 28), torch.Generator().manual_seed(0))
    >>> producer(torch.zeros(2, 4, 8, 8)).shape
    torch.Size([2, 1, 28, 28])
    """
    if len(feature_shape) not in (1, 3) or len(image_shape) != 3 or min(*feature_shape, *image_shape) < 1:
        raise HoldfastError(
            f"guidance: features must have shape (k,) or (c, h, w) and images (channels, height, width), got "
            f"{tuple(feature_shape)} and {tuple(image_shape)}; train on the features alone instead."
        )
    with torch.device("meta"):  # so that building it draws nothing from the global generator
        producer = GuidanceProducer(feature_shape, image_shape)
    producer.to_empty(device="cpu")
    initialise(producer, generator)
    return producer


def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """He's uniform weights for every layer, zero biases, and plain batch norms, from the generator alone."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            _he_uniform(layer.weight, layer.weight[0].numel(), generator)
        elif isinstance(layer, nn.ConvTranspose2d):
            taps = layer.weight[0, 0].numel() / (layer.stride[0] * layer.stride[1])
            _he_uniform(layer.weight, layer.weight.shape[0] * taps, generator)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()  # ones and zeros: nothing is drawn
        if isinstance(layer, nn.Conv2d | nn.Linear | nn.ConvTranspose2d) and layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _he_uniform(weight: Tensor, inputs: float, generator: torch.Generator) -> None:
    bound = math.sqrt(6.0 / inputs)
    with torch.no_grad():
        weight.copy_(torch.rand(weight.shape, generator=generator) * (2 * bound) - bound)
