"""Training at a client, or at its stand-in: from the model that was sent to the change that is sent back."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import nn

from holdfast.algorithms.fedavg import FedAvg, Work, at_home, shared
from holdfast.core.types import Tensors, pack
from holdfast.data.task import Samples
from holdfast.learning.device import CPU, device_of, moved, seeded
from holdfast.learning.loop import Correction, Gradients, full_gradient, train
from holdfast.learning.objective import Objective
from holdfast.learning.optimizers import States, begin_states
from holdfast.learning.settings import Learning
from holdfast.models.networks import buffers_of, fill, weights_of

GLOBAL_GENERATOR = threading.Lock()  # clients and stand-ins of one process take turns with it


@dataclass(frozen=True)
class Sent:
    """What the moderator sent."""

    model: Tensors
    buffers: Tensors
    server: Tensors  # the algorithm's broadcast


@dataclass(frozen=True)
class Learnt:
    """What came of it."""

    delta: Tensors
    buffers: Tensors
    steps: int
    loss: float  # mean of the last epoch
    memory: Tensors  # what the algorithm remembers, what stays at home and, if it keeps any, the optimiser's state
    extra: Tensors  # what the algorithm sends with the change


def learn(
    model: nn.Module,
    samples: Samples,
    sent: Sent,
    memory: Tensors,
    *,
    algorithm: FedAvg,
    learning: Learning,
    objective: Objective,
    round: int,
    last: int,
    order: torch.Generator,
    chance: int,
    gradients: Gradients | None = None,
    kept: Tensors | None = None,
) -> Learnt:
    """Train the model that was sent; `last` is the last round that counted, `chance` seeds what the model draws.

    `memory` is the algorithm's, `kept` the optimiser's state.
    """
    fill(model, sent.model, sent.buffers)
    device = device_of(model)
    known = [moved(tensors, device) for tensors in (sent.model, sent.server, memory)]
    correction = of_shared(algorithm, algorithm.correction(*known))
    objective = algorithm.objective(objective, *known)
    learning = algorithm.stepping(learning, known[1])
    gradient = shared(algorithm, full_gradient(model, samples, learning, objective)) if algorithm.needs_gradient else {}
    states = begin_states(learning.optimizer, dict(model.named_parameters()), kept or {})
    with GLOBAL_GENERATOR, seeded(chance, device):  # a user's model may draw from it (dropout)
        steps, loss = train(model, samples, learning, order, objective, correction, gradients, states)
    weights, buffers = weights_of(model), buffers_of(model)
    home = pack(home={**at_home(algorithm, weights), **at_home(algorithm, buffers)})
    delta = {name: weight.sub_(sent.model[name]) for name, weight in shared(algorithm, weights).items()}
    work = Work(round, steps, last, learning, sent.model, states, gradient)
    remembered = algorithm.remember(delta, work, sent.server, memory)
    kept_too = {**remembered, **home, **kept_states(states, learning)}
    extra = algorithm.enclose(delta, work, sent.server, memory)
    return Learnt(delta, shared(algorithm, buffers), steps, loss, kept_too, extra)


def of_shared(algorithm: FedAvg, correction: Correction | None) -> Correction | None:
    """The correction of weights that travel; the algorithm knows nothing of the others."""
    if correction is None:
        return None
    return lambda name, weight: correction(name, weight) if algorithm.shares(name) else torch.zeros_like(weight)


def kept_states(states: States, learning: Learning) -> Tensors:
    """The optimiser's state as a client keeps it, if it does."""
    if not learning.optimizer.keep:
        return {}
    plain = {name: {part: t.contiguous() for part, t in state.items()} for name, state in states.items()}
    return moved(pack(optimizer=pack(**plain)), CPU)
