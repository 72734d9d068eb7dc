"""Our models: small, GroupNorm where there is a norm, and pooling before ReLU (the same function, less work)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import seed_of
from holdfast.core.types import Tensors
from holdfast.models.contract import Model, Shape
from holdfast.models.heads import Head
from holdfast.models.mobilenet import last_channels, mobilenet_layers

__all__ = ["MODELS", "Layout", "Model", "Shape", "buffers_of", "fill", "initialise", "laid_out", "lent", "weights_of"]

WIDE = 512  # hidden units of the network that learns from digests, where none is named
Norm = Literal["group", "batch", "none"]
Layout = Literal["channels-last", "plain"]


@dataclass(frozen=True)
class Cnn(Model):
    """conv 32, conv 64, fc 128: the network of most federated papers, with 3x3 kernels; a third is conv 64 again."""

    norm: Norm = "group"
    width: int = 32
    hidden: int = 128
    depth: int = 2  # convolutions

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= 3:
            raise ValueError(f"depth must be 1, 2 or 3, got {self.depth}.")
        some_units(width=self.width, hidden=self.hidden)

    def build(self, shape: Shape, outputs: int, features: Shape) -> nn.Module:
        if len(shape) != 3 or min(shape[1:]) < 8:
            raise HoldfastError(f"model 'cnn' takes pictures of at least 8x8, got samples of shape {shape}; try 'mlp'.")
        return nn.Sequential(*self.trunk(shape), nn.Linear(self.hidden, outputs))

    def trunk(self, shape: Shape) -> list[nn.Module]:
        """Everything but the last layer."""
        before, height, width = shape
        layers: list[nn.Module] = []
        for after in (self.width, 2 * self.width, 2 * self.width)[: self.depth]:
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(2), norm_layer(self.norm, after), nn.ReLU()]
            before, height, width = after, height // 2, width // 2
        return [*layers, nn.Flatten(), nn.Linear(before * height * width, self.hidden), nn.ReLU()]


@dataclass(frozen=True)
class MobileNet(Model):
    """MobileNetV2 (the FedDig paper's model for CIFAR-100), with `width` times the printed channels."""

    norm: Norm = "group"
    width: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.width <= 8:
            raise ValueError(f"width must lie between 0 and 8, got {self.width}.")

    def build(self, shape: Shape, outputs: int, features: Shape) -> nn.Module:
        return nn.Sequential(*self.trunk(shape), nn.Linear(last_channels(self.width), outputs))

    def trunk(self, shape: Shape) -> list[nn.Module]:
        """Everything but the last layer."""
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise HoldfastError(f"model 'mobilenetv2' takes pictures of at least 16x16, got samples of shape {shape}.")
        layers = mobilenet_layers(shape[0], self.norm_of, self.width, small=min(shape[1:]) < 64)
        for layer in layers.modules():
            if isinstance(layer, nn.Conv2d):  # before a norm, smaller weights would only mean longer steps
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        return [layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()]

    def norm_of(self, channels: int) -> nn.Module:
        """Groups of at least 8 channels: its thin layers would otherwise lose each channel's mean, hence colours."""
        return norm_layer(self.norm, channels, groups=min(8, channels // 8))


@dataclass(frozen=True)
class Mlp(Model):
    """One hidden layer; takes pictures or vectors."""

    hidden: int = 64

    def __post_init__(self) -> None:
        some_units(hidden=self.hidden)

    def build(self, shape: Shape, outputs: int, features: Shape) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(int(torch.Size(shape).numel()), self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, outputs),
        )


@dataclass(frozen=True)
class Linear(Model):
    """One layer: softmax regression, or linear regression."""

    def build(self, shape: Shape, outputs: int, features: Shape) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(int(torch.Size(shape).numel()), outputs))


@dataclass(frozen=True)
class Features(Model):
    """F_D and C: one hidden layer on the encoded features, several times cheaper than `full`."""

    inputs: ClassVar[tuple[str, ...]] = ("features",)
    hidden: int = 128

    def __post_init__(self) -> None:
        some_units(hidden=self.hidden)

    def build(self, shape: Shape, outputs: int, features: Shape) -> nn.Module:
        return nn.Sequential(*feature_trunk(features, self.hidden), nn.Linear(self.hidden, outputs))


@dataclass(frozen=True)
class Full(Model):
    """F_R on the image (or its guidance), F_D on the features, C on both: FedDig's model."""

    inputs: ClassVar[tuple[str, ...]] = ("image", "features")
    norm: Norm = "group"
    width: float | None = None  # of F_R, as its own model has it; none: as usual there
    hidden: int = 128
    image: Literal["cnn", "mobilenetv2"] = "cnn"  # F_R

    def __post_init__(self) -> None:
        if self.image == "cnn" and self.width is not None and (self.width < 1 or self.width % 1):
            raise ValueError(f"width must be a whole number of channels for image = 'cnn', got {self.width}.")
        some_units(hidden=self.hidden)

    def build(self, shape: Shape, outputs: int, features: Shape) -> nn.Module:
        if len(shape) != 3 or min(shape[1:]) < 8:
            raise HoldfastError(
                f"model 'full' takes pictures of at least 8x8, got samples of shape {shape}; try 'features'."
            )
        if self.image == "cnn":
            image, seen = Cnn(self.norm, int(self.width or Cnn.width), self.hidden).trunk(shape), self.hidden
        else:
            width = MobileNet.width if self.width is None else self.width
            image, seen = MobileNet(self.norm, width).trunk(shape), last_channels(width)
        f_d = nn.Sequential(*feature_trunk(features, self.hidden))
        return TwoSided(nn.Sequential(*image), f_d, nn.Linear(seen + self.hidden, outputs))


def some_units(**sizes: int) -> None:
    """Refuse a layer without units, behind which nothing can be learnt."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}.")


class TwoSided(nn.Module):
    """C(F_R(R), F_D(r))."""

    def __init__(self, image: nn.Module, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.f_r, self.f_d, self.c = image, features, head

    def forward(self, image: Tensor, features: Tensor) -> Tensor:
        output: Tensor = self.c(torch.cat([self.f_r(image), self.f_d(features)], dim=1))
        return output


class Scale(nn.Module):
    """Multiplication by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def feature_trunk(features: Shape, hidden: int) -> list[nn.Module]:
    """F_D: a hidden layer on flat features, which have length one and are spread out first; on maps, a convolution."""
    if len(features) == 1:
        return [Scale(features[0] ** 0.5), nn.Linear(features[0], hidden), nn.ReLU()]
    channels, height, width = features
    convolution = [nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.Flatten()]
    return [*convolution, nn.Linear(32 * height * width, hidden), nn.ReLU()]


MODELS: dict[str, type[Model]] = {
    "cnn": Cnn,
    "mobilenetv2": MobileNet,
    "mlp": Mlp,
    "linear": Linear,
    "features": Features,
    "full": Full,
    "head": Head,
}


def norm_layer(norm: Norm, channels: int, groups: int = 8) -> nn.Module:
    if norm == "group":
        return nn.GroupNorm(min(groups, channels), channels)
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.Identity()


def initialise(build: Callable[[], nn.Module], seed: int, layout: Layout = "channels-last") -> nn.Module:
    """A model whose first weights depend on the seed alone, leaving the global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, -1, -1, "model"))
        return laid_out(build(), layout)


def laid_out(model: nn.Module, layout: Layout) -> nn.Module:
    """Channels-last where there are convolutions: the same function, a third faster on CPUs."""
    if layout == "channels-last" and has_convolutions(model):
        for weight in model.parameters():
            if weight.dim() == 4:  # `contiguous` would leave the weights of one channel as they are: they count as both
                weight.data = weight.data.to(memory_format=torch.channels_last)
    return model


def has_convolutions(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d | nn.ConvTranspose2d) for module in model.modules())


def weights_of(model: nn.Module) -> Tensors:
    """A copy of the weights, plain contiguous tensors in main memory."""
    return {
        name: weight.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, weight in model.named_parameters()
    }


def weights_from(model: nn.Module) -> Tensors:
    """As weights_of, of a model that is not used any more: copied only where they do not lie plainly."""
    return {
        name: weight.detach()
        if lies_plainly(weight) and weight.nbytes == weight.untyped_storage().nbytes()
        else weight.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, weight in model.named_parameters()
    }


def buffers_of(model: nn.Module) -> Tensors:
    """A copy of the buffers (BatchNorm's statistics): not learnt, so a group of their own."""
    return {
        name: buffer.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, buffer in model.named_buffers()
    }


@torch.no_grad()
def fill(model: nn.Module, weights: Tensors, buffers: Tensors) -> None:
    """Put weights and buffers into the model, in place."""
    for name, weight in model.named_parameters():
        if is_hollow(weight):
            weight.data = weights[name].clone()
        else:
            weight.copy_(weights[name])
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])


@contextmanager
def filled(model: nn.Module, weights: Tensors, buffers: Tensors) -> Iterator[None]:
    """As `fill`, where `lent` may be meant in its place."""
    fill(model, weights, buffers)
    yield


@contextmanager
def lent(model: nn.Module, weights: Tensors, buffers: Tensors) -> Iterator[None]:
    """Meanwhile the model computes with these very weights, not with copies: for tests, which change none of them."""
    hollow(model)
    for name, weight in model.named_parameters():
        if is_hollow(weight):
            weight.data = weights[name]
        else:
            weight.data.copy_(weights[name])
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    try:
        yield
    finally:
        hollow(model)


def hollow(model: nn.Module) -> None:
    """Let go of the memory of weights that lie as they travel, until `fill` or `lent` put some in."""
    for weight in model.parameters():
        if lies_plainly(weight):
            weight.data = torch.zeros((), dtype=weight.dtype).expand(weight.shape)


def is_hollow(weight: Tensor) -> bool:
    return weight.numel() > 1 and not any(weight.stride())


def lies_plainly(weight: Tensor) -> bool:
    """In main memory and contiguous; channels-last weights of one channel count as that too, and do not."""
    return weight.device.type == "cpu" and weight.is_contiguous() and (weight.dim() != 4 or weight.stride(1) != 1)
