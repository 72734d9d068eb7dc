"""Fewer bytes: what a client sends of its update, with what it left out kept for the next round (error feedback).

    x   = delta + e                    e what earlier rounds left out, at first 0
    c   = C(x),   e <- x - c           c is sent, e stays at the client

    topk    C keeps the share of the values that are largest in size, of each tensor, and makes the others 0
    int8    C rounds to whole multiples of s = max |x| / 127, of each tensor

c is an ordinary update: every algorithm's aggregate, trust rule and signature takes it as it is. Over Flower it travels
in a form that loses nothing more (`flower/engine/compact.py`). e belongs to the last update that counted, as all that a
client keeps does (`core/memory.py`): where an update is lost or refused, so is what it left out.
References: Stich, Cordonnier and Jaggi, NeurIPS 2018; Karimireddy et al., ICML 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.core.types import Tensors, size

LEVELS = 127


@dataclass(frozen=True)
class Compression:
    """Updates are sent whole."""

    keeps: ClassVar[bool] = False  # whether a client keeps what it left out

    def squeeze(self, delta: Tensors, error: Tensors) -> tuple[Tensors, Tensors]:
        """What is sent, and what is kept for the next round."""
        whole = {name: d + error[name] if name in error else d for name, d in delta.items()}
        sent = {name: self.rounded(x) if x.dtype == torch.float32 and x.numel() else x for name, x in whole.items()}
        return sent, {name: whole[name] - c for name, c in sent.items()} if self.keeps else {}

    def rounded(self, x: Tensor) -> Tensor:
        """C(x) of one tensor."""
        return x

    def bytes_up(self, tensors: Tensors) -> int:
        """Bytes of a reply, if its update travels in its compact form."""
        return sum(self.packed(t) if name.startswith("delta/") else size({name: t}) for name, t in tensors.items())

    def packed(self, tensor: Tensor) -> int:
        """Bytes of one tensor of an update."""
        return tensor.numel() * tensor.element_size()


@dataclass(frozen=True)
class TopK(Compression):
    """The largest values of each tensor are sent, and what is left out is added to the next update.

    >>> TopK(0.5).squeeze({"w": torch.tensor([1.0, -4.0])}, {"w": torch.tensor([2.0, 0.0])})
    ({'w': tensor([ 0., -4.])}, {'w': tensor([3., 0.])})
    """

    keeps: ClassVar[bool] = True
    share: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {self.share}.")

    def rounded(self, x: Tensor) -> Tensor:
        flat = x.flatten()
        largest = torch.topk(flat.abs(), math.ceil(self.share * len(flat))).indices
        return torch.zeros_like(flat).index_copy_(0, largest, flat[largest] + 0.0).view_as(x)  # + 0.0: no minus zero

    def packed(self, tensor: Tensor) -> int:
        return min(8 * int(tensor.count_nonzero()), super().packed(tensor))


@dataclass(frozen=True)
class Int8(Compression):
    """Values are rounded to 8 bits, and what is left out is added to the next update.

    >>> Int8().squeeze({"w": torch.tensor([127.0, 1.25])}, {})
    ({'w': tensor([127.,   1.])}, {'w': tensor([0.0000, 0.2500])})
    """

    keeps: ClassVar[bool] = True

    def rounded(self, x: Tensor) -> Tensor:
        levels, scale = to_levels(x)
        return from_levels(levels, scale)

    def packed(self, tensor: Tensor) -> int:
        return tensor.numel() + 4


def to_levels(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127 and their unit; a tensor that from_levels made gives the same ones again."""
    scale = x.abs().max() / LEVELS
    if not 0 < float(scale) < math.inf:
        return torch.zeros_like(x, dtype=torch.int8), torch.zeros((), dtype=x.dtype)
    return (x / scale).round().clamp(-LEVELS, LEVELS).to(torch.int8), scale


def from_levels(levels: Tensor, scale: Tensor) -> Tensor:
    return levels.to(scale.dtype) * scale


COMPRESSIONS: dict[str, type[Compression]] = {"none": Compression, "topk": TopK, "int8": Int8}
