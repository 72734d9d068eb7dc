"""P_crt against brute force, hand counts and the known values."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.audit import guessing
from holdfast.core.errors import HoldfastError


def splits(value: int, spd: int) -> list[tuple[int, ...]]:
    return [c for c in itertools.product(range(value + 1), repeat=spd) if sum(c) == value]


@pytest.mark.parametrize("spd", [1, 2, 3, 4])
@pytest.mark.parametrize("value", range(9))
def test_ways_by_brute_force(spd: int, value: int) -> None:
    all_splits = splits(value, spd)
    assert guessing.log10_element(value, spd, ordered=True) == pytest.approx(-math.log10(len(all_splits)), abs=1e-12)
    unordered = {tuple(sorted(c)) for c in all_splits}
    assert guessing.partitions(value, spd) == len(unordered)


@pytest.mark.parametrize("spd", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("largest", [1, 2, 7, 40, 41])
def test_means_by_summing(spd: int, ordered: bool, largest: int) -> None:
    def ways(v: int) -> int:
        return math.comb(v + spd - 1, spd - 1) if ordered else guessing.partitions(v, spd)

    mean = sum(Fraction(1, ways(v)) for v in range(1, largest + 1)) / largest
    assert guessing.log10_mean(spd, largest, ordered) == pytest.approx(math.log10(mean), abs=1e-12)


@pytest.mark.parametrize(
    ("spd", "unordered", "ordered"),
    [(2, -2047.5, -2123.6), (3, -2320.7, -2466.0), (4, -2348.7, -2543.1), (8, -2362.8, -2665.2)],
)
def test_known_values(spd: int, unordered: float, ordered: float) -> None:
    assert guessing.log10_mean(spd, 2**32, False, 256) == pytest.approx(unordered, abs=0.05)
    assert guessing.log10_mean(spd, 2**32, True, 256) == pytest.approx(ordered, abs=0.05)


@given(st.integers(0, 10**9))
def test_three_parts_is_the_nearest_whole_number_to_a_square(value: int) -> None:
    assert guessing.partitions(value, 3) == ((value + 3) ** 2 + 6) // 12


@given(st.integers(1, 300), st.integers(2, 10))
def test_partitions_obey_their_recurrence(value: int, parts: int) -> None:
    """Either no part is zero (take one off each) or one part fewer is enough."""
    with_all = guessing.partitions(value - parts, parts) if value >= parts else 0
    assert guessing.partitions(value, parts) == guessing.partitions(value, parts - 1) + with_all


def test_table_and_formula_agree() -> None:
    table = guessing._partition_table(8, guessing.TABLE)
    for value in (0, 1, 17, 1000, 99_999, 2**20):
        assert table[value] == pytest.approx(guessing.partitions(value, 8), rel=1e-12)


def test_many_parts() -> None:
    assert guessing.log10_element(12, 20) == pytest.approx(-math.log10(77))  # p(12) = 77
    assert guessing.log10_element(100, 100) == pytest.approx(-math.log10(190_569_292))  # p(100), Ramanujan and Hardy
    assert guessing.log10_element(2**32, 16) < guessing.log10_element(2**32, 10) < 0


def test_the_published_bound_and_where_it_fails() -> None:
    assert [guessing.paper_bound_holds(spd) for spd in (1, 2, 3, 8)] == [False, False, True, True]
    assert 10 ** guessing.log10_mean(2, 2**32) * 2**32 == pytest.approx(43.1, abs=0.05)
    assert not guessing.paper_bound_holds(8, value=0)
    assert not guessing.paper_bound_holds(2, value=5)  # three splits, fewer than five


def test_index_of_a_digest() -> None:
    found = guessing.index_of(np.array([[0, 0], [9, 99]]), 2, ordered=True)
    assert (found.total, found.worst, found.median, found.certain) == (-3.0, 0.0, -0.5, 2)
    alone = guessing.index_of(np.array([5, 7]), 1)
    assert (alone.total, alone.certain) == (0.0, 2)


def test_floats_become_elements() -> None:
    found = guessing.elements(np.array([0.0, 1.5, 3.0, -2.0]), 3.0)
    assert found.tolist() == [0, 2**31, 2**32, 0]
    assert guessing.index_of(found, 4).certain == 2
    for bad in (np.array([np.nan]), np.array([np.inf])):
        with pytest.raises(HoldfastError, match="finite"):
            guessing.elements(bad, 1.0)
    with pytest.raises(HoldfastError, match="positive"):
        guessing.elements(np.array([1.0]), 0.0)


@pytest.mark.parametrize("values", [np.array([-1]), np.array([0.5]), np.array([], dtype=int)])
def test_bad_elements_are_refused(values: np.ndarray) -> None:
    with pytest.raises(HoldfastError, match="whole numbers"):
        guessing.index_of(values, 2)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(HoldfastError, match="at least 1"):
        guessing.log10_mean(0, 5)
    with pytest.raises(HoldfastError, match="not defined"):
        guessing.partitions(-1, 2)
    with pytest.raises(HoldfastError, match="exactly up to"):
        guessing.partitions(100, 11)
