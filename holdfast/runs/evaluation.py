"""Tests the model of a round: on the moderator's test set, and at the clients on their own samples."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from holdfast.client import EVALUATE, EvaluateReply, EvaluateRequest
from holdfast.core.types import Federation, Reply, State
from holdfast.data.class_metrics import Auroc
from holdfast.data.metrics import ACCURACY, value_of, values_of
from holdfast.data.task import Task
from holdfast.learning.loop import outputs_of
from holdfast.models.networks import fill
from holdfast.round import Record
from holdfast.runs.build import Plan
from holdfast.runs.outcome import guessing, guessing_ranks


def by_guessing(task: Task) -> float | None:
    """What guessing may reach in the leading metric, where that is known."""
    if task.kind.has_classes and task.metrics[0].name == ACCURACY.name:
        return guessing(task.test.labels, task.classes)
    if task.kind.has_classes and task.classes == 2 and task.metrics[0].name == Auroc.name:
        return guessing_ranks(task.test.labels)
    return None


class Evaluator:
    """Measures a run's models by the metrics of its task."""

    def __init__(self, plan: Plan, federation: Federation) -> None:
        task = plan.task
        self._task, self._metrics = task, task.metrics
        self._test = plan.prepare(task.test)
        self._method = plan.method
        self._model: nn.Module = plan.model()
        self._chance = by_guessing(task)
        self._federation = federation
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),))

    def evaluate(self, state: State, record: Record) -> Record:
        """The record with the metrics overall, for each class, and at each client (also those that are away)."""
        start = time.perf_counter()
        model = self._method.absence.model_of(state)
        fill(self._model, model, state.buffers)
        test = self._thread.submit(outputs_of, self._model, self._test)
        shared = self._method.shared(model, state.buffers)
        messages = [
            EVALUATE.message(
                client, state.round - 1, EvaluateRequest(**shared, accepted=self._method.recalls(state, client))
            )
            for client in self._federation.clients
        ]
        answers = self._federation.ask(messages)
        replies = {reply.client: EVALUATE.read(reply) for reply in answers if isinstance(reply, Reply)}
        output = test.result()
        return dataclasses.replace(
            record,
            measure=self._metrics[0].measure,
            metrics=values_of(self._metrics, output, self._test.labels),
            class_metrics=self._by_class(output),
            client_metrics=self._by_client(replies),
            chance=self._chance,
            seconds={**record.seconds, "evaluate": time.perf_counter() - start},
        )

    def _by_class(self, output: Tensor) -> dict[str, list[float | None]]:
        labels = self._test.labels
        if not self._task.kind.has_classes:
            return {}
        places = [(labels == c).nonzero().flatten() for c in range(self._task.classes)]
        parts = [values_of(self._metrics, output[at], labels[at]) if len(at) else {} for at in places]
        return {metric.name: [part.get(metric.name) for part in parts] for metric in self._metrics} if parts else {}

    def _by_client(self, replies: dict[int, EvaluateReply]) -> dict[str, dict[int, float]]:
        """Each client's metrics, from the sums that it sent; those that come to nothing are left out."""
        found: dict[str, dict[int, float]] = {}
        for metric in self._metrics:
            values = {
                client: value_of(metric, told.metrics[metric.name])
                for client, told in replies.items()
                if metric.name in told.metrics
            }
            found[metric.name] = {client: value for client, value in values.items() if value is not None}
        return found
