"""What liars on a panel say of models: the four ways in which hostile members answer the jury's questions.

    opposite   the better a model beside the last good one, the worse they call it
    nothing    no model differs from the last good one
    gains      what gained, they tell; what fell, they say did not
    worst      of the class that the new model loses most of they say that it gained, else the truth

Of the round without each member they say that without an honest one it is better and without one of their own worse, as
far as the lie allows: `nothing` says it of nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

PanelLie = Literal["opposite", "nothing", "gains", "worst"]
Told = Mapping[str, Mapping[str, float]]  # model -> class -> score


def false_scores(lie: PanelLie, told: Told, hostile: Collection[int]) -> dict[str, dict[str, float]]:
    """What a liar says in place of the scores that it measured.

    >>> told = {"good": {"0": 0.5, "1": 0.5}, "new": {"0": 0.25, "1": 0.75}}
    >>> false_scores("opposite", told, [])
    {'good': {'0': 0.25, '1': 0.75}, 'new': {'0': 0.5, '1': 0.5}}
    >>> false_scores("gains", told, [])["new"], false_scores("worst", told, [])["new"]
    ({'0': 0.5, '1': 0.75}, {'0': 0.75, '1': 0.75})
    >>> false_scores("gains", {"all": {"0": 0.5}, "3": {"0": 0.25}, "4": {"0": 0.75}}, hostile=[4])
    {'all': {'0': 0.5}, '3': {'0': 0.5}, '4': {'0': 0.5}}
    """
    if "good" in told:
        return of_models(lie, told)
    return {name: of_member(lie, scores, told, name, hostile) for name, scores in told.items()}


def of_models(lie: PanelLie, told: Told) -> dict[str, dict[str, float]]:
    """Beside the last good model."""
    good = told["good"]
    if lie == "opposite":
        ends = {c: [f(scores[c] for scores in told.values()) for f in (min, max)] for c in good}
        return {name: {c: sum(ends[c]) - value for c, value in scores.items()} for name, scores in told.items()}
    if lie == "nothing":
        return {name: dict(good) for name in told}
    if lie == "gains":
        return {name: {c: max(value, good[c]) for c, value in scores.items()} for name, scores in told.items()}
    new = told.get("new", good)
    worst = min(good, key=lambda c: new[c] - good[c])
    turned = {name: min(1.0, max(0.0, 2 * good[worst] - scores[worst])) for name, scores in told.items()}
    return {name: {**scores, worst: turned[name]} for name, scores in told.items()}


def of_member(
    lie: PanelLie, scores: Mapping[str, float], told: Told, name: str, hostile: Collection[int]
) -> dict[str, float]:
    """Of the round without a member, beside that with all; other models as they are."""
    if not name.isdecimal():
        return dict(scores)
    whole = told.get("all", told.get("new", scores))
    if lie == "nothing":
        return dict(whole)
    own = int(name) in hostile
    if lie == "gains":
        return {c: (min if own else max)(value, whole[c]) for c, value in scores.items()}
    return dict.fromkeys(scores, 0.0 if own else 1.0)
