"""A search for the attack that harms an experiment most: it plays the experiment, its trust rule with it, against them.

    1  yardstick   the experiment with the hostile members away in all rounds (with nobody hostile, where a scenario
                   says who is away)
    2  first       attacks that are known to hurt (late and loud sign flips, slander, a push on one class, ...), then
                   some by chance
    3  next        generations of POPULATION attacks, drawn around the best quarter of all so far: their mean and
                   deviation in each option, at least LEAST of its range (the cross-entropy method)
    4  harm        of an attack: what the final model loses against the yardstick, the mean over seeds; or what is
                   lost by the class that is hit worst

So the attacker knows the rule, its options and how its state comes about: it plays the very runs, as many as the budget
says. Each run is one line of `search.jsonl`; a search that was stopped, or gets a larger budget, goes on from there.

Rubinstein, Kroese: The Cross-Entropy Method, Springer 2004.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from holdfast.attacks.adversary import choose_hostile
from holdfast.attacks.mixture import Mixture
from holdfast.attacks.panel_lies import LIES
from holdfast.core.config import Choice
from holdfast.core.errors import HoldfastError
from holdfast.core.files import append_line, make_folder, read_lines
from holdfast.core.randomness import rng
from holdfast.data.metrics import Measure
from holdfast.play import run
from holdfast.runs.experiment import Experiment

POPULATION = 8  # attacks in a generation
LEAST = 0.05  # of an option's range: the search never narrows further
FILE = "search.jsonl"
USUAL = {option.name: option.default for option in fields(Mixture)}
Goal = Literal["model", "class"]
Options = Mapping[str, float | int | str]


@dataclass(frozen=True)
class Range:
    """The values of one option; a length is searched by its logarithm."""

    low: float
    high: float
    whole: bool = False
    log: bool = False

    def at(self, place: float) -> float | int:
        """The value at a place from 0 to 1.

        >>> Range(1, 4, whole=True).at(0.99), Range(0.25, 16, log=True).at(0.5)
        (4, 2.0)
        """
        if self.whole:
            return int(min(self.high, self.low + math.floor(place * (self.high - self.low + 1))))
        if self.log:
            return round(self.low * math.pow(self.high / self.low, place), 3)
        return round(self.low + place * (self.high - self.low), 3)

    def place_of(self, value: float | str) -> float:
        value = float(value)
        if self.whole:
            return (value - self.low + 0.5) / (self.high - self.low + 1)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class OneOf:
    """One of some words, each as wide as the others."""

    words: Sequence[str]

    def at(self, place: float) -> str:
        """
        >>> OneOf(("a", "b")).at(0.2), OneOf(("a", "b")).at(1)
        ('a', 'b')
        """
        return self.words[min(int(place * len(self.words)), len(self.words) - 1)]

    def place_of(self, value: float | str) -> float:
        return (self.words.index(str(value)) + 0.5) / len(self.words)


@dataclass(frozen=True)
class Tried:
    """One attack, and what came of it over the seeds."""

    attack: Choice
    harm: float  # by the search's goal, in points
    lost: float  # of the leading metric, in points
    worst_class: float | None  # in points
    caught: float  # hostile members that were named, the mean over seeds
    honest_named: int  # in any seed


def ranges(experiment: Experiment, classes: int) -> dict[str, Range | OneOf]:
    """What is searched, of which values; classes are pushed and testers lie only where there are any."""
    found: dict[str, Range | OneOf] = {
        "length": Range(0.25, 8, log=True),
        "own": Range(-1, 1),
        "against": Range(-1, 1),
        "spread": Range(-1, 1),
        "since": Range(0, experiment.rounds - 1, whole=True),
        "every": Range(1, 3, whole=True),
        "victims": Range(0, max(1, experiment.clients // 4), whole=True),
    }
    if classes:
        found |= {"push": Range(0, 1), "target": Range(0, classes - 1, whole=True), "words": OneOf(LIES)}
    return found


def known(experiment: Experiment, classes: int) -> list[Options]:
    """Where the search starts: what is known to hurt some rule."""
    half = experiment.rounds // 2
    flip = {"own": -1.0, "against": 0.0}
    found: list[Options] = [
        {"length": 1.0, **flip},
        {"length": 4.0, **flip, "since": half},
        {"length": 4.0, **flip, "since": half, "victims": max(1, experiment.clients // 6)},
        {"length": 2.0, **flip, "since": half, "victims": max(1, experiment.clients // 6)},
        {"length": 1.0, "against": 1.0},
        {"length": 1.0, "against": -1.0, "spread": 1.0},
    ]
    return [*found, {"length": 1.4, "own": 1.0, "against": 0.0, "push": 1.0}] if classes else found


class Search:
    """The attacks that were tried on an experiment, and the next ones to try."""

    def __init__(
        self,
        experiment: Experiment,
        attackers: int,
        out: Path,
        classes: int,
        seeds: Sequence[int],
        goal: Goal = "model",
        draw: int = 0,
    ) -> None:
        if not 0 < attackers < experiment.clients:
            most = experiment.clients - 1
            raise HoldfastError(f"attack-search: say how many clients are hostile, from 1 to {most}: --attackers.")
        self._experiment = replace(experiment, attack=Choice("none"), attackers=0, evaluate_every=experiment.rounds)
        self._attackers, self._seeds, self._goal, self._draw = attackers, list(seeds), goal, draw
        self._space = ranges(experiment, classes)
        self._starts = [self._places(options) for options in known(experiment, classes)]
        settings = {
            "experiment": self._experiment.fingerprint,
            "attackers": self._attackers, "seeds": self._seeds, "goal": goal, "draw": draw,
        }  # fmt: skip
        self._lines = Lines(out / FILE, settings)

    def try_out(self, budget: int) -> Iterator[Tried]:
        """The attacks in the order in which they are tried, at most `budget` of them."""
        places: list[torch.Tensor] = []
        tried: list[Tried] = []
        for number in range(budget):
            place = self._next(number, places, tried)
            options = {name: one.at(float(p)) for (name, one), p in zip(self._space.items(), place, strict=True)}
            found = self._play(options)
            places.append(place)
            tried.append(found)
            yield found

    def yardstick(self, seed: int) -> dict[str, Any]:
        """What the run comes to with the hostile members away."""
        gone = choose_hostile(self._experiment.clients, self._attackers, seed)
        without = replace(self._experiment, seed=seed)
        if self._experiment.scenario.name == "none":
            away = [[client, 1, self._experiment.rounds + 1] for client in gone]
            without = replace(without, scenario=Choice("intervals", {"away": away}))
        return self._lines.get("away", seed, lambda: outcome(without, frozenset()))

    def _next(self, number: int, places: Sequence[torch.Tensor], tried: Sequence[Tried]) -> torch.Tensor:
        """Steps 2 and 3."""
        if number < len(self._starts):
            return self._starts[number]
        generator = rng(self._draw, number, -1, "attack-search")
        drawn = (torch.rand if number < POPULATION else torch.randn)(len(self._space), generator=generator)
        if number < POPULATION:
            return drawn
        before = number - number % POPULATION  # a generation knows those before it
        ranked = sorted(range(before), key=lambda place: -tried[place].harm)
        best = torch.stack([places[place] for place in ranked[: max(2, before // 4)]])
        spread = best.std(0, correction=0).clamp_min(LEAST)
        return (best.mean(0) + spread * drawn).clamp(0, 1)

    def _places(self, options: Options) -> torch.Tensor:
        usual: Options = {"every": 1, "words": LIES[0], **options}  # what else is not said is nothing
        return torch.tensor([one.place_of(usual.get(name, 0)) for name, one in self._space.items()])

    def _play(self, options: Options) -> Tried:
        """Step 4."""
        attack = Choice("mixture", {name: value for name, value in options.items() if value != USUAL[name]})
        lost, caught, named = [], [], []
        falls: dict[int, list[float]] = {}
        for seed in self._seeds:
            hostile = choose_hostile(self._experiment.clients, self._attackers, seed)
            wanted = replace(self._experiment, seed=seed, attack=attack, attackers=self._attackers)
            found = self._lines.get(str(attack), seed, partial(outcome, wanted, hostile))
            without = self.yardstick(seed)
            lost.append(Measure(**found["measure"]).loss(without["value"], found["value"]))
            caught.append(found["caught"])
            named.append(found["honest_named"])
            for c, (before, after) in enumerate(zip(without["classes"], found["classes"], strict=True)):
                if before is not None and after is not None:
                    falls.setdefault(c, []).append(100 * (before - after))
        worst = max(map(statistics.fmean, falls.values()), default=None)
        points = 100 * statistics.fmean(lost)
        if self._goal == "class" and worst is None:
            raise HoldfastError("attack-search: the task has no classes to hit; leave out --goal class.")
        harm = worst if self._goal == "class" and worst is not None else points
        return Tried(attack, harm, points, worst, statistics.fmean(caught), max(named))


class Lines:
    """What was played already, by attack and seed."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path = path
        lines: list[dict[str, Any]] = read_lines(path)
        if lines and lines[0].get("search") != settings:
            raise HoldfastError(f"{path} is of another search; name a new folder with --out.")
        if not lines:
            make_folder(path.parent)
            append_line(path, {"search": settings})
        self._there = {(line["attack"], line["seed"]): line for line in lines[1:] if "attack" in line}

    def get(self, attack: str, seed: int, play: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        line = self._there.get((attack, seed))
        if line is None:
            line = self._there[attack, seed] = {"attack": attack, "seed": seed, **play()}
            append_line(self._path, line)
        return line


def outcome(experiment: Experiment, hostile: Collection[int]) -> dict[str, Any]:
    """What a run came to."""
    records = run(experiment).records
    last = records[-1]
    if last.leading is None or last.measure is None:
        raise HoldfastError("attack-search: it goes by the test set, and the task has none.")
    named = {client for record in records for client in record.suspects}
    return {
        "measure": asdict(last.measure),
        "value": last.leading,
        "classes": list(last.by_class),
        "caught": len({*last.suspects} & {*hostile}),
        "honest_named": len(named - {*hostile}),
    }
