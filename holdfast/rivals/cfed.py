"""CFeD: what the model knew is distilled into it again (Ma et al., IJCAI 2022); the server's part of it.

    L = -(alpha / B) sum_b softmax(t_b / T) . log softmax(s_b / T)        T = 2, alpha = 0.1, without a factor T^2

on a surrogate set without labels at the moderator: after each aggregation the averaged model is the student s, and the
teachers t are the clients' models of the round and the old global model. As in the authors' code (lianziqt/CFeD) each
record has one of them: of M teachers record k has number k mod M, both counted from 0, and the old model is the last.

Not as published: tasks have no boundaries here, so the old model is that of the round before (as NYCU-PAIR-Labs/DPFL
does); the clients' review, in which 40 % of them distil in place of learning, is left out, since of four members nearly
half would not learn; the steps are the clients' own (SGD; theirs: Adam); and the surrogate set is drawn from the
training samples, its labels unread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.absence.base import AbsencePolicy
from holdfast.algorithms.fedavg import add
from holdfast.context import Context
from holdfast.core.types import State, Tensors, Update
from holdfast.data.task import Samples
from holdfast.learning.loop import outputs_of
from holdfast.models.networks import fill
from holdfast.rivals.fsl import own_samples, taught


@dataclass(frozen=True)
class CFeD(AbsencePolicy):
    """The clients' models and the old global one teach the average, on samples of the moderator's without labels."""

    needs_classes = True
    samples: int = 100
    alpha: float = 0.1
    temperature: float = 2.0

    def __post_init__(self) -> None:
        if self.samples < 2 or not 0 < self.alpha < math.inf or not 0 < self.temperature < math.inf:
            raise ValueError("samples must be at least 2, alpha and temperature positive.")

    def begin(self, context: Context) -> Tensors:
        own_samples(context, self.samples, "cfed")
        return {}

    def server_step(self, before: State, after: State, updates: Sequence[Update], context: Context) -> State:
        own = own_samples(context, self.samples, "cfed")
        learning = replace(context.learning_in(before.round), local_steps=None)
        teachers = [moved(before, update.delta) for update in updates] + [before.model]
        told = []
        for teacher in teachers:
            fill(context.bench.model, {**before.model, **teacher}, before.buffers)
            told.append(torch.softmax(outputs_of(context.bench.model, own) / self.temperature, dim=1))
        record = torch.arange(len(own))
        said = torch.stack(told)[record % len(teachers), record]
        return taught(after, Samples(own.inputs, said), learning, self.distil, context)

    def distil(self, model: nn.Module, inputs: tuple[Tensor, ...], said: Tensor) -> Tensor:
        """L_KD.

        Both say one half for each of two classes: alpha log 2.

        >>> CFeD(alpha=1.0).distil(nn.Identity(), (torch.zeros(3, 2),), torch.full((3, 2), 0.5))
        tensor(0.6931)
        """
        return self.alpha * functional.cross_entropy(model(*inputs) / self.temperature, said)


def moved(before: State, delta: Tensors) -> Tensors:
    return add({name: before.model[name] for name in delta}, delta)
