"""What a panel's words come to: medians, errors and worth by hand."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.attacks.panel_lies import LIES, PanelLie, false_scores
from holdfast.trust.consensus import concordance
from holdfast.trust.words import Found, Words, compare, error_of_median


def test_a_class_is_judged_by_the_median_of_its_holders_if_they_are_more_than_a_third() -> None:
    words = {j: {"new": {"0": 0.5, "1": 0.2}, "good": {"0": 0.6, "1": 0.1}} for j in range(5)}
    words[5] = {"new": {"0": 1.0, "2": 0.0}, "good": {"0": 0.0, "2": 1.0}}  # a liar, and the only one with class 2
    found = compare(words, "new", "good")
    assert found is not None
    assert found.classes == pytest.approx({"0": -0.1, "1": 0.1})
    assert compare({}, "new", "good") is None


@pytest.mark.parametrize(("holders", "judged"), [(3, False), (4, True)])
def test_a_class_is_judged_by_four_of_many_as_well(holders: int, judged: bool) -> None:
    scores = {j: {"0": 0.5, **({"1": 0.5} if j < holders else {})} for j in range(20)}
    words = {j: {"good": held, "new": {c: value - 0.1 for c, value in held.items()}} for j, held in scores.items()}
    found = compare(words, "new", "good")
    assert found is not None
    assert ("1" in found.classes) is judged


def found(*changes: float, errors: float = 0.0) -> Found:
    classes = {str(c): change for c, change in enumerate(changes)}
    return Found(classes, dict.fromkeys(classes, errors), errors, 3)


def test_falls_count_twice_with_what_a_class_lost_of_late_if_they_are_beyond_their_error() -> None:
    assert found(-0.15, 0.05).worth({}) == pytest.approx(-0.05 - 0.075)
    assert found(-0.15, 0.05).worth({"0": -0.1, "1": -0.5}) == pytest.approx(-0.05 - 0.125)
    assert found(-0.15, 0.05, errors=0.2).worth({"0": -0.1}) == pytest.approx(-0.05)  # nobody can tell


def test_what_lone_holders_gain_excuses_a_loss_up_to_what_others_moved_and_what_they_lose_accuses_nobody() -> None:
    """Four members: one holds classes 4 and 6 alone and gains, two hold class 2, which they trade for them."""
    change = {0: {"4": 0.44, "6": 0.29}, 1: {"2": -0.52, "9": 0.08}, 2: {"2": -0.58, "8": 0.14}, 3: {"3": -0.11}}
    words = {j: {"new": {c: 0.5 + d for c, d in d.items()}, "good": dict.fromkeys(d, 0.5)} for j, d in change.items()}
    told = compare(words, "new", "good")
    assert told is not None
    assert told.classes == pytest.approx({"2": -0.55})
    assert told.change == pytest.approx((-0.55 + 0.44 + 0.29 + 0.08 + 0.14) / 6)
    assert Found({"2": -0.1, "3": 0.0}, {}, 0.0, 4, {"4": 0.9, "6": -0.9}).change == pytest.approx(0)


def test_the_error_of_a_median_is_that_of_drawn_ones() -> None:
    draws = torch.randn((4000, 15), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for values in (draws, draws**3, draws.sign() + draws / 4):  # bell, heavy tails, two camps
        low, high = np.quantile(values.median(1).values.numpy(), [0.16, 0.84])
        assert float(error_of_median(values.flatten().numpy(), np.array(15))) == pytest.approx(
            (high - low) / 2, rel=0.2
        )


def test_a_witness_that_is_not_believed_does_not_count() -> None:
    changes = {0: (-0.3, 0.0), 1: (-0.1, 0.1), 2: (0.1, 0.2)}
    words = {j: {"new": {"a": 0.5 + a, "b": 0.5 + b}, "good": {"a": 0.5, "b": 0.5}} for j, (a, b) in changes.items()}
    told, other = compare(words, "new", "good"), compare(words, "new", "good", {0: 1.0, 1: 1.0, 2: 0.0})
    assert told is not None
    assert other is not None
    assert told.classes == pytest.approx({"a": -0.1, "b": 0.1})
    assert other.classes == pytest.approx({"a": -0.2, "b": 0.05})


def struck(lie: PanelLie | None, truthful: int) -> Words:
    """Twelve honest members, of whom so many hold class 5, and eight liars, who all do: it fell by 0.3."""
    change = {"0": 0.04, "1": -0.06, "2": 0.02, "3": -0.08, "4": 0.05, "5": -0.3}
    words = {}
    for j in range(20):
        held = [c for c in change if c != "5" or j < truthful or j >= 12]
        told = {"good": dict.fromkeys(held, 0.5), "new": {c: 0.5 + change[c] + (j % 3 - 1) / 200 for c in held}}
        words[j] = false_scores(lie, told, range(12, 20)) if lie is not None and j >= 12 else told
    return words


@pytest.mark.parametrize("lie", LIES)
def test_liars_who_are_half_of_a_classs_holders_do_not_hide_its_fall(lie: PanelLie) -> None:
    """They are believed in no class, as they lie about most. Of who lies about this class alone half cannot be told
    from the others, so there one honest holder more is needed."""
    truthful = 9 if lie == "worst" else 8
    truth, told = compare(struck(None, truthful), "new", "good"), compare(struck(lie, truthful), "new", "good")
    assert truth is not None
    assert told is not None
    assert told.classes["5"] == pytest.approx(truth.classes["5"], abs=0.01)
    assert told.falls({})["5"] < -0.29
    alike = compare(struck(lie, 8), "new", "good", dict.fromkeys(range(20), 1.0))
    assert alike is not None
    assert alike.falls({}).get("5", 0.0) > -0.2


def test_concordance_by_hand() -> None:
    """The medians are (2, -1): of twice and of half of them 2 <v, m> / (|v|^2 + |m|^2) is 20 / 25 and 5 / 6.25."""
    values = np.array([[2.0, -1.0], [2.0, -1.0], [4.0, -2.0], [1.0, -0.5], [-2.0, 1.0], [0.0, 0.0], [2.0, np.nan]])
    assert concordance(values) == pytest.approx([1, 1, 0.8, 0.8, 0, 0, 1])
    assert concordance(np.zeros((3, 2))).tolist() == [1, 1, 1]  # nobody saw a change


@given(st.lists(st.lists(st.floats(-1, 1), min_size=4, max_size=4), min_size=1, max_size=9), st.randoms())
def test_concordance_is_from_0_to_1_and_knows_no_order(rows: list[list[float]], random: Random) -> None:
    found = concordance(np.array(rows))
    assert ((found >= 0) & (found <= 1 + 1e-9)).all()
    order = list(range(len(rows)))
    random.shuffle(order)
    assert concordance(np.array(rows)[order]) == pytest.approx(found[order])
