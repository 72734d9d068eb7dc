"""Mime: every step imitates one of the federation's own optimiser on all data (Karimireddy et al., arXiv 2008.03606).

Before anybody trains, the clients of a round are asked for the gradient over all of their samples at the model w:

    c    = sum_i a_i grad f_i(w)                              first exchange; a_i by the trust rule, see below
    g    = grad f_i(w_i; b) - grad f_i(w; b) + c              at the client, for each batch b
    w_i <- w_i - lr ((1 - beta) g + beta m)                   m, the federation's momentum, stays as it is meanwhile
    m   <- (1 - beta) c + beta m,   w <- w + sum_i a_i (w_i - w)                            at the moderator

beta is the experiment's `momentum`. As an objective, g is the gradient of  f_i(w_i; b) + <c - grad f_i(w; b), w_i>.
Both gradients of a batch see the same augmented images and drop out the same units, so they cancel at w_i = w. c is
computed in evaluation mode: norms by their running statistics, nothing dropped out. To weigh it, the trust rule judges
gradients as updates of one step, -lr grad f_i(w). A client that sends none is not asked to train; a stand-in gives one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from holdfast.algorithms.fedavg import FedAvg, add, average
from holdfast.core.types import Tensors, Update, pack, unpack
from holdfast.learning.device import device_of, undisturbed
from holdfast.learning.objective import Objective, is_separable
from holdfast.learning.optimizers import SharedMomentum
from holdfast.learning.settings import Learning


@dataclass(frozen=True)
class Mime(FedAvg):
    """Clients step with the federation's momentum, and with its gradient in place of their own at the model sent."""

    needs_each_update: ClassVar[str] = "averages a gradient of each client first"
    needs_reach: ClassVar[bool] = True
    asks_gradients: ClassVar[bool] = True

    def begin(self, model: Tensors) -> Tensors:
        zero = {name: torch.zeros_like(weight) for name, weight in model.items()}
        return pack(m=zero, c=zero)

    def broadcast(self, server: Tensors) -> Tensors:
        return server

    def agreed(self, server: Tensors, gradient: Tensors) -> Tensors:
        return {**server, **pack(c=gradient)}

    def stepping(self, learning: Learning, server: Tensors) -> Learning:
        return replace(learning, optimizer=SharedMomentum(unpack(server, "m")))

    def objective(self, task: Objective, start: Tensors, server: Tensors, memory: Tensors) -> Objective:
        return Anchored(task, start, unpack(server, "c"))

    def aggregate(
        self,
        model: Tensors,
        updates: Sequence[Update],
        weights: Sequence[float],
        server: Tensors,
        clients: int,
        learning: Learning,
    ) -> tuple[Tensors, Tensors]:
        beta, c = learning.momentum, unpack(server, "c")
        m = {name: (1 - beta) * c[name] + beta * old for name, old in unpack(server, "m").items()}
        return add(model, average(updates, weights)), pack(m=m, c=c)


@dataclass(frozen=True)
class Anchored:
    """The task's loss, whose gradient at the model that was sent is exchanged for the federation's.

    With f(w) = w^2 / 2, the model sent at 1 and c = 5, the gradient at w = 3 is 3 - 1 + 5 = 7; the loss stays f(3).

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 3.0)
    >>> square = lambda model, inputs, labels: model(*inputs).square().mean() / 2
    >>> found = Anchored(square, {"weight": torch.ones(1, 1)}, {"weight": torch.tensor([[5.0]])})(
    ...     model, (torch.ones(1, 1),), torch.zeros(1))
    >>> found.backward()
    >>> found.item(), model.weight.grad
    (4.5, tensor([[7.]]))
    """

    task: Objective
    start: Tensors
    mean: Tensors  # c

    def __call__(self, model: nn.Module, inputs: tuple[Tensor, ...], labels: Tensor) -> Tensor:
        weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        with undisturbed(device_of(model)):
            before = self.gradient_at_start(model, list(weights), inputs, labels)
        loss = self.task(model, inputs, labels).mean()
        tilt = sum(((self.mean[name] - before[name]) * weight).sum() for name, weight in weights.items())
        return loss + (tilt - tilt.detach() if isinstance(tilt, Tensor) else 0.0)  # the loss told is the task's

    def gradient_at_start(
        self, model: nn.Module, names: list[str], inputs: tuple[Tensor, ...], labels: Tensor
    ) -> Tensors:
        """grad f(w; b); running statistics stay as they are."""
        start = {name: self.start[name].detach().requires_grad_() for name in names}
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with torch.enable_grad():
            loss = self.task(AtStart(model, {**start, **buffers}), inputs, labels).mean()
        found = torch.autograd.grad(loss, list(start.values()), allow_unused=True)
        return {n: torch.zeros_like(start[n]) if g is None else g for n, g in zip(names, found, strict=True)}

    @property
    def separable(self) -> bool:
        return is_separable(self.task)


class AtStart(nn.Module):
    """A network at other weights than its own."""

    def __init__(self, model: nn.Module, tensors: Tensors) -> None:
        super().__init__()
        self.model, self.tensors = model, tensors

    def forward(self, *inputs: Tensor) -> Tensor:
        output: Tensor = functional_call(self.model, self.tensors, inputs)
        return output
