"""What liars on a panel say of models: ways in which hostile members answer the jury's questions.

    opposite   the better a model beside the last good one, the worse they call it
    nothing    no model differs from the last good one
    gains      what gained, they tell; what fell, they say did not
    worst      of the class that the new model loses most of they say that it gained, else the truth
    fell       each model lost 0.05 of each class, all in the same words: so that honest rounds look like harm
    capture    their first class gained as much as can be, the one that fell most did not change, else the truth:
               whoever holds that first class seems to lie
    spread     all gained as much as can be; of the class that fell most they do not speak: so that words lie far apart

Of the round without each member they say that without an honest one it is better and without one of their own worse:
a little in all classes (`fell`, `capture`, `spread`), as far as the truth allows (`gains`), of nobody (`nothing`), or
as much as can be.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, get_args

PanelLie = Literal["opposite", "nothing", "gains", "worst", "fell", "capture", "spread"]
LIES: tuple[PanelLie, ...] = get_args(PanelLie)
Scores = Mapping[str, float]  # class -> score
Told = Mapping[str, Scores]  # model -> its scores
LITTLE = 0.05


def false_scores(lie: PanelLie, told: Told, hostile: Collection[int]) -> dict[str, dict[str, float]]:
    """What a liar says in place of the scores that it measured.

    >>> told = {"good": {"0": 0.5, "1": 0.5}, "new": {"0": 0.25, "1": 0.75}}
    >>> false_scores("opposite", told, [])
    {'good': {'0': 0.25, '1': 0.75}, 'new': {'0': 0.5, '1': 0.5}}
    >>> false_scores("gains", told, [])["new"], false_scores("worst", told, [])["new"]
    ({'0': 0.5, '1': 0.75}, {'0': 0.75, '1': 0.75})
    >>> false_scores("spread", told, [])
    {'good': {'1': 0.0}, 'new': {'1': 1.0}}
    >>> false_scores("gains", {"all": {"0": 0.5}, "3": {"0": 0.25}, "4": {"0": 0.75}}, hostile=[4])
    {'all': {'0': 0.5}, '3': {'0': 0.5}, '4': {'0': 0.5}}
    """
    if "good" in told:
        return of_models(lie, told)
    return {name: of_member(lie, scores, told, name, hostile) for name, scores in told.items()}


def of_models(lie: PanelLie, told: Told) -> dict[str, dict[str, float]]:
    """Beside the last good model."""
    good, new = told["good"], told.get("new", told["good"])
    worst, first = min(good, key=lambda c: new[c] - good[c]), min(good)
    if lie == "opposite":
        ends = {c: [f(scores[c] for scores in told.values()) for f in (min, max)] for c in good}
        return {name: {c: sum(ends[c]) - value for c, value in scores.items()} for name, scores in told.items()}

    def said(name: str, c: str) -> float:
        old, value, other = good[c], told[name][c], name != "good"
        if lie == "nothing":
            return old
        if lie == "gains":
            return max(value, old)
        if lie == "fell":
            return 0.5 - LITTLE * other
        if lie == "spread" or (lie == "capture" and c == first):
            return float(other)
        if c != worst:
            return value
        return old if lie == "capture" else min(1.0, max(0.0, 2 * old - value))

    classes = [c for c in good if not (lie == "spread" and c == worst and len(good) > 1)]
    return {name: {c: said(name, c) for c in classes} for name in told}


def of_member(lie: PanelLie, scores: Scores, told: Told, name: str, hostile: Collection[int]) -> dict[str, float]:
    """Of the round without a member, beside that with all; other models as they are."""
    whole = told.get("all", told.get("new", scores))
    if lie in ("fell", "capture", "spread"):
        little = LITTLE * (0 if not name.isdecimal() else -1 if int(name) in hostile else 1)
        return dict.fromkeys(scores, 0.5 + little)
    if not name.isdecimal():
        return dict(scores)
    if lie == "nothing":
        return dict(whole)
    own = int(name) in hostile
    if lie == "gains":
        return {c: (min if own else max)(value, whole[c]) for c, value in scores.items()}
    return dict.fromkeys(scores, 0.0 if own else 1.0)
