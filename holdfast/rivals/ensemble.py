"""ECFL's idea: the last models of those who left vote with the global one (after Casado et al., Machine Learning 2023).

    p(y | x) = mean of softmax f_j(x)  over the global model, if anybody is there, and each absent client's last model

What keeping models in place of digests would give. ECFL itself is another product (streams, drift detection, a chosen
few voters), of which abstract and introduction were read and no code found. One model file cannot hold the ensemble: a
run keeps the models, and `votes` asks them; the run's own figures are those of its global model.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from holdfast.absence.base import AbsencePolicy
from holdfast.algorithms.fedavg import add
from holdfast.context import Context
from holdfast.core.types import State, Tensors, Update, unpack
from holdfast.data.task import Samples
from holdfast.learning.loop import outputs_of
from holdfast.models.networks import fill


@dataclass(frozen=True)
class Ensemble(AbsencePolicy):
    """Each client's last model is kept, to vote once it is away; the federation itself goes on without it."""

    needs_classes = True

    def server_step(self, before: State, after: State, updates: Sequence[Update], context: Context) -> State:
        """Not a step: the model of each client that counted."""
        kept: Tensors = {}
        for update in updates:
            if after.accepted.get(update.client) == before.round:
                own = add({name: before.model[name] for name in update.delta}, update.delta)
                kept |= {f"memory/{update.client}/{name}": weight for name, weight in own.items()}
        return replace(after, absence={**after.absence, **kept})


def votes(model: nn.Module, state: State, away: Collection[int], clients: int, samples: Samples) -> Tensor:
    """The ensemble's probabilities for each sample."""
    known = {client: unpack(state.absence, f"memory/{client}") for client in sorted(away)}
    voters = [{**state.model, **own} for own in known.values() if own]
    if len(away) < clients or not voters:
        voters.append(state.model)
    total = []
    for weights in voters:
        fill(model, weights, state.buffers)
        total.append(torch.softmax(outputs_of(model, samples), dim=1))
    return torch.stack(total).mean(0)
