"""Early stopping: `stop = "auroc:5"` ends a run when a metric has not become better for so many tests.

It goes by the clients' validation samples, never by the moderator's test set: the mean over the clients that are there,
weighted by their samples. Whether a run stops follows from its records alone, so a resumed run stops where it would
have. The model is the one of the last round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.config import choose
from holdfast.core.errors import HoldfastError, nearest
from holdfast.core.types import not_there
from holdfast.data.metrics import Measure
from holdfast.data.task import Task
from holdfast.record import Record
from holdfast.runs.experiment import Experiment

STOPPED = "stopped early: "


@dataclass(frozen=True)
class Patience:
    """How many tests without a better value are waited for, and how much better counts."""

    patience: int = 5
    least: float = 0.0

    def __post_init__(self) -> None:
        if self.patience < 1 or not 0 <= self.least < 1e300:
            raise ValueError(f"patience must be at least 1 and least at least 0, got {self.patience} and {self.least}.")


@dataclass(frozen=True)
class Stop:
    """The metric that a run is stopped by, and when."""

    measure: Measure
    when: Patience

    def reason(self, records: Sequence[Record]) -> str | None:
        """Why the run ends with the last of these records; none: it goes on."""
        values = [value for value in (at_clients(record, self.measure.name) for record in records) if value is not None]
        best, since = None, 0
        for value in values:
            gain = 0.0 if best is None else (best - value if self.measure.smaller_is_better else value - best)
            better = best is None or gain > self.when.least
            best, since = (value, 0) if better else (best, since + 1)
        if best is None or since < self.when.patience:
            return None
        return f"{STOPPED}at the clients that were there, {self.measure.said(best)} was not bettered in {since} tests"


def at_clients(record: Record, name: str) -> float | None:
    """A metric over the clients that were there, weighted by their samples; none if it was not measured."""
    if name in record.total_metrics:
        return record.total_metrics[name]
    away = {client for client, why in record.absent.items() if not_there(why)}
    found = {c: value for c, value in record.client_metrics.get(name, {}).items() if c not in away}
    total = sum(record.client_samples.get(client, 0) for client in found)
    return sum(record.client_samples.get(c, 0) * value for c, value in found.items()) / total if total else None


def choose_stop(experiment: Experiment, task: Task) -> Stop | None:
    """What the experiment says; the metric must be one that is told."""
    choice = experiment.stop
    if choice.name == "none":
        if str(choice) != choice.name:
            raise HoldfastError(f"stop: 'none' has no options, got {choice}; name the metric to stop by.")
        return None
    measures = {metric.name: metric.measure for metric in task.metrics}
    if choice.name not in measures:
        raise HoldfastError(f"stop: {choice.name!r} is not among the run's metrics; {nearest(choice.name, measures)}")
    return Stop(measures[choice.name], choose({choice.name: Patience}, choice, "stop"))


def has_stopped(records: Sequence[Record]) -> bool:
    """Whether a run ended early with its last record."""
    return bool(records) and any(note.startswith(STOPPED) for note in records[-1].notes)
