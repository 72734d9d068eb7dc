"""Who is blamed for a round that harms: averages without each member by hand, and what witnesses say of them."""

from __future__ import annotations

import pytest
import torch

from holdfast.core.types import State, Update, unpack
from holdfast.trust.base import judgement
from holdfast.trust.replay import blamed, each_left_out, left_out
from holdfast.trust.words import Found, usual_swings

STATE = State(0, {"w": torch.tensor([1.0, 1.0])}, {}, {}, {}, {})


def test_the_average_without_each_member() -> None:
    updates = [Update(i, {"w": torch.tensor([x, 0.0])}, 1, 1) for i, x in ((3, 1.0), (5, 4.0), (7, 7.0))]
    asked = left_out(STATE, judgement(updates, [1, 1, 2], {}))
    assert asked.names == ["all", "3", "5", "7"]
    assert {name: unpack(asked.models, name)["w"][0].item() for name in asked.names} == pytest.approx(
        {"all": 1 + 19 / 4, "3": 1 + 18 / 3, "5": 1 + 15 / 3, "7": 1 + 5 / 2}
    )


def test_who_is_blamed_does_not_testify_and_at_most_half_are_left_out() -> None:
    told = {"all": {"0": 0.5}, "3": {"0": 0.9}, "5": {"0": 0.4}, "7": {"0": 0.6}}
    words = {3: {**told, "3": {"0": 0.0}}, **dict.fromkeys((5, 7, 8, 9), told)}
    assert blamed(each_left_out(words)) == [3]  # 7 as well, by less: one of three is at most half
    assert blamed(each_left_out({j: words[j] for j in (3, 5, 7)})) == []  # three witnesses cannot tell
    assert blamed(each_left_out({})) == []
    honest = {"all": {"0": 0.5}, **{str(i): {"0": 0.4 + i / 20} for i in range(5)}}  # 3 and 4 do harm
    liar = {"all": {"0": 0.5}, **{str(i): {"0": 1.0 if i < 3 else 0.0} for i in range(5)}}
    assert blamed(each_left_out(dict.fromkeys(range(5, 9), honest) | dict.fromkeys((9, 10), liar))) == [4, 3]


def test_nobody_is_blamed_within_the_error() -> None:
    """Without member 0 the class is better at five witnesses, and as much worse at four: the median is above zero."""
    words = {j: {"all": {"c": 0.5}, "0": {"c": 0.55 if j < 6 else 0.45}, "1": {"c": 0.6}} for j in range(1, 10)}
    assert blamed(each_left_out(words)) == [1]


def test_how_far_classes_move_by_chance_is_the_jackknife_over_members_whatever_a_few_do() -> None:
    """Without each in turn class 0 moves by -2 to 2 points, from which the median distance is 1: two errors are
    2 x 1.48 x 1 x 4 / sqrt(5) = 5.3 points; a sixth that moves it by 30 makes it 2 x 1.48 x 1.5 x 5 / sqrt(6)."""
    moves = (-0.02, -0.01, 0.0, 0.01, 0.02)
    replayed = {i: Found({"0": move, "1": 0.0}, {"0": 0.0, "1": 0.0}, 0.0, 9) for i, move in enumerate(moves)}
    assert usual_swings(replayed) == pytest.approx({"0": 2 * 1.4826 * 0.01 * 4 / 5**0.5, "1": 0})
    struck = replayed | {5: Found({"0": 0.3, "1": 0.0}, {"0": 0.0, "1": 0.0}, 0.0, 9)}
    assert usual_swings(struck) == pytest.approx({"0": 2 * 1.4826 * 0.015 * 5 / 6**0.5, "1": 0})
    assert usual_swings({}) == {}
    found = Found({"0": -0.04, "1": -0.04}, {"0": 0.01, "1": 0.01}, 0.0, 9)
    assert found.beyond(usual_swings(replayed)).falls({}) == {"1": -0.04}  # class 0 falls no further than by chance
