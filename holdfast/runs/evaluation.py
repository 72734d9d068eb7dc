"""Tests the model of a round: on the moderator's test set, and at the clients on their own samples.

What clients tell of themselves is summed up no further than their samples count. A metric that does not add up
(`Metric.adds_up`) is over several clients the mean of their values, weighted by samples. With secure sums only the
total of the clients' sums is known.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from holdfast.client import EVALUATE, EvaluateRequest
from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import rng
from holdfast.core.types import Absent, Federation, Reply, State, Tensors, is_large, not_there
from holdfast.data.bootstrap import interval_of
from holdfast.data.class_metrics import AtThreshold, best_threshold
from holdfast.data.kinds import Regression
from holdfast.data.metrics import ACCURACY, Metric, Rmse, value_of, values_of
from holdfast.data.ranking_metrics import Auroc
from holdfast.data.task import Task
from holdfast.learning.loop import outputs_of
from holdfast.models.networks import filled, hollow, lent
from holdfast.one_total import learn_metrics
from holdfast.record import NOT_TESTED, Record
from holdfast.runs.outcome import guessing, guessing_mean, guessing_ranks
from holdfast.runs.plan import Plan
from holdfast.secure_exchange import Exchange

TOLD = 3  # clients whose reasons a note repeats
Sums = Mapping[int, Mapping[str, Sequence[float]]]  # client -> metric -> sums


def by_guessing(task: Task) -> float | None:
    """What guessing may reach in the leading metric, where that is known."""
    if task.kind.has_classes and task.metrics[0].name == ACCURACY.name:
        return guessing(task.test.labels, task.classes)
    if task.kind.has_classes and task.classes == 2 and task.metrics[0].name == Auroc.name:
        return guessing_ranks(task.test.labels)
    if task.kind.name == Regression.name and task.metrics[0].name == Rmse.name:
        return guessing_mean(task.test.labels)
    return None


class Evaluator:
    """Measures a run's models by the metrics of its task."""

    def __init__(self, plan: Plan, federation: Federation) -> None:
        task = plan.task
        self._task = task
        self._test = plan.prepare(task.test) if len(task.test) else None
        self._plan, self._method = plan, plan.method
        self._model: nn.Module = plan.method.bench.model  # free between rounds: one network in memory, not two
        if is_large(dict(self._model.named_parameters())):
            hollow(self._model)  # not even one: it is tested with the state's own weights
        self._chance = by_guessing(task)
        self._federation = federation
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),))

    def evaluate(self, state: State, record: Record) -> Record:
        """The record with the metrics overall, for each class, at each client, and of those that are away apart."""
        start = time.perf_counter()
        model = self._method.absence.model_of(state)
        put = lent if is_large(model) else filled
        with put(self._model, model, state.buffers):
            measured = self._measured(state, record, self._method.shared(model, state.buffers))
        return dataclasses.replace(measured, seconds={**record.seconds, "evaluate": time.perf_counter() - start})

    def _measured(self, state: State, record: Record, shared: Mapping[str, Tensors]) -> Record:
        """While the clients test the model the moderator does so itself."""
        test = None if self._test is None else self._thread.submit(outputs_of, self._model, self._test)
        if self._method.secure is None:
            measured, metrics = self._of_each(state, record, shared, told=test is None)
        else:
            measured, metrics = self._of_total(state.round - 1, record, shared)
        return measured if test is None else self._tested(measured, metrics, test.result(), state.round - 1)

    def _of_total(self, round: int, record: Record, shared: Mapping[str, Tensors]) -> tuple[Record, Sequence[Metric]]:
        """The record with the metrics over all clients, of whom only the total is known (secure sums); and the metrics,
        with the threshold that is best for them."""
        exchange, metrics = Exchange(self._federation, self._method, round), list(self._task.metrics)
        measured = dataclasses.replace(record, measure=metrics[0].measure, chance=self._chance)
        try:
            sums, total = learn_metrics(exchange, shared["model"], shared["buffers"], metrics)
        except HoldfastError as error:
            return dataclasses.replace(measured, notes=[*record.notes, f"{NOT_TESTED} by clients: {error}"]), metrics
        threshold = common_threshold(metrics, {0: sums})
        metrics = at_threshold(metrics, threshold)
        found = {m.name: value for m in metrics if m.name in sums and (value := value_of(m, sums[m.name])) is not None}
        counts, notes = dict(total.claims), [*record.notes, *exchange.notes]
        measured = dataclasses.replace(measured, metrics=found, total_metrics=found, client_samples=counts, notes=notes)
        return dataclasses.replace(measured, threshold=threshold), metrics

    def _of_each(
        self, state: State, record: Record, shared: Mapping[str, Tensors], told: bool
    ) -> tuple[Record, Sequence[Metric]]:
        """The record with the metrics at each client; and the metrics, with the threshold that is best for clients.

        told: whether a note says why, where none of them answers.
        """
        messages = [
            EVALUATE.message(
                client,
                state.round - 1,
                EvaluateRequest(shared["model"], shared["buffers"], self._method.recalls(state, client)),
            )
            for client in self._federation.clients
        ]
        answers = self._federation.ask(messages)
        replies = {reply.client: EVALUATE.read(reply) for reply in answers if isinstance(reply, Reply)}
        counts = self._method.sizes.counted({client: told.samples for client, told in replies.items()})
        sums = {client: told.metrics for client, told in replies.items()}
        threshold = common_threshold(self._task.metrics, sums)
        metrics = at_threshold(self._task.metrics, threshold)
        away = {client for client, why in record.absent.items() if not_there(why)}
        measured = dataclasses.replace(
            record,
            measure=metrics[0].measure,
            metrics=together(metrics, sums, counts, counts),
            client_metrics=by_client(metrics, sums),
            client_samples=counts,
            client_intervals={client: told.interval for client, told in replies.items() if told.interval},
            absent_metrics=together(metrics, sums, counts, away),
            threshold=threshold,
            chance=self._chance,
        )
        silent = [a for a in answers if isinstance(a, Absent) and a.client not in record.absent]
        if told and not measured.metrics and silent:
            whose = [f"{self._method.called(one.client)} {one.reason}" for one in silent[:TOLD]]
            measured = dataclasses.replace(measured, notes=[*record.notes, f"{NOT_TESTED}: {'; '.join(whose)}"])
        return measured, metrics

    def _tested(self, record: Record, metrics: Sequence[Metric], output: Tensor, round: int) -> Record:
        """The record with what the moderator's own test set says, where there is one."""
        assert self._test is not None
        labels, weights, interval = self._test.labels, self._test.weights, None
        if round >= self._plan.interval_from:
            chance = rng(self._method.seed, round, -1, "bootstrap")
            interval = interval_of(metrics[0], output, labels, chance, weights)
        values = values_of(metrics, output, labels, weights)
        return dataclasses.replace(
            record, metrics=values, interval=interval, class_metrics=self._by_class(metrics, output)
        )

    def _by_class(self, metrics: Sequence[Metric], output: Tensor) -> dict[str, list[float | None]]:
        """The metrics of each class or label, those left out that none has."""
        assert self._test is not None
        kind, parts = self._task.kind, []
        for at, own, labels in kind.by_class(output, self._test.labels):
            weights = None if self._test.weights is None else self._test.weights[at]
            parts.append(values_of(kind.of_class(metrics), own, labels, weights))
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: [part.get(name) for part in parts] for name in names}


def common_threshold(metrics: Sequence[Metric], sums: Sums) -> float | None:
    """The median of the thresholds that are best for each client on its validation samples: a lie moves it little."""
    name = next((metric.name for metric in metrics if isinstance(metric, AtThreshold)), None)
    if name is None:
        return None
    found = [best for told in sums.values() if name in told and (best := best_threshold(told[name])) is not None]
    return statistics.median_low(found) if found else None


def at_threshold(metrics: Sequence[Metric], threshold: float | None) -> list[Metric]:
    if threshold is None:
        return list(metrics)
    return [metric.at(threshold) if isinstance(metric, AtThreshold) else metric for metric in metrics]


def by_client(metrics: Sequence[Metric], sums: Sums) -> dict[str, dict[int, float]]:
    """Each client's metrics, from the sums that it sent; those that come to nothing are left out."""
    found: dict[str, dict[int, float]] = {}
    for metric in metrics:
        values = {c: value_of(metric, told[metric.name]) for c, told in sums.items() if metric.name in told}
        found[metric.name] = {client: value for client, value in values.items() if value is not None}
    return found


def together(
    metrics: Sequence[Metric], sums: Sums, counts: Mapping[int, int], clients: Collection[int]
) -> dict[str, float]:
    """The metrics over some clients, each counting no more than its samples do."""
    found: dict[str, float] = {}
    for metric in metrics:
        told = [
            bounded(metric, found_at[metric.name], counts[client])
            for client, found_at in sums.items()
            if client in clients and metric.name in found_at
        ]
        value = value_of(metric, [sum(parts) for parts in zip(*told, strict=True)]) if told else None
        found |= {} if value is None else {metric.name: value}
    return found


def bounded(metric: Metric, sums: Sequence[float], most: int) -> list[float]:
    """Sums of at most so many samples; of more they are scaled down."""
    count = metric.count(sums)
    return [one * most / count for one in sums] if count > most else list(sums)
