"""FSL, server learning: the moderator learns from a few samples of its own (Mai, La, Zhang, arXiv 2210.02614).

    w <- w' - gamma lr grad f_0(w'),  `steps` times, after each aggregation to w'

It is FedDig's server step on real samples in place of digests: what open data at the moderator would give. Only the
abstract was read, and no code was found: the number of steps and gamma are ours. In experiments the moderator's samples
are drawn from the training samples, never from the test samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.absence.base import AbsencePolicy
from holdfast.context import Context
from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import rng
from holdfast.core.types import State, Tensors, Update
from holdfast.data.task import Samples
from holdfast.learning.loop import train
from holdfast.learning.objective import Objective, TaskLoss
from holdfast.learning.settings import Learning
from holdfast.models.networks import fill, weights_of


@dataclass(frozen=True)
class Fsl(AbsencePolicy):
    """The moderator trains on samples of its own after each round (server learning)."""

    samples: int = 100
    steps: int = 10
    gamma: float = 1.0  # of the clients' learning rate

    def __post_init__(self) -> None:
        if self.samples < 2 or self.steps < 1 or not 0 < self.gamma < math.inf:
            raise ValueError("samples must be at least 2, steps at least 1, gamma positive.")

    def begin(self, context: Context) -> Tensors:
        own_samples(context, self.samples, "fsl")
        return {}

    def server_step(self, before: State, after: State, updates: Sequence[Update], context: Context) -> State:
        own = own_samples(context, self.samples, "fsl")
        learning = context.learning_in(before.round)
        learning = replace(learning, lr=self.gamma * learning.lr, local_steps=self.steps)
        return taught(after, own, learning, TaskLoss(context.bench.loss), context)


def own_samples(context: Context, count: int, name: str) -> Samples:
    """So many samples of the moderator's own."""
    own = context.own_samples(count)
    if len(own) < count:
        raise HoldfastError(f"absence {name!r}: the task has {len(own)} samples, not {count}; say fewer.")
    return own


def taught(state: State, samples: Samples, learning: Learning, objective: Objective, context: Context) -> State:
    """The state with its model trained further by the moderator."""
    model = context.bench.model
    fill(model, state.model, state.buffers)
    train(model, samples, learning, rng(context.seed, state.round, -1, "server step"), objective)
    found = weights_of(model)
    memory = context.algorithm.moved(state.algorithm, {name: found[name] - state.model[name] for name in found})
    return replace(state, model=found, algorithm=memory)
