"""MobileNetV2's layers before the average pool, for the encoder and for models that are trained.

Reference: Sandler et al., "MobileNetV2: Inverted residuals and linear bottlenecks", 2018, Table 2. Small pictures (of
32 x 32, say) are halved three times instead of five: the first two layers with a stride of 2 have 1.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Norm = Callable[[int], nn.Module]  # channels -> the layer

LAST = 1280  # channels of the last layer, also where the others are narrower
# Expansion, channels, repetitions, stride.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class InvertedResidual(nn.Module):
    """Widen, filter each channel by itself, narrow; added to the input where shapes allow."""

    def __init__(self, before: int, after: int, stride: int, expansion: int, norm: Norm) -> None:
        super().__init__()
        wide = before * expansion
        widen = [convolution(before, wide, 1, norm)] if expansion > 1 else []
        narrow = [nn.Conv2d(wide, after, 1, bias=False), norm(after)]
        self.conv = nn.Sequential(*widen, convolution(wide, wide, 3, norm, stride, groups=wide), *narrow)
        self.added = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.added else out


def convolution(before: int, after: int, kernel: int, norm: Norm, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, norm, ReLU6."""
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False), norm(after), nn.ReLU6()
    )


def mobilenet_layers(channels: int, norm: Norm, width: float = 1.0, small: bool = False) -> nn.Sequential:
    """Pictures (n, channels, H, W) to (n, 1280, H / 32, W / 32), for small pictures to H / 8, W / 8.

    `width` multiplies the printed channels, as in the paper; from 1 on the last layer's too.
    """
    before = round_channels(32 * width)
    layers: list[nn.Module] = [convolution(channels, before, 3, norm, stride=1 if small else 2)]
    for number, (expansion, printed, repetitions, stride) in enumerate(STAGES):
        after = round_channels(printed * width)
        for repetition in range(repetitions):
            halves = repetition == 0 and not (small and number == 1)
            layers.append(InvertedResidual(before, after, stride if halves else 1, expansion, norm))
            before = after
    return nn.Sequential(*layers, convolution(before, last_channels(width), 1, norm))


def last_channels(width: float) -> int:
    """Channels of the last layer."""
    return round_channels(LAST * max(1.0, width))


def round_channels(channels: float) -> int:
    """The nearest multiple of 8, at least 8, and not more than a tenth below.

    >>> round_channels(32 * 0.75), round_channels(16 * 0.25), round_channels(24 * 0.5)
    (24, 8, 16)
    """
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest
