"""What is written down of a round, and the clock of its parts."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.core.logs import tell
from holdfast.data.metrics import ACCURACY, Measure

NOT_TESTED = "not tested"


@dataclass(frozen=True)
class Record:
    """What is written down of a round."""

    round: int  # counted from 1
    absent: Mapping[int, str]
    refused: Mapping[int, str]
    stand_ins: Sequence[int]
    weights: Mapping[int, float]
    scores: Mapping[int, float]
    suspects: Mapping[int, str]
    loss: float | None  # the mean of those that are finite
    bytes_up: int
    bytes_down: int
    seconds: Mapping[str, float]
    notes: Sequence[str] = field(default_factory=list)
    measure: Measure | None = None  # how the leading metric is read; none: the model was not tested in this round
    metrics: Mapping[str, float] = field(default_factory=dict)  # on the moderator's test set
    class_metrics: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # of each class, if any
    client_metrics: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # at each client
    client_samples: Mapping[int, int] = field(default_factory=dict)  # that each client's metrics are of, as they count
    client_intervals: Mapping[int, Sequence[float]] = field(default_factory=dict)  # of the leading metric, bootstrap
    absent_metrics: Mapping[str, float] = field(default_factory=dict)  # over the data of those that are away
    total_metrics: Mapping[str, float] = field(default_factory=dict)  # over all clients, where only their total is told
    interval: Sequence[float] | None = None  # of the leading metric on the test set, bootstrap, 95 %
    threshold: float | None = None  # of sensitivity and specificity; none: one half
    credibility: Mapping[int, float] = field(default_factory=dict)  # of those who tested; runs of old have none
    chance: float | None = None  # what guessing may reach in the leading metric; none: unknown
    asked: Sequence[int] | None = None  # to train; none: everyone
    client_seconds: Mapping[int, float] = field(default_factory=dict)  # of each reply, as the client says
    client_steps: Mapping[int, int] = field(default_factory=dict)  # that clients were asked for, where work is by speed
    late: Mapping[int, int] = field(default_factory=dict)  # client -> the round that its update answered
    chosen_for: Mapping[int, str] = field(default_factory=dict)  # why each was asked, where the selection says so

    @property
    def leading(self) -> float | None:
        """The leading metric on the test set."""
        return None if self.measure is None else self.metrics.get(self.measure.name)

    @property
    def by_client(self) -> Mapping[int, float]:
        """The leading metric at each client."""
        return {} if self.measure is None else self.client_metrics.get(self.measure.name, {})

    @property
    def by_class(self) -> Sequence[float | None]:
        """The metric of each class that `class_measure` names."""
        return () if self.class_measure is None else self.class_metrics[self.class_measure.name]

    @property
    def class_measure(self) -> Measure | None:
        """What classes are measured by: the leading metric, or accuracy where that needs several classes."""
        if self.measure is not None and self.measure.name in self.class_metrics:
            return self.measure
        return ACCURACY if ACCURACY.name in self.class_metrics else None

    @property
    def accuracy(self) -> float | None:
        """The accuracy on the test set, of a classification."""
        return self.metrics.get(ACCURACY.name)

    def was_asked(self, client: int) -> bool:
        return self.asked is None or client in self.asked


class Clock:
    """Seconds of each part of a round."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now


def tell_round(log: logging.Logger, record: Record, name_of: Callable[[int], str]) -> None:
    """Log a round as an event: what was measured, and who was away, refused or suspected, by name."""
    measure, value = record.measure, record.leading
    if measure is None or value is None:
        tested = next((note for note in record.notes if note.startswith(NOT_TESTED)), NOT_TESTED)
    else:
        tested = f"{measure.words} {measure.text(value)}"
    people = {
        what: {name_of(client): why for client, why in told.items()}
        for what, told in (("absent", record.absent), ("refused", record.refused), ("suspected", record.suspects))
        if told
    }
    metrics = {name: value for name, value in record.metrics.items() if math.isfinite(value)}
    tell(log, f"Round {record.round}: {tested}", event="round", round=record.round, metrics=metrics, **people)
