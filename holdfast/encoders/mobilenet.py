"""MobileNetV2 up to its average pool, for users who have weights of their own (CIFAR-100 in the FedDig paper).

The network is in holdfast/models/mobilenet.py. The parameters have the names that are customary for it
(``features.0.0.weight``), so a published weights file can be used once it is converted to safetensors; entries of the
classifier are left aside.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import rng
from holdfast.core.types import Tensors
from holdfast.encoders.contract import Encoder, check_shape, fingerprint_of
from holdfast.encoders.guidance import initialise
from holdfast.models.mobilenet import LAST, mobilenet_layers

VERSION = 1
# Mean and deviation of ImageNet's channels, which published weights expect.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class MobileNetFeatures(nn.Module):
    """The layers before the average pool: images in [0, 1] to (n, 1280, H / 32, W / 32)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = mobilenet_layers(3, nn.BatchNorm2d)

    def forward(self, images: Tensor) -> Tensor:
        mean = torch.tensor(MEAN).view(1, 3, 1, 1)
        deviation = torch.tensor(DEVIATION).view(1, 3, 1, 1)
        out: Tensor = self.features((images - mean) / deviation)
        return out


@dataclass(frozen=True)
class MobileNetV2:
    """MobileNetV2 with the weights of a safetensors file, or with `weights = "random"` and a seed."""

    never_negative: ClassVar[bool] = True  # after a ReLU

    weights: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.weights:
            raise HoldfastError(
                "encoder 'mobilenetv2': no weights come with the package; name a safetensors file, as in "
                'encoder = {name = "mobilenetv2", weights = "mobilenet_v2.safetensors"}, or say weights = "random" '
                "(on the command line: mobilenetv2:weights=mobilenet_v2.safetensors, mobilenetv2:weights=random)."
            )

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        """The encoder for colour images of this shape."""
        check_shape(shape, "mobilenetv2", smallest=32, channels=(3,))
        with torch.device("meta"):
            network = MobileNetFeatures()
        network.to_empty(device="cpu")
        if self.weights == "random":
            initialise(network, rng(self.seed, -1, -1, "mobilenetv2"))
        else:
            network.load_state_dict(read_weights(self.weights, network.state_dict()))
        network.requires_grad_(False)
        recipe = {"encoder": "mobilenetv2", "version": VERSION, "shape": list(shape)}
        fingerprint = fingerprint_of(recipe, network.state_dict())
        sides = [-(-side // 32) for side in shape[1:]]
        return Encoder("mobilenetv2", tuple(shape), (LAST, *sides), fingerprint, network, batch=50)


def read_weights(path: str, expected: Tensors) -> Tensors:
    """The file's weights for the layers before the average pool; anything missing or of another shape is refused."""
    where = f"encoder.weights: {path}"
    if not Path(path).is_file():
        raise HoldfastError(f"{where} is not a file; give the path of a safetensors file with MobileNetV2's weights.")
    try:
        found = load_file(path)
    except (SafetensorError, OSError) as error:
        raise HoldfastError(f"{where} cannot be read as safetensors ({error}); convert the weights first.") from None
    for name, tensor in expected.items():
        if name.endswith("num_batches_tracked"):
            continue
        if name not in found:
            raise HoldfastError(f"{where} has no {name!r}; are these the weights of a MobileNetV2 of width 1.0?")
        if found[name].shape != tensor.shape:
            raise HoldfastError(
                f"{where}: {name!r} has shape {tuple(found[name].shape)}, expected {tuple(tensor.shape)}; "
                "are these the weights of a MobileNetV2 of width 1.0?"
            )
        if not bool(torch.isfinite(found[name]).all()):
            raise HoldfastError(f"{where}: {name!r} holds values that are not finite; fetch the file again.")
    zero = torch.tensor(0)
    return {name: found.get(name, zero) for name in expected}
