"""FedTest's figures 4 and 5 again: 20 clients, none or some sending random weights; what is measured beside the claim.

Figure 4 is CIFAR-10 with 3 malicious clients of 20, figure 5 MNIST with 4. The paper's claim for figure 4: FedTest
reaches in 20 rounds what the others reach in 100. Its learning rate, batch and partition are not all given; here each
client holds random classes (section III). The network has the paper's three convolutions and two dense layers, and at
the small scale it is a narrow one on a few thousand samples.

Nor does the paper say how large random weights are: they are N(0, s^2) here, with s `scale` times the size of the
client's own weights. FedTest is played at several scales, the others at 1. Beside it stand FedAvg and FedDig on public
features, each other's measure: FedDig's rounds against FedAvg's on the same features.
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

METHODS: dict[str, dict[str, Any]] = {
    "FedTest": {"trust": "fedtest"},
    "FedAvg": {"trust": "samples"},
    "accuracy-based": {"trust": "servertest"},
    "FedAvg on features": {"trust": "samples", "model": "features"},
    "FedDig on features": {"absence": "feddig", "model": "features"},
    "FedDig and jury on features": {"absence": "feddig", "trust": "jury", "model": "features"},
}
PLAIN = {name: "FedAvg on features" if name.endswith("on features") else "FedAvg" for name in METHODS}  # its measure
SCALES = (0.1, 0.3, 3.0)  # of random weights, beside 1, for FedTest
FIGURES = {"fedtest-fig4": ("cifar10", 3), "fedtest-fig5": ("mnist", 4)}
SMALL: dict[str, dict[str, Any]] = {
    "cifar10": {"samples": 3000, "model": "cnn:width=16,hidden=64,depth=3", "rounds": 20},
    "mnist": {"samples": 2000, "model": "cnn:width=8,hidden=32,depth=3", "rounds": 20},
}
PAPER = {"model": "cnn:depth=3", "rounds": 100}
CLAIM = {
    "fedtest-fig4": "the paper: FedTest needs 20 rounds where FedAvg and accuracy-based need 100",
    "fedtest-fig5": "the paper: without attackers all are alike; with 4 of 20, FedTest is clearly ahead of both",
}
CONDITIONS = ("none malicious", "malicious", "scales")  # parts beside the methods
LEVELS = (0.8, 1.0)  # of what FedAvg comes to without malicious clients: how soon each method gets there
SPEED_UP = 5  # that the paper claims
Scale = Literal["small", "paper"]


@dataclass(frozen=True)
class Curve:
    """The accuracy of one method by round, for each seed."""

    method: str
    attackers: int
    seeds: Sequence[Sequence[float]]
    scale: float = 1.0  # of random weights
    kept: float | None = None  # the malicious clients' share of the weight in the second half of the rounds

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
    kept: Callable[[History], float | None] = lambda history: None,
    parts: Sequence[str] = (),
) -> list[Curve]:
    """The curves of one figure, played seed by seed; `kept` says which weight malicious clients had in a run."""
    curves = []
    for (name, attackers, random), experiments in experiments_of(figure, data, scale, seeds, changes, parts).items():
        histories = [play(experiment) for experiment in experiments]
        shares = [share for share in map(kept, histories) if share is not None]
        mean = statistics.fmean(shares) if shares else None
        curves.append(Curve(name, attackers, [history.accuracy for history in histories], random, mean))
    return curves


def experiments_of(
    figure: str,
    data: Path | None,
    scale: Scale,
    seeds: Sequence[int],
    changes: Sequence[str] = (),
    parts: Sequence[str] = (),
) -> dict[tuple[str, int, float], list[Experiment]]:
    """Method, number of malicious clients and scale of random weights to an experiment for each seed.

    Small takes minutes, paper hours. What the user changes holds for all that the methods themselves leave open.
    """
    for part in parts:
        if part not in (*METHODS, *CONDITIONS):
            raise HoldfastError(f"reproduce --only: {figure} has no {part!r}; {nearest(part, [*METHODS, *CONDITIONS])}")
    if figure not in FIGURES:
        raise HoldfastError(f"reproduce: {figure!r} is not known; {nearest(figure, FIGURES)}")
    task, malicious = FIGURES[figure]
    common = {"task": task, "clients": 20, "partition": "classes", **(SMALL[task] if scale == "small" else PAPER)}
    if data is not None:
        common["data"] = str(data)
    for change in changes:
        set_key(common, change)
    found = {}
    for attackers, random, names in (
        (0, 1.0, list(METHODS)),
        (malicious, 1.0, list(METHODS)),
        *((malicious, one, ["FedTest"]) for one in SCALES),
    ):
        attack = {"attack": f"random:scale={random:g}", "attackers": attackers} if attackers else {}
        for name in (name for name in names if is_wanted(name, attackers, random, parts)):
            tables = [{**common, **attack, **METHODS[name], "seed": seed} for seed in seeds]
            found[name, attackers, random] = [from_table(table) for table in tables]
    return found


def is_wanted(name: str, attackers: int, random: float, parts: Sequence[str]) -> bool:
    """Whether a curve is among the parts that were asked for; the mark of each method is, too.

    >>> [is_wanted(name, 0, 1.0, ["FedTest", "malicious"]) for name in ("FedTest", "FedAvg")]
    [False, True]
    """
    names = [part for part in parts if part in METHODS] or list(METHODS)
    asked = [part for part in parts if part in CONDITIONS] or (CONDITIONS[:2] if parts else CONDITIONS)
    condition = CONDITIONS[0] if not attackers else CONDITIONS[1] if random == 1 else CONDITIONS[2]
    is_mark = not attackers and name in {PLAIN[one] for one in names}
    return is_mark or (name in names and condition in asked)


def rounds_to(accuracies: Sequence[float], accuracy: float) -> int | None:
    """The first round, counted from 1, that reaches the accuracy.

    >>> rounds_to([0.2, 0.5, 0.4], 0.4), rounds_to([0.2], 0.4)
    (2, None)
    """
    return next((place + 1 for place, value in enumerate(accuracies) if value >= accuracy), None)


def findings(figure: str, curves: Sequence[Curve]) -> list[str]:
    """What was measured, line by line, beside the paper's claim; also where the claim does not hold."""
    marks = {curve.method: curve.final for curve in curves if curve.method in PLAIN.values() and not curve.attackers}
    lines = [CLAIM[figure]]
    lines += [f"the mark: {name} without malicious clients comes to {100 * mark:.1f} %" for name, mark in marks.items()]
    for attackers in sorted({curve.attackers for curve in curves}):
        group = [curve for curve in curves if curve.attackers == attackers]
        reached = {}
        for curve in group:
            mark = marks[PLAIN[curve.method]]
            reached[curve.method, curve.scale] = [rounds_to(curve.accuracy, level * mark) for level in LEVELS]
            lines.append(f"{attackers} malicious, {told(curve, reached[curve.method, curve.scale])}")
        for ours in ("FedTest", "FedDig on features"):
            if (ours, 1.0) in reached and (PLAIN[ours], 1.0) in reached:
                compared = verdict(reached[ours, 1.0], reached[PLAIN[ours], 1.0], ours)
                lines.append(f"{attackers} malicious: {compared}")
    return lines


def told(curve: Curve, reached: Sequence[int | None]) -> str:
    """One method's line: where it comes to, when, and what say the malicious clients kept."""
    when = ", ".join(
        f"{level:.0%} of the mark in " + (f"{count} rounds" if count else f"more than {len(curve.accuracy)}")
        for level, count in zip(LEVELS, reached, strict=True)
    )
    spread = f" ± {100 * curve.deviation:.1f}" if len(curve.seeds) > 1 else ""
    scale = f" (random weights x {curve.scale:g})" if curve.scale != 1 else ""
    kept = "" if curve.kept is None else f"; malicious clients keep {curve.kept:.1%} of the weight"
    return f"{curve.method}{scale}: {100 * curve.final:.1f}{spread} % at the end; {when}{kept}"


def verdict(ours: Sequence[int | None], plain: Sequence[int | None], name: str = "FedTest") -> str:
    """Whether the claimed speed-up is there, at any of the levels.

    >>> verdict([2, None], [10, 20])
    'FedTest: the five-fold speed-up is there (2 rounds against 10)'
    >>> verdict([9, None], [10, 20])
    'FedTest: no five-fold speed-up (9 rounds against 10)'
    """
    pairs = [(a, b) for a, b in zip(ours, plain, strict=True) if a and b]
    if not pairs:
        return f"{name}: no speed-up can be told, as it, FedAvg or both do not come near the mark"
    mine, other = max(pairs, key=lambda pair: pair[1] / pair[0])
    held = "the five-fold speed-up is there" if other >= SPEED_UP * mine else "no five-fold speed-up"
    return f"{name}: {held} ({mine} rounds against {other})"
