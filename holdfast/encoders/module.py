"""Any torch network as the public encoder, with weights from a file: what a consortium has pretrained or downloaded.

    encoder = {name = "module", network = "my_networks:make_encoder", weights = "encoder.safetensors"}

`network` names a function without arguments that makes the network, or a class. It reads samples as models do (images:
floats in [0, 1]; texts: their bytes as whole numbers), and gives (n, k); each row is divided by its length: |z| <= 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.core.errors import HoldfastError, plain
from holdfast.core.modules import import_path
from holdfast.encoders.contract import JUST_BELOW_ONE, Encoder, fingerprint_of
from holdfast.encoders.weights import read_weights

VERSION = 1  # raise it whenever the same options would give other features


@dataclass(frozen=True)
class Module:
    """A user's own network with weights from a .pth or safetensors file."""

    network: str
    weights: str
    whole: bool = False  # whether samples are whole numbers, as the bytes of texts are
    batch: int = 16

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        """The encoder for samples of this shape."""
        network = self.filled()
        sample = torch.zeros(2, *shape, dtype=torch.int64 if self.whole else torch.float32)
        try:
            with torch.no_grad():
                features = network(sample)
        except Exception as error:  # a user's own code
            reason = plain(str(error).split("\n")[0], 200)
            raise HoldfastError(
                f"encoder.network: {self.network} fails on samples of shape {shape}: {reason}"
            ) from None
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
            found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise HoldfastError(f"encoder.network: {self.network} must give features (n, k), got {found} for n = 2.")
        recipe = {"encoder": "module", "version": VERSION, "network": self.network, "shape": list(shape)}
        return Encoder(
            "module",
            tuple(shape),
            (features.shape[1],),
            fingerprint_of(recipe, network.state_dict()),
            OfLengthOne(network),
            norm_bound=1.0,
            batch=self.batch,
            costly=True,
        )

    def filled(self) -> nn.Module:
        """The network with its weights, which must fit it name by name."""
        make = import_path(self.network, "encoder.network")
        network = make() if callable(make) and not isinstance(make, nn.Module) else make
        if not isinstance(network, nn.Module):
            raise HoldfastError(
                f"encoder.network: {self.network} makes no torch.nn.Module, got {type(network).__name__}."
            )
        try:
            network.load_state_dict(read_weights(self.weights))
        except RuntimeError as error:
            reason = plain(" ".join(str(error).split()), 200)
            raise HoldfastError(f"encoder.weights: {self.weights} does not fit {self.network}: {reason}") from None
        return network.requires_grad_(False).eval()


class OfLengthOne(nn.Module):
    """A network whose rows are divided by their length."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, samples: Tensor) -> Tensor:
        return functional.normalize(self.network(samples).float(), dim=1) * JUST_BELOW_ONE
