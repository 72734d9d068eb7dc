"""FedMix and NaiveMix: mixup with other clients' averages (Yoon et al., ICLR 2021). Averages come by absence = "mafl".

NaiveMix, with x_bar and y_bar drawn for each record, l = `share`:

    L = (1 - l) loss(f(x'), y) + l loss(f(x'), y_bar),    x' = (1 - l) x + l x_bar

FedMix is its first-order approximation around u = (1 - l) x, so that f never sees a mixed input:

    L = (1 - l) loss(f(u), y) + l loss(f(u), y_bar) + l (1 - l) < d loss(f(u), y) / du, x_bar >

The last term is each record's own. Public code (smduan/FedMix, and re-implementations after it) takes the input
gradient of the batch's mean loss and averages again, which makes it B times too small for a batch of B: FedMix is then
FedAvg on shrunk inputs. Only code was read: the paper prints the last term without the factor (1 - l) of the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from holdfast.algorithms.fedavg import FedAvg
from holdfast.core.types import Tensors
from holdfast.learning.objective import Objective


@dataclass(frozen=True)
class NaiveMix(FedAvg):
    """Mixup with the averages that others sent (absence = "mafl")."""

    needs_absence: ClassVar[str] = "mafl"
    share: float = 0.05  # of the other's average

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"share must lie in [0, 1), got {self.share}.")

    def broadcast(self, server: Tensors) -> Tensors:
        return {name: server[name] for name in ("averages", "labels") if name in server}

    def objective(self, task: Objective, start: Tensors, server: Tensors, memory: Tensors) -> Objective:
        if not server:  # round 1: no averages yet
            return task
        return lambda model, inputs, labels: self.mixed(task, model, inputs[0], labels, *drawn(server, len(labels)))

    def mixed(
        self, task: Objective, model: nn.Module, x: Tensor, labels: Tensor, average: Tensor, label: Tensor
    ) -> Tensor:
        between = (1 - self.share) * x + self.share * average
        return (1 - self.share) * task(model, (between,), labels) + self.share * task(model, (between,), label)


@dataclass(frozen=True)
class FedMix(NaiveMix):
    """First-order mixup with the averages that others sent (absence = "mafl")."""

    def mixed(
        self, task: Objective, model: nn.Module, x: Tensor, labels: Tensor, average: Tensor, label: Tensor
    ) -> Tensor:
        shrunk = ((1 - self.share) * x).detach().requires_grad_()
        own, other = task(model, (shrunk,), labels), task(model, (shrunk,), label)
        total = own.sum() if own.ndim else own * len(x)  # so that each record's gradient is its own
        (slope,) = torch.autograd.grad(total, shrunk, create_graph=True)
        first_order = (slope * average).flatten(1).sum(1)
        first_order = first_order if own.ndim else first_order.mean()
        return (1 - self.share) * own + self.share * other + self.share * (1 - self.share) * first_order


def drawn(server: Tensors, count: int) -> tuple[Tensor, Tensor]:
    """An average for each record, by chance."""
    index = torch.randint(len(server["averages"]), (count,))
    return server["averages"][index], server["labels"][index]
