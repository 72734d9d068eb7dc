"""FedTest's figures 4 and 5 again: 20 clients, none or some sending random weights; what is measured beside the claim.

Figure 4 is CIFAR-10 with 3 malicious clients of 20, figure 5 MNIST with 4. The paper's claim for figure 4: FedTest
reaches in 20 rounds what the others reach in 100. Its network (three convolutions, two dense layers), learning rate,
batch and partition are not all given; here the model is `cnn` and each client holds random classes (section III).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from holdfast.errors import HoldfastError, nearest
from holdfast.experiment import Experiment
from holdfast.play import run
from holdfast.round import Record

METHODS = {"FedTest": "fedtest", "FedAvg": "samples", "accuracy-based": "servertest"}
FIGURES = {"fedtest-fig4": ("cifar10", 3), "fedtest-fig5": ("mnist", 4)}
CLAIM = {
    "fedtest-fig4": "the paper: FedTest needs 20 rounds where FedAvg and accuracy-based need 100",
    "fedtest-fig5": "the paper: without attackers all are alike; with 4 of 20, FedTest is clearly ahead of both",
}
Scale = Literal["small", "paper"]


@dataclass(frozen=True)
class Curve:
    """The accuracy of one method by round, the mean over seeds."""

    method: str
    attackers: int
    accuracy: Sequence[float]

    @property
    def final(self) -> float:
        """The mean of the last three rounds."""
        return statistics.fmean(self.accuracy[-3:])


def reproduce(
    figure: str,
    data: Path | None,
    scale: Scale = "small",
    seeds: Sequence[int] = (0,),
    watch: Callable[[str, Record], None] | None = None,
    changes: Callable[[Experiment], Experiment] = lambda experiment: experiment,
) -> list[Curve]:
    """The curves of one figure; `changes` may alter each experiment, as a test or a curious reader wants."""
    if figure not in FIGURES:
        raise HoldfastError(f"reproduce: {figure!r} is not known; {nearest(figure, FIGURES)}")
    task, malicious = FIGURES[figure]
    curves = []
    for attackers in (0, malicious):
        for name, trust in METHODS.items():
            found = []
            for seed in seeds:
                experiment = changes(experiment_of(task, data, scale, trust, attackers, seed))
                label = f"{name}, {attackers} malicious, seed {seed}"
                found.append(run(experiment, watch=None if watch is None else partial(watch, label)).accuracy)
            curves.append(Curve(name, attackers, [statistics.fmean(values) for values in zip(*found, strict=True)]))
    return curves


def experiment_of(task: str, data: Path | None, scale: Scale, trust: str, attackers: int, seed: int) -> Experiment:
    """One run of a figure: small takes minutes, paper hours."""
    return Experiment(
        task=task,
        data=None if data is None else str(data),
        samples=5000 if scale == "small" else None,
        model="cnn",  # type: ignore[arg-type]
        clients=20,
        partition="classes",  # type: ignore[arg-type]
        attack="random" if attackers else "none",  # type: ignore[arg-type]
        attackers=attackers,
        trust=trust,  # type: ignore[arg-type]
        rounds=20 if scale == "small" else 100,
        seed=seed,
    )


def rounds_to(curve: Curve, accuracy: float) -> int | None:
    """The first round, counted from 1, that reaches the accuracy.

    >>> rounds_to(Curve("FedTest", 0, [0.2, 0.5, 0.4]), 0.4), rounds_to(Curve("FedTest", 0, [0.2]), 0.4)
    (2, None)
    """
    return next((place + 1 for place, value in enumerate(curve.accuracy) if value >= accuracy), None)


def findings(figure: str, curves: Sequence[Curve]) -> list[str]:
    """What was measured, line by line, beside the paper's claim; also where the claim does not hold."""
    lines = [CLAIM[figure]]
    for attackers in sorted({curve.attackers for curve in curves}):
        group = [curve for curve in curves if curve.attackers == attackers]
        target = next(curve.final for curve in group if curve.method == "FedAvg")
        for curve in group:
            reached = rounds_to(curve, target)
            when = f"round {reached}" if reached else f"not within {len(curve.accuracy)} rounds"
            lines.append(
                f"{attackers} malicious, {curve.method}: {curve.final:.1%} at the end; FedAvg's {target:.1%}: {when}"
            )
        ours = rounds_to(next(curve for curve in group if curve.method == "FedTest"), target)
        plain = rounds_to(next(curve for curve in group if curve.method == "FedAvg"), target)
        if ours and plain:
            held = "the five-fold speed-up is there" if plain >= 5 * ours else "no five-fold speed-up"
            lines.append(f"{attackers} malicious: {held} (round {ours} against {plain})")
        else:
            lines.append(f"{attackers} malicious: FedTest does not reach FedAvg's final accuracy, no speed-up")
    return lines
