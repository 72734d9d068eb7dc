"""FedNova: clients that take more steps do not get more say (Wang et al., NeurIPS 2020).

With ||a_i||_1 the reach of client i's steps (`Learning.reach`: the number of steps, or more with momentum):

    d_i = delta_i / ||a_i||_1          the direction of client i, per unit of reach
    w  <- w + tau sum_i p_i d_i        tau = sum_i p_i ||a_i||_1, the mean reach
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from holdfast.algorithms.fedavg import FedAvg, along, average
from holdfast.core.types import Tensors, Update
from holdfast.learning.settings import Learning


@dataclass(frozen=True)
class FedNova(FedAvg):
    """FedAvg with normalised updates.

    Two clients, p = 1/4 and 3/4, one step and three: tau = 1/4 + 9/4 = 2.5, and the second client's update counts
    3/4 * 2.5 / 3 = 0.625.

    >>> import torch
    >>> one = Update(0, {"w": torch.tensor([1.0])}, samples=1, steps=1)
    >>> two = Update(1, {"w": torch.tensor([1.0])}, samples=3, steps=3)
    >>> FedNova().aggregate({"w": torch.tensor([0.0])}, [one, two], [0.25, 0.75], {}, 2, Learning(momentum=0.0))[0]
    {'w': tensor([1.2500])}
    """

    needs_each_update: ClassVar[str] = "weighs updates by their steps"
    needs_reach: ClassVar[bool] = True
    normalises: ClassVar[bool] = True

    def aggregate(
        self,
        model: Tensors,
        updates: Sequence[Update],
        weights: Sequence[float],
        server: Tensors,
        clients: int,
        learning: Learning,
    ) -> tuple[Tensors, Tensors]:
        reach = [learning.reach(update.steps) for update in updates]
        tau = sum(p * a for p, a in zip(weights, reach, strict=True))
        return along(model, average(updates, [tau * p / a for p, a in zip(weights, reach, strict=True)])), server
