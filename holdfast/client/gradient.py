"""The job `gradient`: that over all of a client's samples at the model sent, before it trains (Mime)."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.algorithms.fedavg import shared
from holdfast.client.client import Client
from holdfast.client.train import counted, refuse_unprotected, samples_in
from holdfast.context import Context
from holdfast.core.failures import Refusal
from holdfast.core.types import Reply, Tensors
from holdfast.core.validate import bad_count, misfit
from holdfast.jobs import Job, register
from holdfast.learning.loop import full_gradient
from holdfast.learning.objective import TaskLoss
from holdfast.models.networks import fill, weights_of


@dataclass(frozen=True)
class GradientRequest:
    """The model at which the gradient is wanted."""

    model: Tensors
    buffers: Tensors


@dataclass(frozen=True)
class GradientReply:
    """The gradient of the mean loss, and of how many samples it is."""

    gradient: Tensors
    samples: int


class Gradient(Job[Client, GradientRequest, GradientReply]):
    name, request, reply = "gradient", GradientRequest, GradientReply

    def due(self, round: int, client: Client, context: Context) -> bool:
        return context.algorithm.asks_gradients

    def records(self, client: Client, round: int) -> int:
        return len(client.train)

    def perform(self, client: Client, asked: GradientRequest, round: int) -> GradientReply:
        if not client.algorithm.asks_gradients or client.guard is not None:
            raise Refusal("job", "a 'gradient' was asked for, but the run's algorithm has none, or protects updates.")
        refuse_unprotected(client)
        samples = samples_in(client, round)
        fill(client.model, asked.model, asked.buffers)
        objective = TaskLoss(client.loss, each=samples.weights is not None)
        return GradientReply(full_gradient(client.model, samples, client.learning, objective), counted(client))

    def fault(self, reply: Reply, context: Context) -> str | None:
        wanted = shared(context.algorithm, weights_of(context.bench.model))
        return bad_count(reply, "samples") or misfit(self.read(reply).gradient, wanted)


GRADIENT = register(Gradient())
