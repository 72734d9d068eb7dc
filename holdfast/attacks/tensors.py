"""Attacks on updates that need the model's named tensors: malformed replies, and a disguise that keeps the function."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from holdfast.attacks.contract import Attack
from holdfast.core.errors import HoldfastError
from holdfast.core.types import Tensors

HUGE = 3e38  # just below what float32 can hold


@dataclass(frozen=True)
class Malformed(Attack):
    """Sends what is no update of the model: NaN, infinity, huge values, a wrong shape, type or set of tensors."""

    fault: Literal["nan", "inf", "huge", "shape", "type", "missing", "extra", "empty"] = "nan"
    kind: ClassVar[tuple[str, ...]] = ("update",)

    def rewrite(self, delta: Tensors, model: Tensors, generator: torch.Generator) -> Tensors:
        sent = {name: tensor.clone() for name, tensor in delta.items()}
        first = next(iter(sent))
        if self.fault in ("nan", "inf"):
            sent[first].view(-1)[0] = float(self.fault)  # one value is enough to spoil an average
        elif self.fault == "huge":
            sent = {name: torch.full_like(tensor, HUGE) for name, tensor in sent.items()}
        elif self.fault == "shape":
            sent[first] = torch.cat([sent[first].flatten(), sent[first].flatten()[:1]])
        elif self.fault == "type":
            sent[first] = sent[first].to(torch.int32)
        elif self.fault == "missing":
            del sent[first]
        elif self.fault == "extra":
            sent["intruder"] = torch.ones(3)
        else:
            sent = {}
        return sent


@dataclass(frozen=True)
class Relayer(Attack):
    """Disguises an honest model: scales one ReLU layer by c and the next by 1/c, and shuffles the units between.

        W_1' = c P W_1,    b_1' = c P b_1,    W_2' = W_2 P^T / c:    W_2' relu(W_1' x + b_1') = W_2 relu(W_1 x + b_1)

    The function, and so any tester's accuracy, stays; the average with other clients' models is wrecked. Pooling
    and flattening between the layers keep it so. Layers are found by shapes that fit, in the order of the model; where
    layers do not follow each other that way, name those that do: layers = "conv1/conv2/fc".

    Dinh, Pascanu, Bengio, Bengio: Sharp Minima Can Generalize for Deep Nets, ICML 2017 (the symmetry).
    """

    scale: float = 10.0
    layers: tuple[str, ...] = ()
    kind: ClassVar[tuple[str, ...]] = ("update",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.scale > 0:
            raise ValueError(f"the scale must be above zero for ReLU layers to keep their function, got {self.scale}.")

    def rewrite(self, delta: Tensors, model: Tensors, generator: torch.Generator) -> Tensors:
        weights = {name: model[name] + tensor for name, tensor in delta.items()}
        for first, second in self.pairs(weights):
            _disguise(weights, first, second, self.scale, generator)
        return {name: tensor - model[name] for name, tensor in weights.items()}

    def pairs(self, weights: Tensors) -> list[tuple[str, str]]:
        """The layers that feed each other, by name."""
        chain = self.layers or tuple(
            name.removesuffix(".weight") for name, w in weights.items() if name.endswith(".weight") and w.dim() > 1
        )
        unknown = [layer for layer in chain if f"{layer}.weight" not in weights]
        if unknown:
            raise HoldfastError(f"attack 'relayer': the model has no layer {unknown[0]!r}; check the option layers.")
        found = [
            (a, b)
            for a, b in itertools.pairwise(chain)
            if _fit(weights[f"{a}.weight"], weights[f"{b}.weight"]) and (self.layers or _adjacent(list(weights), a, b))
        ]
        if not found or (self.layers and len(found) < len(chain) - 1):
            raise HoldfastError(
                "attack 'relayer': the model has no two layers that follow each other"
                + (f" as {'/'.join(self.layers)} says." if self.layers else "; name them in the option layers.")
            )
        return found


def _fit(first: Tensor, second: Tensor) -> bool:
    """Whether the outputs of the first can be the inputs of the second; a linear layer may take flattened channels."""
    outputs, inputs = first.shape[0], second.shape[1]
    return inputs == outputs or (first.dim() > second.dim() == 2 and inputs % outputs == 0)


def _adjacent(names: list[str], a: str, b: str) -> bool:
    """Whether no other tensor, such as a normalisation's, lies between two layers."""
    between = names[names.index(f"{a}.weight") + 1 : names.index(f"{b}.weight")]
    return all(name == f"{a}.bias" or name.startswith(f"{b}.") for name in between)


def _disguise(weights: Tensors, first: str, second: str, scale: float, generator: torch.Generator) -> None:
    units = weights[f"{first}.weight"].shape[0]
    shuffle = torch.randperm(units, generator=generator)
    for name in (f"{first}.weight", f"{first}.bias"):
        if name in weights:
            weights[name] = scale * weights[name][shuffle]
    after = weights[f"{second}.weight"]
    by_unit = after.reshape(after.shape[0], units, -1)  # a flattened picture keeps a channel's values together
    weights[f"{second}.weight"] = (by_unit[:, shuffle] / scale).reshape(after.shape)
