"""What a run came to: the records of its rounds, and what people ask of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.cards import card, curve
from holdfast.core.errors import HoldfastError, missing_package
from holdfast.core.types import State
from holdfast.data.metrics import ACCURACY, Measure
from holdfast.record import Record
from holdfast.runs.experiment import Experiment
from holdfast.runs.outcome import find_failures
from holdfast.runs.records import scalars


@dataclass(frozen=True)
class History:
    """What a run came to."""

    experiment: Experiment
    records: Sequence[Record]
    folder: Path | None = None
    state: State | None = None

    @property
    def measure(self) -> Measure:
        """How the leading metric is read; accuracy before the first test."""
        return next((r.measure for r in reversed(self.records) if r.measure is not None), ACCURACY)

    @property
    def leading(self) -> list[float]:
        """The leading metric on the test set after each round that was evaluated."""
        return [record.leading for record in self.records if record.leading is not None]

    @property
    def final(self) -> float | None:
        """Mean of the leading metric over the last tenth of the rounds, at least three; none before the first test."""
        return mean_of_last(self.leading)

    @property
    def final_text(self) -> str:
        """What the leading metric came to, with its unit."""
        return "unknown" if self.final is None else self.measure.text(self.final)

    @property
    def final_words(self) -> str:
        """Of how many tests the final value is the mean, in brackets."""
        count = len(last_tenth(self.leading))
        return f" (mean of the last {count} tests)" if count > 1 else ""

    @property
    def accuracy(self) -> list[float]:
        """Test accuracy after each round that was evaluated, of a classification."""
        return [record.accuracy for record in self.records if record.accuracy is not None]

    @property
    def final_accuracy(self) -> float:
        """Mean test accuracy over the last tenth of the rounds, at least three."""
        final = mean_of_last(self.accuracy)
        if final is None:
            raise HoldfastError(f"This run has no accuracy; history.final is its {self.measure.name}.")
        return final

    @property
    def failures(self) -> list[str]:
        """Why this run's result is none, if so: nobody trained, no loss was finite, no better than guessing."""
        return find_failures(self.records, self.experiment.clients, self.experiment.name_of)

    @property
    def seconds(self) -> float:
        return sum(sum(record.seconds.values()) for record in self.records)

    @property
    def bytes_up(self) -> int:
        return sum(record.bytes_up for record in self.records)

    @property
    def bytes_down(self) -> int:
        return sum(record.bytes_down for record in self.records)

    def to_pandas(self) -> Any:
        """One row for each round, from 1, and a column for each number, as `accuracy` or `weights/0` (needs pandas)."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise missing_package(error) or error from None
        return pandas.DataFrame([{"round": record.round, **dict(scalars(record))} for record in self.records])

    def plot(self, axes: Any = None) -> Any:
        """Draw the leading metric over the rounds, on matplotlib's axes if some are given; gives the axes back."""
        if axes is None:
            from matplotlib import pyplot

            axes = pyplot.gca()
        tested = [(record.round, record.leading) for record in self.records if record.leading is not None]
        axes.plot(*zip(*tested, strict=True) if tested else ([], []), label=self.experiment.method)
        axes.set_xlabel("round")
        axes.set_ylabel(f"test {self.measure.name}")
        axes.legend()
        return axes

    def __repr__(self) -> str:
        what = f"{self.experiment.method} on {self.experiment.task} under {self.experiment.scenario}"
        rounds = f"{len(self.records)} round{'s' * (len(self.records) != 1)}"
        more = ", ".join(("plot()", "to_pandas()", "records", "experiment"))
        return f"<History: {what}, {self.measure.words} {self.final_text} after {rounds}; it has {more}>"

    def _repr_html_(self) -> str:
        experiment = self.experiment
        rows = [
            ("scenario", experiment.scenario),
            ("clients", experiment.clients),
            ("rounds", len(self.records)),
            (f"final {self.measure.words}", self.final_text + self.final_words),
            ("sent up, down", f"{self.bytes_up / 1e6:.1f} MB, {self.bytes_down / 1e6:.1f} MB"),
            *(("failed", failure) for failure in self.failures),
            *((("folder", self.folder),) if self.folder else ()),
        ]
        label = f"{self.measure.words} over {len(self.leading)} tests"
        return card(f"{experiment.method} on {experiment.task}", rows, curve(self.leading, label))


def mean_of_last(values: Sequence[float]) -> float | None:
    """Mean of the last tenth, at least three.

    >>> mean_of_last([9.0, 1.0, 2.0, 3.0]), mean_of_last([])
    (2.0, None)
    """
    last = last_tenth(values)
    return sum(last) / len(last) if last else None


def last_tenth(values: Sequence[float]) -> Sequence[float]:
    """The values that a final one is the mean of."""
    return values[-max(3, -(-len(values) // 10)) :]
