"""EfficientNet-Lite0 without its classifier, from the published weights: images to 1,280 pooled values.

Each batch norm is folded into the convolution before it, the same function in half the layers:

    w' = w g / sqrt(v + e),   b' = b - m g / sqrt(v + e)

Reference: Tan and Le, "EfficientNet: rethinking model scaling for convolutional neural networks", 2019; Lite is that
network without squeeze-and-excitation, with ReLU6 in place of swish.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.core.types import Tensors

POOLED = 1280
CLASSIFIER = "_fc.weight"  # of the file
EPSILON = 1e-3  # of the batch norms
# kernel, stride, expansion, channels in and out; after the first block of a stage, stride 1 and as many in as out
STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)


class SameConv(nn.Conv2d):
    """A convolution that pads as TensorFlow's "same" does: at the far side first."""

    def forward(self, images: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        down, across = (max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in images.shape[2:])
        if down or across:
            images = functional.pad(images, (across // 2, across - across // 2, down // 2, down - down // 2))
        return super().forward(images)


class Block(nn.Module):
    """An inverted residual: widen, filter each channel, narrow."""

    def __init__(self, kernel: int, stride: int, expansion: int, inside: int, outside: int) -> None:
        super().__init__()
        wide = inside * expansion
        self.expand = SameConv(inside, wide, 1) if expansion > 1 else None
        self.depthwise = SameConv(wide, wide, kernel, stride, groups=wide)
        self.project = SameConv(wide, outside, 1)
        self.skip = stride == 1 and inside == outside

    def forward(self, images: Tensor) -> Tensor:
        wide = images if self.expand is None else functional.relu6(self.expand(images), inplace=True)
        out: Tensor = self.project(functional.relu6(self.depthwise(wide), inplace=True))
        return out + images if self.skip else out


class Lite0(nn.Module):
    """Pixels as (x - 127) / 128 to the means of 1,280 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = SameConv(3, 32, 3, 2)
        blocks = []
        for repeats, kernel, stride, expansion, inside, outside in STAGES:
            blocks.append(Block(kernel, stride, expansion, inside, outside))
            blocks += [Block(kernel, 1, expansion, outside, outside) for _ in range(repeats - 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = SameConv(320, POOLED, 1)

    def forward(self, images: Tensor) -> Tensor:
        images = self.blocks(functional.relu6(self.stem(images), inplace=True))
        return functional.relu6(self.head(images), inplace=True).mean((2, 3))


def lite0_from(weights: Tensors) -> Lite0:
    """The network with the weights of a file of EfficientNet-Lite0; a missing name is a KeyError."""
    with torch.device("meta"):
        network = Lite0()
    network.to_empty(device="cpu").requires_grad_(False).eval()
    _fold(network.stem, weights, "_conv_stem", "_bn0")
    for number, block in enumerate(network.blocks):
        assert isinstance(block, Block)
        if block.expand is not None:
            _fold(block.expand, weights, f"_blocks.{number}._expand_conv", f"_blocks.{number}._bn0")
        _fold(block.depthwise, weights, f"_blocks.{number}._depthwise_conv", f"_blocks.{number}._bn1")
        _fold(block.project, weights, f"_blocks.{number}._project_conv", f"_blocks.{number}._bn2")
    _fold(network.head, weights, "_conv_head", "_bn1")
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _fold(into: nn.Conv2d, weights: Tensors, convolution: str, norm: str) -> None:
    """Set a convolution to the file's convolution followed by its batch norm."""
    factors = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + EPSILON).sqrt()
    assert into.bias is not None
    into.weight.copy_(weights[f"{convolution}.weight"] * factors.view(-1, 1, 1, 1))
    into.bias.copy_(weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * factors)
