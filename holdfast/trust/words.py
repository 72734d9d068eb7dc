"""What witnesses say of one model beside another, class by class, and how far that is believed (floor.py, 1 to 4)."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from holdfast.jobs import is_number
from holdfast.trust.consensus import Values, concordance, middle_of
from holdfast.trust.panel import Scores
from holdfast.trust.reputation import ENOUGH

Words = Mapping[int, Scores]  # witness -> model -> class -> score
TELL = 4  # holders who can tell of a class: of three no error is known
BEYOND = 2.0  # standard errors, of many witnesses: a change within them is not believed


@dataclass(frozen=True)
class Found:
    """What the witnesses say of one model beside another."""

    classes: Mapping[str, float]  # d_c of each class that is judged
    errors: Mapping[str, float]  # e_c
    error: float  # e
    witnesses: int
    lone: Mapping[str, float] = field(default_factory=dict)  # what few holders say of a class: a gain may excuse a loss

    @property
    def change(self) -> float:
        most = max(map(abs, self.classes.values()))
        gains = [min(max(gain, 0.0), most) for gain in self.lone.values()]
        return statistics.fmean([*self.classes.values(), *gains])

    def falls(self, fallen: Mapping[str, float]) -> dict[str, float]:
        """The classes that fell beyond their error: by how much, with what they lost of late."""
        return {c: fallen.get(c, 0.0) + d for c, d in self.classes.items() if d < -self.errors[c]}

    def worth(self, fallen: Mapping[str, float]) -> float:
        return self.change + sum(self.falls(fallen).values()) / (len(self.classes) + len(self.lone))

    def beyond(self, swings: Mapping[str, float]) -> Found:
        """The same, where a class must fall further than it swings by itself."""
        return replace(self, errors={c: max(error, swings.get(c, 0.0)) for c, error in self.errors.items()})

    def lost(self, lose: float) -> bool:
        return self.change < -max(lose, self.error)

    @property
    def better(self) -> bool:
        """Whether this model is believed to be the better one."""
        return self.worth({}) > self.error

    def __str__(self) -> str:
        worst = min(self.classes, key=lambda c: self.classes[c])
        least = f"class {worst} {100 * self.classes[worst]:+.1f}"
        return f"{100 * self.change:+.1f} points at {self.witnesses} witnesses, {least}"


def sound(scores: Mapping[str, Any], names: Sequence[str], classes: int) -> bool:
    """Whether a witness tells a score from 0 to 1 of each model, for the same known classes: else it is not heard.

    >>> told = {"new": {"0": 0.5}, "good": {"0": 0.75}}
    >>> sound(told, ["new", "good"], 2), sound({**told, "good": {"0": [1]}}, ["new", "good"], 2)
    (True, False)
    """
    if set(scores) != set(names) or not all(isinstance(told, dict) for told in scores.values()):
        return False
    held = scores[names[0]].keys()
    return bool(held) and all(
        told.keys() == held <= set(map(str, range(classes)))
        and all(is_number(value) and 0 <= value <= 1 for value in told.values())
        for told in scores.values()
    )


def compare(words: Words, one: str, other: str, belief: Mapping[int, float] | None = None) -> Found | None:
    """Steps 1 to 3; None where no class can be judged. `belief` is what each witness counts, by default as far as its
    words go with the others', of fewer than seven one each.

    >>> low, high = {"0": 0.5, "1": 0.5}, {"0": 0.75, "1": 0.5}
    >>> words = {0: {"new": low, "good": high}, 1: {"new": low, "good": high}, 2: {"new": high, "good": low}}
    >>> compare(words, "new", "good").classes
    {'0': -0.25, '1': 0.0}
    """
    if belief is None:
        belief = believed(words, other) if len(words) >= ENOUGH else dict.fromkeys(words, 1.0)
    weights = np.array([belief[witness] for witness in words])
    heard = [told for told, weight in zip(words.values(), weights, strict=True) if weight > 0]
    holders = Counter(c for told in heard for c in told[one])
    judged = sorted(c for c, count in holders.items() if count >= TELL or 3 * count > len(heard))
    if not judged:
        return None
    values = np.array([[told[one].get(c, np.nan) - told[other].get(c, np.nan) for c in judged] for told in heard])
    weights, said = weights[weights > 0], ~np.isnan(values)
    middle = middle_of(values, weights)
    away = values - middle
    means = np.nanmean(away[said.any(1)], 1)
    beyond = believed_beyond(len(heard))
    errors = beyond * error_of_median(away[said], said.sum(0))
    error = beyond * float(error_of_median(means, np.array(len(means))))
    classes, each = (dict(zip(judged, row.tolist(), strict=True)) for row in (middle, errors))
    lone = {
        c: statistics.median(told[one][c] - told[other][c] for told in heard if c in told[one])
        for c in sorted(holders)
        if c not in classes
    }
    return Found(classes, each, error, len(words), lone)


def believed(words: Words, other: str, own: bool = True) -> dict[int, float]:
    """Step 2: how far what each witness says of all models, beside this one, is what the others say. Of the model
    that is called by its own number it is only heard if `own`.

    >>> told = {"good": {"0": 0.5, "1": 0.5}, "new": {"0": 0.75, "1": 0.25}}
    >>> lie = {"good": {"0": 0.5, "1": 0.5}, "new": {"0": 0.25, "1": 0.75}}
    >>> believed({**dict.fromkeys(range(5), told), **dict.fromkeys(range(5, 9), lie)}, "good")[8]
    0.0
    """
    names = [name for name in next(iter(words.values())) if name != other]
    classes = sorted({c for told in words.values() for c in told[other]})
    rows = [
        [
            told[name].get(c, np.nan) - told[other].get(c, np.nan) if own or name != str(witness) else np.nan
            for name in names
            for c in classes
        ]
        for witness, told in words.items()
    ]
    return dict(zip(words, concordance(np.array(rows)).tolist(), strict=True))


def believed_beyond(witnesses: int) -> float:
    """How many standard errors: two, and more where few witnesses tell them (deviation of Student's t, n - 1 degrees).

    >>> [round(believed_beyond(n), 1) for n in (3, 4, 5, 20)]
    [inf, 3.5, 2.8, 2.1]
    """
    return BEYOND * math.sqrt((witnesses - 1) / (witnesses - 3)) if witnesses > 3 else math.inf


def usual_swings(replayed: Mapping[int, Found]) -> dict[str, float]:
    """Step 5: how far classes move by chance: BEYOND standard errors of the jackknife over members, with the deviation
    that the median tells, so that a few who move a class far are not in it. Of three witnesses nothing is believed."""
    told = [found for found in replayed.values() if not math.isinf(found.error)]
    judged = sorted(set.intersection(*(set(found.classes) for found in told))) if len(told) > 2 else []
    swings = {}
    for c in judged:
        moves = np.array([found.classes[c] for found in told])
        away = 1.4826 * float(np.median(np.abs(moves - np.median(moves))))
        swings[c] = BEYOND * (len(moves) - 1) / math.sqrt(len(moves)) * away
    return swings


def error_of_median(away: Values, of: Values) -> Values:
    """The standard error of a median of n values, whatever their distribution, from how far values lie from theirs.

    (q(1/2 + r) - q(1/2 - r)) / 2,    q the quantiles, r = 1 / (2 sqrt(n)): how far the rank of a median strays
    """
    stray = 0.5 / np.sqrt(of)
    half = np.asarray(np.quantile(away, 0.5 + stray) - np.quantile(away, 0.5 - stray)) / 2
    return np.maximum(half, np.finfo(np.float64).eps)  # rounding alone
