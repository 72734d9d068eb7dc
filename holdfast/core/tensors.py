"""Small arithmetic on named tensors: as one vector, as bytes, their length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from holdfast.core.types import State, Tensors


def flat(tensors: Tensors, names: Sequence[str]) -> Tensor:
    """The named tensors as one vector."""
    return torch.cat([tensors[name].flatten() for name in names])


def in_order(tensors: Tensors, like: Tensors) -> Tensors:
    """The tensors in the order of these, which are those of a network.

    So a vector made of them means what it meant in earlier rounds, whichever order a client or a file lists them in.

    >>> list(in_order({"b": torch.zeros(1), "w": torch.zeros(2)}, {"w": torch.zeros(2), "b": torch.zeros(1)}))
    ['w', 'b']
    """
    return {name: tensors[name] for name in like if name in tensors}


def state_like(start: State, state: State) -> State:
    """A state that was read from a file, which lists tensors by name, with its model in the network's order."""
    return replace(state, model=in_order(state.model, start.model), buffers=in_order(state.buffers, start.buffers))


def unflat(vector: Tensor, like: Tensors) -> Tensors:
    """A vector cut into tensors of these names and shapes.

    >>> unflat(torch.tensor([1.0, 2.0, 3.0]), {"w": torch.zeros(1, 2), "b": torch.zeros(1)})
    {'w': tensor([[1., 2.]]), 'b': tensor([3.])}
    """
    parts = vector.split([tensor.numel() for tensor in like.values()])
    return {name: part.view(like[name].shape) for name, part in zip(like, parts, strict=True)}


def norm_of(tensors: Tensors) -> float:
    """The Euclidean norm of all the tensors as one vector; also where squares overflow single precision."""
    total = sum(float(tensor.square().sum(dtype=torch.float64)) for tensor in tensors.values())
    if math.isinf(total):
        total = sum(float(tensor.double().square().sum()) for tensor in tensors.values())
    return math.sqrt(total)


def bytes_of(tensor: Tensor) -> bytes:
    """The tensor's values as bytes, whatever its kind."""
    return view_of(tensor).tobytes()


def view_of(tensor: Tensor) -> memoryview:
    """As bytes_of, without a copy."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def half_of(tensor: torch.Tensor) -> torch.Tensor:
    """A float32 tensor as float16, unless it is too large for that: then it travels whole."""
    if tensor.dtype != torch.float32:
        return tensor
    half = tensor.half()
    return half if bool((half.isfinite() == tensor.isfinite()).all()) else tensor
