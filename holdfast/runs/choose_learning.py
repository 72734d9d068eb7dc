"""The experiment's choices of how steps are taken; what does not fit together is refused before round 1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from holdfast.algorithms.fedavg import FedAvg, shared
from holdfast.core.config import choose, refuse_other
from holdfast.core.errors import HoldfastError
from holdfast.core.types import State, Tensors
from holdfast.core.validate import misfit
from holdfast.learning.optimizers import OPTIMIZERS, Adam
from holdfast.learning.schedules import SCHEDULES, Schedule
from holdfast.learning.server_optimizers import SERVER_OPTIMIZERS, ServerOptimizer
from holdfast.learning.settings import Learning, Optimizer
from holdfast.round import Method
from holdfast.runs.experiment import Experiment
from holdfast.selection import select


def choose_learning(experiment: Experiment, algorithm: FedAvg) -> Learning:
    """How a client trains; an algorithm whose formulas hold for SGD only is refused with any other optimiser."""
    optimizer = choose(OPTIMIZERS, experiment.optimizer, "optimizer")
    refuse_other(Optimizer, optimizer, experiment.optimizer, "optimizer")
    if algorithm.needs_reach and (optimizer.keep or not optimizer.has_reach):
        raise HoldfastError(
            f"optimizer: {experiment.algorithm} divides by how far SGD's steps reach from a fresh start, which is not "
            f"known of {experiment.optimizer}; choose optimizer = 'sgd', or another algorithm."
        )
    if isinstance(optimizer, Adam) and experiment.momentum != Experiment.momentum:
        raise HoldfastError(f"momentum is of 'sgd', and {experiment.optimizer} has beta1 in its place; leave it out.")
    return Learning(
        experiment.epochs,
        experiment.batch_size,
        experiment.lr,
        experiment.momentum,
        experiment.weight_decay,
        optimizer,
        experiment.clip_norm,
        experiment.precision,
    )


def choose_schedule(experiment: Experiment) -> Schedule:
    """The schedule, if it makes a positive learning rate of every round."""
    schedule: Schedule = choose(SCHEDULES, experiment.schedule, "schedule")
    with named("schedule", experiment.schedule):
        factors = [schedule(round, experiment.rounds) for round in range(experiment.rounds)]
        wrong = [(round, f) for round, f in enumerate(factors) if not 0 < experiment.lr * f < math.inf]
    if wrong:
        round, factor = wrong[0]
        raise HoldfastError(
            f"schedule: {experiment.schedule} makes lr {experiment.lr} x {factor} in round {round + 1}; it must stay "
            "positive."
        )
    return schedule


def choose_server_optimizer(experiment: Experiment) -> ServerOptimizer:
    made: ServerOptimizer = choose(SERVER_OPTIMIZERS, experiment.server_optimizer, "server_optimizer")
    refuse_other(ServerOptimizer, made, experiment.server_optimizer, "server_optimizer")
    return made


def rehearse_steps(experiment: Experiment, method: Method, state: State) -> None:
    """Take one step as a client and one as the moderator, and select once: users' own may do anything."""
    optimizer = method.learning.optimizer
    with named("optimizer", experiment.optimizer), torch.no_grad():
        for weight in state.model.values():
            own = optimizer.begin(weight)
            optimizer.step(weight.clone(), torch.zeros_like(weight), own, method.learning)
            if not all(isinstance(part, Tensor) for part in own.values()):
                raise TypeError("its state must be named tensors")
    with named("server_optimizer", experiment.server_optimizer):
        before = shared(method.algorithm, state.model)
        aggregated: Tensors = {name: weight.clone() for name, weight in before.items()}
        model, _ = method.server_optimizer.step(before, aggregated, state.server_optimizer)
        if fault := misfit(model, before):
            raise ValueError(f"in its model {fault}")
    with named("selection", experiment.selection):
        select(method.selection, range(method.clients), state, method.seed)


@contextmanager
def named(key: str, choice: object) -> Iterator[None]:
    """Whatever a user's own part raises becomes one sentence that names it."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:  # a user's own code may raise anything
        reason = (str(error).splitlines() or [""])[0]
        raise HoldfastError(f"{key}: {choice} does not work here ({type(error).__name__}: {reason}).") from error
