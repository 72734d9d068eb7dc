"""FedAvg: clients train, the moderator averages (McMahan et al., AISTATS 2017).

    w <- w + sum_i a_i (w_i - w),   sum_i a_i = 1

An algorithm is what happens at eight moments; FedAvg does the least at each, and the others change one or two:

    begin       before round 1: the moderator's memory
    agreed      at the moderator, before the training: what it does with all clients' gradients, if it asks for them
    objective   at a client, before its steps: what it minimises
    stepping    at a client, before its steps: how they are taken
    correction  at a client, each step: what is added to the gradient
    remember    at a client, after its steps: its own memory
    enclose     at a client, after its steps: what goes with its update
    aggregate   at the moderator: the new model and the moderator's new memory

What travels is the algorithm's to say: `shares(name)` of each weight and buffer. Only shared ones are sent, averaged
and given to the methods above; the others stay at the client, in its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from torch import nn

from holdfast.core.types import Tensors, Update, weighted_sum
from holdfast.learning.loop import Correction
from holdfast.learning.objective import Objective
from holdfast.learning.optimizers import States
from holdfast.learning.settings import Learning


@dataclass(frozen=True)
class Work:
    """What a client did in one round."""

    round: int
    steps: int
    last: int  # the last round in which this client's update counted; -1: never
    learning: Learning
    start: Tensors = field(default_factory=dict)  # the weights that it began with
    states: States = field(default_factory=dict)  # of the optimiser, after the steps
    gradient: Tensors = field(default_factory=dict)  # over all samples at the model that was sent, if it is needed


@dataclass(frozen=True)
class FedAvg:
    """Train locally, average by weight."""

    weights: ClassVar[str] = "samples"  # the weights of its paper: by samples, or uniform
    remembers: ClassVar[bool] = False  # whether a client keeps something from round to round
    needs_each_update: ClassVar[str] = ""  # why it cannot do with updates that a trust rule changed or merged
    one_message: ClassVar[bool] = False  # whether clients send one digest and no updates
    needs_absence: ClassVar[str] = ""  # the one absence that hands clients what it needs, if there is one
    needs_reach: ClassVar[bool] = False  # whether its formulas use Learning.reach, which holds for SGD only
    needs_fresh_start: ClassVar[bool] = False  # whether optimisers must begin anew in each round
    normalises: ClassVar[bool] = False  # whether it divides each update by how far its steps reach
    needs_gradient: ClassVar[bool] = False  # whether clients work out the gradient over all of their samples
    asks_gradients: ClassVar[bool] = False  # whether they are asked for it before they train

    def fitted(self, network: nn.Module) -> Self:
        """The algorithm once it has seen the run's network, before round 1."""
        return self

    def shares(self, name: str) -> bool:
        """Whether this weight or buffer travels; what does not stays at each client."""
        return True

    def extra(self, model: Tensors) -> Tensors:
        """Tensors of the names, shapes and types that `enclose` sends with each update."""
        return {}

    def begin(self, model: Tensors) -> Tensors:
        return {}

    def agreed(self, server: Tensors, gradient: Tensors) -> Tensors:
        """The moderator's memory with the mean of all gradients, where they are asked for before the training."""
        return server

    def stepping(self, learning: Learning, server: Tensors) -> Learning:
        """How a client's steps are taken: as the experiment says, or otherwise."""
        return learning

    def correction(self, start: Tensors, server: Tensors, memory: Tensors) -> Correction | None:
        return None

    def objective(self, task: Objective, start: Tensors, server: Tensors, memory: Tensors) -> Objective:
        """What a client minimises: the task's own objective, perhaps with terms of the algorithm's around it."""
        return task

    def remember(self, delta: Tensors, work: Work, server: Tensors, memory: Tensors) -> Tensors:
        return {}

    def enclose(self, delta: Tensors, work: Work, server: Tensors, memory: Tensors) -> Tensors:
        """What a client sends with its update, as `extra` says it; the moderator finds it in `update.extra`."""
        return {}

    def broadcast(self, server: Tensors) -> Tensors:
        """The part of the moderator's memory that clients need."""
        return {}

    def aggregate(
        self,
        model: Tensors,
        updates: Sequence[Update],
        weights: Sequence[float],
        server: Tensors,
        clients: int,
        learning: Learning,
    ) -> tuple[Tensors, Tensors]:
        return along(model, average(updates, weights)), server

    def moved(self, server: Tensors, step: Tensors) -> Tensors:
        """The moderator's memory once a server optimiser or FedDig's server step has moved the model by this much."""
        return server


def shared(algorithm: FedAvg, tensors: Tensors) -> Tensors:
    """The weights or buffers that travel."""
    return {name: tensor for name, tensor in tensors.items() if algorithm.shares(name)}


def at_home(algorithm: FedAvg, tensors: Tensors) -> Tensors:
    """The weights or buffers that stay at the client."""
    return {name: tensor for name, tensor in tensors.items() if not algorithm.shares(name)}


def average(updates: Sequence[Update], weights: Sequence[float]) -> Tensors:
    """sum_i a_i delta_i."""
    return weighted_sum([update.delta for update in updates], weights)


def along(model: Tensors, change: Tensors) -> Tensors:
    """model + change, in the place of change: the moderator holds one model less."""
    return {name: change[name].add_(tensor) for name, tensor in model.items()}


def add(a: Tensors, b: Tensors, scale: float = 1.0) -> Tensors:
    """a + scale b, name by name.

    >>> import torch
    >>> add({"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}, -0.5)
    {'w': tensor([0.])}
    """
    return {name: tensor.add(b[name], alpha=scale) for name, tensor in a.items()}
