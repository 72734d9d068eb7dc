"""The noise is the stated distribution: against decimals, hand counts, chi-square tests and OpenDP.

Seeded tests state alpha = 1e-4 and are deterministic. The comparison with OpenDP, whose source cannot be seeded, uses
alpha = 1e-9: one false alarm in a thousand million runs.
"""

from __future__ import annotations

import math
import os
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from holdfast.core.errors import HoldfastError
from holdfast.privacy import exact, noise

ALPHA = 1e-4
SCALES = [Fraction(1, 2), Fraction(1), Fraction(37, 10), Fraction(33), Fraction(1000, 7), Fraction(1_000_000)]
SCALES += [Fraction(noise.LARGEST - 1), Fraction(noise.LARGEST - 1, 1025)]  # the most bits the products can have


def log_weight(kind: str, scale: float, magnitude: np.ndarray) -> np.ndarray:
    return -magnitude / scale if kind == "laplace" else -(magnitude**2) / (2 * scale**2)


def bins_and_expected(kind: str, scale: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges between whole numbers so that each bin expects at least 50 draws, and the expected counts."""
    reach = int(scale * 45) + 2
    values = np.arange(-reach, reach + 1)
    weights = np.exp(log_weight(kind, scale, np.abs(values).astype(float)))
    cumulative = np.cumsum(weights / weights.sum())
    cells = min(60, count // 50)
    cut = np.unique(np.searchsorted(cumulative, np.arange(1, cells) / cells))
    expected = np.diff(np.concatenate([[0.0], cumulative[cut], [1.0]])) * count
    merged = expected >= 5
    assert merged.all() or len(cut) < 4
    return values[cut] + 0.5, expected


def chi_square(kind: str, scale: Fraction, sample: np.ndarray) -> float:
    edges, expected = bins_and_expected(kind, float(scale), len(sample))
    observed = np.bincount(np.searchsorted(edges, sample), minlength=len(expected))
    return float(stats.chisquare(observed, expected, sum_check=False).pvalue)


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_distribution(kind: str, scale: Fraction) -> None:
    draw = noise.laplace if kind == "laplace" else noise.gaussian
    sample = draw(200_000, scale, noise.seeded(5))
    if scale >= 1000:  # steps of 1e-6 scales: the continuous law stands in
        law = stats.laplace(0, float(scale)) if kind == "laplace" else stats.norm(0, float(scale))
        assert stats.kstest(sample + 0.0, law.cdf).pvalue > ALPHA
    else:
        assert chi_square(kind, scale, sample) > ALPHA


def test_the_chi_square_would_notice_a_scale_one_percent_off() -> None:
    sample = noise.gaussian(400_000, Fraction(101, 2), noise.seeded(1))
    assert chi_square("gaussian", Fraction(50), sample) < ALPHA < chi_square("gaussian", Fraction(101, 2), sample)


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize("scale", [Fraction(3, 2), Fraction(70)], ids=str)
def test_the_path_for_undecided_bits_has_the_same_distribution(kind: exact.Kind, scale: Fraction) -> None:
    """With 5-bit uniforms nearly every draw needs more bits."""
    source = noise.seeded(3)
    sample = np.concatenate([noise._propose(kind, 2_000, scale, source, bits=5) for _ in range(4)])
    assert chi_square(kind, scale, sample) > ALPHA
    asked = noise.Source(lambda n: calls.append(n) or source.read(n), "counting")  # type: ignore[func-returns-value]
    calls: list[int] = []
    noise._propose(kind, 100, scale, asked, bits=5)
    assert calls.count(4) >= 20


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(3), Fraction(100)], ids=str)
def test_same_as_opendp(kind: str, scale: Fraction) -> None:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    vectors = dp.vector_domain(dp.atom_domain(T=int))
    if kind == "laplace":
        other = dp.m.make_laplace(vectors, dp.l1_distance(T=int), scale=float(scale))
    else:
        other = dp.m.make_gaussian(vectors, dp.l2_distance(T=float), scale=float(scale))
    theirs = np.array(other([0] * 20_000))
    ours = (noise.laplace if kind == "laplace" else noise.gaussian)(20_000, scale, noise.system())
    edges, _ = bins_and_expected(kind, float(scale), 20_000)
    table = [np.bincount(np.searchsorted(edges, x), minlength=len(edges) + 1) for x in (ours, theirs)]
    assert stats.chi2_contingency(np.array(table)).pvalue > 1e-9


@given(st.fractions(min_value=0, max_value=200), st.integers(min_value=8, max_value=200))
@settings(max_examples=150)
def test_exp_bounds_hold_and_are_tight(x: Fraction, bits: int) -> None:
    getcontext().prec = 200
    value = (-Decimal(x.numerator) / Decimal(x.denominator)).exp() * 2**bits
    low, high = exact.exp_bounds(x, bits)
    assert low <= value <= high
    assert high - low <= 2


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(7, 3), Fraction(90)], ids=str)
def test_thresholds_against_decimals(kind: exact.Kind, scale: Fraction) -> None:
    getcontext().prec = 90
    width = exact.width_of(scale)
    s = Decimal(scale.numerator) / Decimal(scale.denominator)
    weights = []
    for block in range(2 * int(scale * 120 // width) + 60):
        m = Decimal(exact.start_of(block, width))
        weights.append((-m / s).exp() if kind == "laplace" else (-m * m / (2 * s * s)).exp())
    total, running, table = sum(weights), Decimal(0), exact.thresholds(kind, scale, 64)
    for j, found in enumerate(table):
        running += weights[j]
        assert int(found) == int(running / total * 2**64)


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize("scale", [s for s in SCALES if s >= 32], ids=str)
def test_acceptance_exponents_are_exact(kind: exact.Kind, scale: Fraction) -> None:
    """top/bottom equals the difference of exponents as fractions, and lies in [0, 1), up to the table's last block."""
    width = exact.width_of(scale)
    blocks = len(exact.thresholds(kind, scale, 64))
    assert width > 1
    for block in (0, 1, 2, blocks // 2, blocks - 2, blocks - 1):
        first = exact.start_of(block, width)
        for step in (0, 1, width // 2, width - 1):
            top, bottom = noise._exponents(kind, scale, np.array([first]), np.array([step]))
            expected = exact.exponent(kind, scale, first + step) - exact.exponent(kind, scale, first)
            assert Fraction(int(top[0]), bottom) == expected
            assert 0 <= expected < 1
            assert bottom * noise.VECTOR_STEPS < 2**63


def test_blocks_cover_each_whole_number_once() -> None:
    for width in (1, 2, 8):
        seen = []
        for block in range(40):
            magnitudes = [exact.start_of(block, width) + r for r in range(width)]
            seen += [-m for m in magnitudes] if block & 1 else magnitudes
        assert sorted(seen) == list(range(-20 * width, 20 * width))


def test_equal_bits_draw_more_and_either_side_can_follow() -> None:
    """U = floor(2^64 C_0) does not decide between block 0 and block 1: the next bits do."""
    scale = Fraction(1)
    table = exact.thresholds("laplace", scale, 64)
    drawn: list[int] = []

    def more(value: int) -> int:
        drawn.append(value)
        return value

    assert exact.block_of("laplace", scale, int(table[0]), 64, lambda: more(0)) == 0
    assert exact.block_of("laplace", scale, int(table[0]), 64, lambda: more(2**32 - 1)) == 1
    assert drawn == [0, 2**32 - 1]
    assert exact.block_of("laplace", scale, int(table[0]) - 1, 64, lambda: more(7)) == 0
    assert exact.block_of("laplace", scale, int(table[0]) + 1, 64, lambda: more(7)) == 1
    assert len(drawn) == 2


def test_the_end_of_the_table_leads_to_the_tail() -> None:
    scale = Fraction(1, 2)
    last = len(exact.thresholds("laplace", scale, 64))
    bits = iter([2**32 - 1] * 4 + [0] * 50)
    assert exact.block_of("laplace", scale, 2**64 - 1, 64, lambda: next(bits)) > last


def test_coins_by_exhaustion() -> None:
    """Of the 256 first digits exactly floor(256 n/d) win, one ties, the rest lose."""
    for top, bottom in ((1, 3), (100, 257), (5, 8), (0, 9), (12345, 54321)):
        heads = 0
        for digit in range(256):
            stream = iter([digit] + [255] * 9)
            source = noise.Source(lambda n, s=stream: bytes(next(s) for _ in range(n)), "scripted")  # type: ignore[misc]
            heads += int(noise._coins(np.array([top], dtype=np.uint64), bottom, source)[0])
        assert heads == top * 256 // bottom


@pytest.mark.parametrize(("top", "bottom"), [(1, 16), (3, 4), (999, 1000), (2**58, 2**59)])
def test_exp_coins(top: int, bottom: int) -> None:
    n = 200_000
    kept = int(noise._keep(np.full(n, top, dtype=np.uint64), bottom, noise.seeded(2)).sum())
    assert stats.binomtest(kept, n, math.exp(-top / bottom)).pvalue > ALPHA


def test_exp_coin_one_by_one_beyond_one() -> None:
    source = noise.seeded(4)
    kept = sum(noise._coin_exp(5, 2, source) for _ in range(20_000))
    assert stats.binomtest(kept, 20_000, math.exp(-2.5)).pvalue > ALPHA


def test_moments_and_signs_of_a_large_scale() -> None:
    sample = noise.gaussian(300_000, Fraction(1_000_000), noise.seeded(8)) / 1e6
    assert abs(sample.mean()) < 5 / math.sqrt(300_000)
    assert abs(sample.var() - 1) < 5 * math.sqrt(2 / 300_000)
    assert stats.binomtest(int((sample > 0).sum()), len(sample)).pvalue > ALPHA


def test_lag_one_values_are_uncorrelated() -> None:
    sample = noise.laplace(200_000, Fraction(50), noise.seeded(9)).astype(float)
    assert abs(np.corrcoef(sample[1:], sample[:-1])[0, 1]) < 5 / math.sqrt(len(sample))


@given(st.fractions(min_value=Fraction(1, 100), max_value=Fraction(noise.LARGEST)))
@settings(max_examples=200)
def test_a_rounded_scale_is_never_smaller(value: Fraction) -> None:
    scale = noise.scale_at_least(value)
    assert value <= scale <= value + max(Fraction(1, 2**20), value / 2**26)
    assert scale.numerator <= noise.LARGEST


def test_seeded_and_system_say_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real entropy, which the other tests do without
    assert noise.system().read is os.urandom
    assert noise.seeded(0).guarantee == "no guarantee (seeded for tests)"
    assert noise.system().guarantee == "operating system's entropy"
    first, second = (noise.laplace(1000, Fraction(40), noise.seeded(6)) for _ in range(2))
    assert (first == second).all()
    first, second = (noise.laplace(1000, Fraction(40), noise.system()) for _ in range(2))
    assert (first != second).any()


@pytest.mark.parametrize("scale", [Fraction(0), Fraction(-1), Fraction(noise.LARGEST + 2)])
def test_bad_scales_are_refused(scale: Fraction) -> None:
    with pytest.raises(HoldfastError, match="cannot be drawn"):
        noise.laplace(1, scale, noise.seeded(0))
    with pytest.raises(HoldfastError, match="cannot be drawn"):
        noise.scale_at_least(scale)


def test_none_is_none() -> None:
    assert noise.laplace(0, Fraction(1), noise.seeded(0)).shape == (0,)
    with pytest.raises(HoldfastError, match="cannot draw"):
        noise.laplace(-1, Fraction(1), noise.seeded(0))


def test_a_whole_number_is_a_scale_whatever_was_drawn_before() -> None:
    """An int hashes as its Fraction, so a table made for one would hide a fault with the other."""
    exact.thresholds.cache_clear()
    exact.cumulative.cache_clear()
    as_int = noise.laplace(100, 10, noise.seeded(3))  # type: ignore[arg-type]
    assert (as_int == noise.laplace(100, Fraction(10), noise.seeded(3))).all()
