"""Bounds on exp(-x) and on a noise's cumulative weights in whole numbers: what makes the noise exact.

The noise is drawn from the whole numbers with weight f(m) of the magnitude m, f(m) = exp(-m/s) (Laplace) or
exp(-m^2 / 2s^2) (Gaussian). The whole numbers are cut into blocks of `width` neighbours that lie on one side of zero:
block 2v holds width*v + 0, 1, ..., and block 2v+1 the mirror images -(1 + width*v + 0), -(1 + width*v + 1), ...
Each whole number lies in exactly one block, and a block's first magnitude is its smallest, so f is largest there.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["laplace", "gaussian"]


def exp_bounds(x: Fraction, bits: int) -> tuple[int, int]:
    """Whole numbers with low <= 2^bits * exp(-x) <= high, for x >= 0.

    exp(-x) = (1 / exp(y))^(2^h) with y = x / 2^h < 1; the series of exp(y) has positive terms only, so rounding each
    term down (up) bounds it from below (above), and so does each division and squaring that follows.

    >>> exp_bounds(Fraction(1), 20)  # 2^20 / e = 385749.6
    (385749, 385750)
    """
    halvings = max(0, x.numerator.bit_length() - x.denominator.bit_length() + 1)
    work = bits + 2 * halvings + 16
    one = 1 << work
    low_y = (x.numerator << work) // (x.denominator << halvings)
    low, high = 1 << (2 * work), 1 << (2 * work)
    low //= _exp_up(low_y + 1, work)  # 1 / exp(y) from below: y rounded up
    high = -(-high // _exp_down(low_y, work))
    for _ in range(halvings):
        low = (low * low) >> work
        high = -(-(high * high) >> work)
    return low >> (work - bits), -(-min(high, one) >> (work - bits))


def _exp_down(y: int, work: int) -> int:
    total = term = 1 << work
    n = 1
    while term:
        term = (term * y >> work) // n
        total += term
        n += 1
    return total


def _exp_up(y: int, work: int) -> int:
    total = term = 1 << work
    n = 1
    while term > 1:
        term = -(-(term * y) // (n << work))
        total += term
        n += 1
    return total + 2  # what is left is below term * (y/n + (y/n)^2 + ...) <= 2, as y <= 1 and n >= 2


def exponent(kind: Kind, scale: Fraction, magnitude: int) -> Fraction:
    """-log of the weight of a magnitude."""
    if kind == "laplace":
        return magnitude / scale
    return Fraction(magnitude * magnitude) / (2 * scale * scale)


def width_of(scale: Fraction) -> int:
    """Neighbours in a block: the power of two with 16 <= scale/width < 32, or 1 for small scales."""
    return 1 << max(0, (int(scale) // 16).bit_length() - 1)


def start_of(block: int, width: int) -> int:
    """The smallest magnitude in a block."""
    return width * (block >> 1) + (block & 1)


@lru_cache(maxsize=4)
def cumulative(kind: Kind, scale: Fraction, bits: int) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
    """Bounds of the running sums of block weights f(start), and of their total, times 2^(bits + 64).

    Blocks are listed until both sides weigh less than 2^-bits. f is log-concave, so past the last listed pair the
    weights shrink at least as fast as a geometric series with the last ratio; f(start) of a mirrored block is at most
    that of its twin, so twice the series of the unmirrored side bounds all that is left.
    """
    width, precision = width_of(scale), bits + 64
    lows: list[int] = []
    highs: list[int] = []
    low = high = 0
    block, previous = 0, (0, 0)
    while True:
        weight = exp_bounds(exponent(kind, scale, start_of(block, width)), precision)
        if block & 1 == 0:
            if block and weight[1] < 1 << 64:
                ratio_top, ratio_bottom = weight[1], previous[0]
                rest = -(-2 * weight[1] * ratio_bottom // (ratio_bottom - ratio_top))
                return tuple(lows), tuple(highs), low, high + rest
            previous = weight
        low, high = low + weight[0], high + weight[1]
        lows.append(low)
        highs.append(high)
        block += 1


@lru_cache(maxsize=64)
def thresholds(kind: Kind, scale: Fraction, bits: int) -> NDArray[np.uint64]:
    """floor(2^bits * C_j) for the cumulative probability C_j of the blocks 0..j, each proved by its bounds."""
    precision = bits + 32
    while True:
        lows, highs, total_low, total_high = cumulative(kind, scale, precision)
        found = [(low << bits) // total_high for low in lows]
        if found == [min((high << bits) // total_low, (1 << bits) - 1) for high in highs]:
            table = np.array(found, dtype=np.uint64)
            table.flags.writeable = False
            return table
        precision += 32


def block_of(kind: Kind, scale: Fraction, prefix: int, bits: int, more: Callable[[], int]) -> int:
    """The block of the uniform number that begins with these bits; draws 32 more at a time until it is certain."""
    while True:
        lows, highs, total_low, total_high = cumulative(kind, scale, bits)
        for block, (low, high) in enumerate(zip(lows, highs, strict=True)):
            if prefix * total_low >= high << bits:
                continue  # certainly past this block
            if (prefix + 1) * total_high <= low << bits:
                return block
            break
        prefix, bits = (prefix << 32) | more(), bits + 32
