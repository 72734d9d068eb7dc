"""Weights of public networks from a file: numbers only, never code."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from holdfast.core.errors import HoldfastError, plain
from holdfast.core.types import Tensors


def read_weights(file: Path | str) -> Tensors:
    """The tensors of a .pth file (numbers only, no code) or a safetensors file."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise HoldfastError(f"encoder.weights: {path} is not a file; give the path of a .pth or safetensors file.")
    try:
        if path.suffix == ".safetensors":
            found = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a stranger's bytes: torch and safetensors have many words for what is wrong with them
        reason = plain(str(error).split("\n")[0], 100)
        raise HoldfastError(f"encoder.weights: {path} cannot be read ({reason}); is it a file of weights?") from None
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise HoldfastError(f"encoder.weights: {path} must hold named tensors, as torch.save(model.state_dict()) does.")
    return {str(name): tensor for name, tensor in found.items()}
