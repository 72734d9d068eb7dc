"""MOON: representations near the global model's, far from the client's own last one (Li, He, Song, CVPR 2021).

    L = task loss + mu * mean -log [ e^(cos(z, z_glob) / tau) / (e^(cos(z, z_glob) / tau) + e^(cos(z, z_prev) / tau)) ]

z is the representation of a record by the model in training, z_glob by the model that was sent, z_prev by the client's
own model of the round before; the latter two stand still. The representation is what the last linear layer reads, or
what `layer` reads. The paper's networks have a projection of 256 outputs below it, which ours have not: to play MOON as
published, give your own network one.

In a client's first round, and in the first after an absence, there is no model of the round before, and the term is
left out; the authors' code begins with the initial networks. TsingZ0/PFLlib has no projection either, and keeps the old
model of a client that was away, which then pushes it off a point of long ago.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from holdfast.algorithms.fedavg import FedAvg, Work, add
from holdfast.core.errors import HoldfastError, nearest
from holdfast.core.types import Tensors, Update, pack, unpack
from holdfast.learning.objective import Objective
from holdfast.learning.settings import Learning


@dataclass(frozen=True)
class Moon(FedAvg):
    """FedAvg with a contrastive term between a client's model, the global one and its own last one."""

    remembers: ClassVar[bool] = True
    mu: float = 1.0
    tau: float = 0.5
    layer: str = ""  # whose input is the representation; none named: the last linear layer

    def __post_init__(self) -> None:
        if not 0 <= self.mu < math.inf or not 0 < self.tau < math.inf:
            raise ValueError(f"mu must not be negative and tau must be positive, got {self.mu} and {self.tau}.")

    def fitted(self, network: nn.Module) -> Self:
        layers = dict(network.named_modules())
        linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
        if self.layer and self.layer not in layers:
            raise HoldfastError(f"algorithm: the model has no layer {self.layer!r}; {nearest(self.layer, layers)}")
        chosen = self.layer or (linear or [""])[-1]
        if not chosen or all(name.startswith(chosen + ".") for name, _ in network.named_parameters()):
            raise HoldfastError("algorithm: moon compares representations, and the model learns none; take fedavg.")
        return replace(self, layer=chosen)

    def begin(self, model: Tensors) -> Tensors:
        return {"rounds": torch.zeros(1)}

    def broadcast(self, server: Tensors) -> Tensors:
        return server

    def objective(self, task: Objective, start: Tensors, server: Tensors, memory: Tensors) -> Objective:
        if not memory or not torch.equal(memory["rounds"], server["rounds"]):
            return task
        return Contrast(self, task, start, unpack(memory, "model"))

    def remember(self, delta: Tensors, work: Work, server: Tensors, memory: Tensors) -> Tensors:
        return {**pack(model=last_model(delta, work)), "rounds": server["rounds"] + 1}

    def aggregate(
        self,
        model: Tensors,
        updates: Sequence[Update],
        weights: Sequence[float],
        server: Tensors,
        clients: int,
        learning: Learning,
    ) -> tuple[Tensors, Tensors]:
        found, _ = super().aggregate(model, updates, weights, server, clients, learning)
        return found, {"rounds": server["rounds"] + 1}


def last_model(delta: Tensors, work: Work) -> Tensors:
    """A client's own model after its steps."""
    return add({name: work.start[name] for name in delta}, delta)


@dataclass(frozen=True)
class Contrast:
    """The task's objective with MOON's term."""

    moon: Moon
    task: Objective
    start: Tensors
    previous: Tensors

    def __call__(self, model: nn.Module, inputs: tuple[Tensor, ...], labels: Tensor) -> Tensor:
        seen: list[Tensor] = []
        hook = model.get_submodule(self.moon.layer).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            loss = self.task(model, inputs, labels)
            with torch.no_grad():
                for weights in (self.start, self.previous):
                    still = {name: buffer.clone() for name, buffer in model.named_buffers()}  # norms count nothing here
                    functional_call(model, {**still, **weights}, inputs)
        finally:
            hook.remove()
        z, near, far = (one.flatten(1) for one in seen)
        term = self.moon.mu * contrast(z, near, far, self.moon.tau)
        return loss + (term if loss.ndim else term.mean())


def contrast(z: Tensor, near: Tensor, far: Tensor, tau: float) -> Tensor:
    """MOON's term for each record.

    cos = 1 with the global model and 0 with the last one, tau = 1: log(1 + e^(0 - 1)) = 0.3133.

    >>> contrast(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0]]), tau=1.0)
    tensor([0.3133])
    """
    scores = torch.stack([functional.cosine_similarity(z, other) for other in (near, far)], dim=1) / tau
    return functional.cross_entropy(scores, torch.zeros(len(z), dtype=torch.long, device=z.device), reduction="none")
