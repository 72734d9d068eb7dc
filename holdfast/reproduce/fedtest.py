"""FedTest's figures 4 and 5 again: 20 clients, none or some sending random weights; what is measured beside the claim.

Figure 4 is CIFAR-10 with 3 malicious clients of 20, figure 5 MNIST with 4. The paper's claim for figure 4: FedTest
reaches in 20 rounds what the others reach in 100. Its learning rate, batch and partition are not all given; here each
client holds random classes (section III). The paper's network has three convolutions and two dense layers; here it is
`cnn`, with two convolutions, and at the small scale a narrow one on a few thousand samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from holdfast.core.errors import HoldfastError, nearest
from holdfast.runs.experiment import Experiment, from_table, set_key
from holdfast.runs.history import History

METHODS = {"FedTest": "fedtest", "FedAvg": "samples", "accuracy-based": "servertest"}
FIGURES = {"fedtest-fig4": ("cifar10", 3), "fedtest-fig5": ("mnist", 4)}
SMALL: dict[str, dict[str, Any]] = {
    "cifar10": {"samples": 3000, "model": "cnn:width=16,hidden=64", "rounds": 20},
    "mnist": {"samples": 2000, "model": "cnn:width=8,hidden=32", "rounds": 20},
}
PAPER = {"model": "cnn", "rounds": 100}
CLAIM = {
    "fedtest-fig4": "the paper: FedTest needs 20 rounds where FedAvg and accuracy-based need 100",
    "fedtest-fig5": "the paper: without attackers all are alike; with 4 of 20, FedTest is clearly ahead of both",
}
LEVELS = (0.8, 1.0)  # of what FedAvg comes to without malicious clients: how soon each method gets there
SPEED_UP = 5  # that the paper claims
Scale = Literal["small", "paper"]


@dataclass(frozen=True)
class Curve:
    """The accuracy of one method by round, for each seed."""

    method: str
    attackers: int
    seeds: Sequence[Sequence[float]]

    @property
    def accuracy(self) -> list[float]:
        """The mean over seeds."""
        return [statistics.fmean(values) for values in zip(*self.seeds, strict=True)]

    @property
    def final(self) -> float:
        """The mean of the last three rounds."""
        return statistics.fmean(self.accuracy[-3:])

    @property
    def deviation(self) -> float:
        """Of that mean over seeds."""
        finals = [statistics.fmean(values[-3:]) for values in self.seeds]
        return statistics.stdev(finals) if len(finals) > 1 else 0.0


def reproduce(
    figure: str,
    data: Path | None,
    play: Callable[[Experiment], History],
    scale: Scale = "small",
    seeds: Sequence[int] = (0,),
    changes: Sequence[str] = (),
) -> list[Curve]:
    """The curves of one figure, played seed by seed."""
    return [
        Curve(name, attackers, [play(experiment).accuracy for experiment in experiments])
        for (name, attackers), experiments in experiments_of(figure, data, scale, seeds, changes).items()
    ]


def experiments_of(
    figure: str, data: Path | None, scale: Scale, seeds: Sequence[int], changes: Sequence[str] = ()
) -> dict[tuple[str, int], list[Experiment]]:
    """Method and number of malicious clients to an experiment for each seed: small takes minutes, paper hours."""
    if figure not in FIGURES:
        raise HoldfastError(f"reproduce: {figure!r} is not known; {nearest(figure, FIGURES)}")
    task, malicious = FIGURES[figure]
    common = {"task": task, "clients": 20, "partition": "classes", **(SMALL[task] if scale == "small" else PAPER)}
    if data is not None:
        common["data"] = str(data)
    found = {}
    for attackers in (0, malicious):
        attack = {"attack": "random", "attackers": attackers} if attackers else {}
        for name, trust in METHODS.items():
            tables = [{**common, **attack, "trust": trust, "seed": seed} for seed in seeds]
            for table in tables:
                for change in changes:
                    set_key(table, change)
            found[name, attackers] = [from_table(table) for table in tables]
    return found


def rounds_to(accuracies: Sequence[float], accuracy: float) -> int | None:
    """The first round, counted from 1, that reaches the accuracy.

    >>> rounds_to([0.2, 0.5, 0.4], 0.4), rounds_to([0.2], 0.4)
    (2, None)
    """
    return next((place + 1 for place, value in enumerate(accuracies) if value >= accuracy), None)


def findings(figure: str, curves: Sequence[Curve]) -> list[str]:
    """What was measured, line by line, beside the paper's claim; also where the claim does not hold."""
    target = next(curve.final for curve in curves if curve.method == "FedAvg" and not curve.attackers)
    lines = [CLAIM[figure], f"the mark: FedAvg without malicious clients comes to {100 * target:.1f} %"]
    for attackers in sorted({curve.attackers for curve in curves}):
        group = {curve.method: curve for curve in curves if curve.attackers == attackers}
        reached = {
            name: [rounds_to(curve.accuracy, level * target) for level in LEVELS] for name, curve in group.items()
        }
        for name, curve in group.items():
            when = ", ".join(
                f"{level:.0%} of the mark in " + (f"{count} rounds" if count else f"more than {len(curve.accuracy)}")
                for level, count in zip(LEVELS, reached[name], strict=True)
            )
            spread = f" ± {100 * curve.deviation:.1f}" if len(curve.seeds) > 1 else ""
            lines.append(f"{attackers} malicious, {name}: {100 * curve.final:.1f}{spread} % at the end; {when}")
        lines.append(f"{attackers} malicious: {verdict(reached['FedTest'], reached['FedAvg'])}")
    return lines


def verdict(ours: Sequence[int | None], plain: Sequence[int | None]) -> str:
    """Whether the claimed speed-up is there, at any of the levels.

    >>> verdict([2, None], [10, 20]), verdict([9, None], [10, 20])
    ('the five-fold speed-up is there (2 rounds against 10)', 'no five-fold speed-up (9 rounds against 10)')
    """
    pairs = [(a, b) for a, b in zip(ours, plain, strict=True) if a and b]
    if not pairs:
        return "no speed-up can be told, as FedTest, FedAvg or both do not come near the mark"
    mine, other = max(pairs, key=lambda pair: pair[1] / pair[0])
    held = "the five-fold speed-up is there" if other >= SPEED_UP * mine else "no five-fold speed-up"
    return f"{held} ({mine} rounds against {other})"
