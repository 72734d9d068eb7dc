"""GradMA: steps that no remembered gradient objects to (Luo et al., CVPR 2023).

At the moderator, with g_i = w - w_i:

    G_i <- G_i + g_i for who answered,   m = beta1 m~ + sum_i a_i g_i
    m~  = argmin_z 1/2 ||z - m||^2   so that  <z, G_i> >= rho ||m|| ||G_i||  for every client i ever heard
    w  <- w - m~,   then  G_i <- beta2 G_i  for all

At a client, the gradient g of each step becomes the nearest z with <z, g_old>, <z, g_sent>, <z, w_k - w> >= 0, where
g_old and g_sent are the gradients of its own last model and of the model it was sent, on the same batch: three
gradients a step. `client = false` leaves that out.

The dual has one variable a client: min_{x >= 0} 1/2 x' G G' x + x'(G m - rho ||m|| ||G_i||), z = m + G' x; coordinate
by coordinate, without a solver. The authors' code projects layer by layer and goes on with m where its solver fails;
here the whole vector is projected, as printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from holdfast.algorithms.fedavg import FedAvg, Work, add, average
from holdfast.core.tensors import flat, unflat
from holdfast.core.types import Tensors, Update, pack, unpack
from holdfast.learning.objective import Objective
from holdfast.learning.settings import Learning
from holdfast.rivals.fedvarp import known_updates
from holdfast.rivals.moon import last_model

SWEEPS, ENOUGH = 500, 1e-9  # over the coordinates; the change of a sweep, relative, at which it ends


@dataclass(frozen=True)
class GradMA(FedAvg):
    """Steps of moderator and clients, projected until no remembered gradient objects.

    m = (1, -1) and one remembered gradient (0, 1), which it opposes: the nearest that does not is (1, 0).

    >>> project(torch.tensor([1.0, -1.0]), torch.tensor([[0.0, 1.0]]))
    tensor([1., 0.])
    """

    remembers: ClassVar[bool] = True
    needs_each_update: ClassVar[str] = "keeps each"
    beta1: float = 0.5
    beta2: float = 0.5
    rho: float = 0.0
    client: bool = True  # whether clients project their gradients too

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and 0 <= self.rho < 1):
            raise ValueError("beta1, beta2 and rho must lie in [0, 1).")

    def begin(self, model: Tensors) -> Tensors:
        return pack(momentum={name: torch.zeros_like(weight) for name, weight in model.items()})

    def objective(self, task: Objective, start: Tensors, server: Tensors, memory: Tensors) -> Objective:
        return Projected(task, start, memory) if self.client else task

    def remember(self, delta: Tensors, work: Work, server: Tensors, memory: Tensors) -> Tensors:
        return last_model(delta, work) if self.client else {}

    def aggregate(
        self,
        model: Tensors,
        updates: Sequence[Update],
        weights: Sequence[float],
        server: Tensors,
        clients: int,
        learning: Learning,
    ) -> tuple[Tensors, Tensors]:
        names = list(model)
        known = known_updates(server)
        for update in updates:
            nothing = {name: torch.zeros_like(weight) for name, weight in model.items()}
            known[update.client] = add(known.get(update.client, nothing), update.delta, -1.0)
        momentum = self.beta1 * flat(unpack(server, "momentum"), names) - flat(average(updates, weights), names)
        step = unflat(project(momentum, torch.stack([flat(one, names) for one in known.values()]), self.rho), model)
        fading = {f"memory/{c}": {n: self.beta2 * one[n] for n in names} for c, one in known.items()}
        return add(model, step, -1.0), pack(momentum=step, **fading)


def project(vector: Tensor, rows: Tensor, rho: float = 0.0) -> Tensor:
    """The nearest z with <z, row> >= rho ||vector|| ||row|| for every row."""
    m, G = vector.double(), rows.double()
    inner = G @ G.T
    slack = G @ m - rho * m.norm() * inner.diagonal().sqrt()
    x = torch.zeros(len(G), dtype=torch.float64)
    for _ in range(SWEEPS):
        before = x.clone()
        for i in range(len(G)):
            if inner[i, i] > 0:
                x[i] = torch.clamp(x[i] - (inner[i] @ x + slack[i]) / inner[i, i], min=0)
        if float((x - before).abs().max()) <= ENOUGH * max(1.0, float(x.max())):
            break
    return (m + G.T @ x).to(vector.dtype)


@dataclass(frozen=True)
class Projected:
    """A loss whose gradient is the task's, projected: <z, w>, with the value of the task's."""

    task: Objective
    start: Tensors
    last: Tensors
    separable: ClassVar[bool] = False  # a record's gradient depends on the others'

    def __call__(self, model: nn.Module, inputs: tuple[Tensor, ...], labels: Tensor) -> Tensor:
        weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        names = list(weights)
        loss = self.task(model, inputs, labels).mean()
        gradient = flat(dict(zip(names, torch.autograd.grad(loss, list(weights.values())), strict=True)), names)
        rows = [self.at(model, other, inputs, labels, names) for other in (self.start, self.last) if other]
        moved = torch.cat([(weights[name].detach() - self.start[name]).flatten() for name in names])
        z = project(gradient, torch.stack([*rows, moved]))
        product = z @ torch.cat([weight.flatten() for weight in weights.values()])
        return loss.detach() + product - product.detach()

    def at(
        self, model: nn.Module, known: Tensors, inputs: tuple[Tensor, ...], labels: Tensor, names: Sequence[str]
    ) -> Tensor:
        """The task's gradient on this batch at other weights."""
        there = {name: known[name].detach().clone().requires_grad_() for name in names}
        still = {name: buffer.clone() for name, buffer in model.named_buffers()}
        other: Any = lambda *x: functional_call(model, {**still, **there}, x)  # noqa: E731
        loss = self.task(other, inputs, labels).mean()
        return flat(dict(zip(names, torch.autograd.grad(loss, list(there.values())), strict=True)), names)
