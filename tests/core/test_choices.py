"""Choices: names with options, read strictly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.algorithms import ALGORITHMS, FedDyn, FedProx
from holdfast.core.config import Choice, choose, convert
from holdfast.core.errors import HoldfastError


@dataclass(frozen=True)
class Thing:
    """A user's own kind."""

    size: int
    ratio: float = 0.5
    loud: bool = False
    kind: Literal["a", "b"] = "a"
    most: float | None = None
    parts: tuple[int, ...] = ()
    manner: Literal["none", "nan", "other"] = "nan"


KINDS = {"thing": Thing, **ALGORITHMS}


def pick(spec: object) -> object:
    return choose(KINDS, Choice.parse(spec, "key"), "key")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("thing:3", Thing(3)),
        ("thing:size=3,ratio=1,loud=true,kind=b,most=none,parts=1/2/3", Thing(3, 1.0, True, "b", None, (1, 2, 3))),
        ({"name": "thing", "size": 3, "most": 2, "parts": [4]}, Thing(3, most=2.0, parts=(4,))),
        ({"name": "thing:3", "ratio": 0.25}, Thing(3, 0.25)),
        ({"name": "thing:size=3", "ratio": 0.25}, Thing(3, 0.25)),  # options in the name are not lost
        ({"name": "thing:3", "size": 4}, Thing(4)),  # the later word counts
        ("fedprox:0.5", FedProx(0.5)),
        ({"name": "feddyn", "alpha": 1}, FedDyn(1.0)),
        ("holdfast.algorithms.fedprox:FedProx", FedProx()),
        ({"name": "holdfast.algorithms.fedprox:FedProx", "mu": 0.5}, FedProx(0.5)),
        (f"{__name__}:Thing" if "." in __name__ else {"name": f"{__name__}:Thing", "size": 3}, Thing(3)),
    ],
)
def test_what_is_chosen(spec: object, expected: object) -> None:
    assert pick(spec) == expected


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("fedporx", "key: 'fedporx' is not known; did you mean 'fedprox'?"),
        ("thing", "key: 'thing' needs the option 'size'."),
        ("thing:3.5", "key.size: expected a whole number, got '3.5'."),
        ("thing:size=3,raito=1", "key: 'thing' has no option 'raito'; did you mean 'ratio'?"),
        ("thing:size=3,loud", "key: 'loud' in 'thing:size=3,loud' is not of the form option=value."),
        ("thing:size=3,loud=yes", "key.loud: expected true or false, got 'yes'."),
        ("thing:size=3,kind=c", "key.kind: 'c' is not known; known: a, b"),
        ("thing:size=3,manner=nona", "key.manner: 'nona' is not known; did you mean 'none'? (known: none, nan, other)"),
        ("thing:size=3,parts=1/x", "key.parts[1]: expected a whole number, got 'x'."),
        ({"name": "thing", "size": 3, "parts": 4}, "key.parts: expected a list, got 4."),
        ({"name": "thing", "size": 3, "loud": 1}, "key.loud: expected true or false, got 1."),
        ({"name": "thing", "size": True}, "key.size: expected a whole number, got True."),
        ("fedavg:3", "key: 'fedavg' takes no option, got '3'."),
        ("fedavg:mu=3", "key: 'fedavg' has no option 'mu'; it has none"),
        ("fedprox:-1", "key: 'fedprox': mu must not be negative, got -1.0."),
        ("fedprox:nan", "key.mu: expected a number, got nan."),
        ("feddyn:0", "key: 'feddyn': alpha must be positive, got 0.0."),
        ("feddyn:inf", "key: 'feddyn': alpha must be positive, got inf."),
        ("adabest:mu=0.1,beta=1", "key: 'adabest': mu must not be negative and beta must be in [0, 1)"),
        ("no.such:Thing", "key: cannot import 'no.such'"),
        (".relative:Thing", "key: cannot import '.relative'"),
        ("holdfast.core.types:Thing", "module 'holdfast.core.types' has no 'Thing'"),
        (
            {"name": "holdfast.core.types:pack", "x": 1},
            "key: 'holdfast.core.types:pack' is not a class, so it takes no options.",
        ),
    ],
)
def test_what_is_refused(spec: object, says: str) -> None:
    with pytest.raises(HoldfastError) as error:
        pick(spec)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@given(value=st.one_of(st.integers(-(10**9), 10**9), st.floats(allow_nan=False), st.booleans()))
@settings(max_examples=60)
def test_text_is_read_as_the_value_it_spells(value: float | bool) -> None:
    assert convert(str(value), type(value), "key") == value
    assert convert(value, type(value), "key") is value or convert(value, type(value), "key") == value


def test_the_words_of_a_choice() -> None:
    choice = Choice.parse({"name": "dirichlet:0.1", "balance": True}, "partition")
    assert str(choice) == "dirichlet:0.1 balance=True"
    assert choice.head == "dirichlet:0.1"
    assert choice.as_json() == {"name": "dirichlet:0.1", "balance": True}
    assert Choice.parse(choice, "partition") is choice
