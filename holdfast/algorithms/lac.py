"""Local adaptivity correction: averaging that stays right with Adam at the clients (Wang et al., arXiv 2106.02305).

Client i's steps carry each weight's gradient by its own factors; Q_i, of the model's shape, is how far they would have
carried a constant unit gradient, in units of lr (`Optimizer.carry`, summed over the steps):

    Adam    Q_i = sum_k 1 / (sqrt(v_k / (1 - b2^k)) + eps)          its own second moments
    SGD     Q_i = ||a_i||_1, FedNova's reach, for all weights

Then, weight by weight, with D_i the update:

    local   w <- w + sum_i a_i D_i / Q_i                            for a server optimiser with an lr of its own
    joint   w <- w + (sum_i a_i D_i / Q_i) / (sum_i a_i / Q_i)
    nova    w <- w + (sum_i a_i Q_i) (sum_i a_i D_i / Q_i)          FedNova, also for Adam

Public code (google-research/federated, local_adaptivity) sums q_k = b1 q_(k-1) + (1 - b1) P_k with Adam uncorrected for
its first steps; Adam here is corrected (`learning/optimizers.py`), so a unit gradient is carried by P_k itself.

Q_i is what a client says. Within a round it counts no further than `most` times the median of three or more clients, up
or down; without that a tiny Q_i would scale its sender's part past any bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from holdfast.algorithms.fedavg import FedAvg, Work, add
from holdfast.core.types import Tensors, Update, weighted_sum
from holdfast.learning.optimizers import Measured
from holdfast.learning.settings import Learning

LEAST = 1e-12  # a reach of nothing: of frozen weights


@dataclass(frozen=True)
class Lac(FedAvg):
    """Averaging of what clients' own optimisers made, corrected for how far their steps reach.

    Two clients with a = 1/2, D = 1 and 2, Q = 1 and 4: D/Q = 1 and 1/2, their mean 3/4; the mean of 1/Q is 5/8 and that
    of Q 5/2, so joint moves by 6/5 and nova by 15/8.

    >>> sent = [Update(c, {"w": torch.tensor([d])}, 1, 1, extra={"w": torch.tensor([q])})
    ...         for c, (d, q) in enumerate([(1.0, 1.0), (2.0, 4.0)])]
    >>> [Lac(how).aggregate({"w": torch.zeros(1)}, sent, [0.5, 0.5], {}, 2, Learning())[0]["w"].item()
    ...  for how in ("local", "joint", "nova")]
    [0.75, 1.2000000476837158, 1.875]
    """

    needs_each_update: ClassVar[str] = "corrects each by how far its steps reach"
    needs_fresh_start: ClassVar[bool] = True
    normalises: ClassVar[bool] = True
    correct: Literal["joint", "local", "nova"] = "joint"
    most: float = 100.0

    def __post_init__(self) -> None:
        if not self.most >= 1:
            raise ValueError(f"most must be at least 1, got {self.most}.")

    def extra(self, model: Tensors) -> Tensors:
        return model

    def stepping(self, learning: Learning, server: Tensors) -> Learning:
        return replace(learning, optimizer=Measured(learning.optimizer))

    def enclose(self, delta: Tensors, work: Work, server: Tensors, memory: Tensors) -> Tensors:
        return {name: work.states[name]["reach"].cpu().contiguous() for name in delta}

    def aggregate(
        self,
        model: Tensors,
        updates: Sequence[Update],
        weights: Sequence[float],
        server: Tensors,
        clients: int,
        learning: Learning,
    ) -> tuple[Tensors, Tensors]:
        reach = [self.believed(update, updates) for update in updates]
        pairs = zip(updates, reach, strict=True)
        mean = weighted_sum([{n: d / q[n] for n, d in update.delta.items()} for update, q in pairs], weights)
        if self.correct == "joint":
            inverse = weighted_sum([{n: 1 / t for n, t in q.items()} for q in reach], weights)
            mean = {name: tensor / inverse[name] for name, tensor in mean.items()}
        elif self.correct == "nova":
            total = weighted_sum(reach, weights)
            mean = {name: tensor * total[name] for name, tensor in mean.items()}
        return add(model, mean), server

    def believed(self, update: Update, all: Sequence[Update]) -> Tensors:
        """Q_i, as far as it counts."""
        return {name: self._bounded(q, [one.extra[name] for one in all]) for name, q in update.extra.items()}

    def _bounded(self, q: Tensor, all: Sequence[Tensor]) -> Tensor:
        if len(all) >= 3:
            middle = torch.stack(list(all)).median(0).values
            q = torch.clamp(q, middle / self.most, middle * self.most)
        return q.clamp(min=LEAST)
