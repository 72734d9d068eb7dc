"""Exact discrete Laplace and Gaussian noise on the whole numbers, from the operating system's entropy.

P(x) is proportional to f(|x|), f(m) = exp(-m/s) (Laplace) or exp(-m^2 / 2s^2) (Gaussian), for a rational scale s.

How one number is drawn (blocks: see exact.py; a = smallest magnitude of the block, T = width, a power of two):

1. Choose a block with probability proportional to f(a), by comparing a uniform number u in [0, 1) with the
   cumulative probabilities C_j. Of u only 64 bits U are drawn; the table holds t_j = floor(2^64 C_j). U < t_j implies
   u < C_j, U > t_j implies u > C_j. If U = t_j the bits do not decide (probability about 2^-53), and more bits
   of u are drawn against tighter bounds of C_j until they do. Past the end of the table the same is done.
2. Choose r uniform on 0 .. T-1: bits.
3. Accept a + r with probability f(a + r) / f(a) = exp(-x), else begin again. x = n/d is rational, and below 1 inside
   the table: with k = 1, 2, ... toss Bernoulli(x/k) until it fails; P(it fails first at an odd k) is
   1 - x + x^2/2! - ... = exp(-x) (Canonne, Kamath, Steinke 2020, Algorithm 1). Bernoulli(n/d) compares the binary
   digits of n/d, found by long division, with random bits, until they differ.

Steps 1 and 2 propose each whole number a + r with probability f(a)/(Z T), step 3 keeps it with f(a + r)/f(a): the
result has probability proportional to f(a + r). Every comparison is between whole numbers, so nothing is rounded: the
distribution is the stated one exactly, given uniform bits. Running time depends on the noise drawn; it is not
constant, so do not let an adversary time single draws.

Reference: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.privacy.exact import Kind, block_of, exponent, start_of, thresholds, width_of

Whole = NDArray[np.int64]

SYSTEM = "operating system's entropy"
SEEDED = "no guarantee (seeded for tests)"
CHUNK = 1 << 16  # numbers drawn at a time: the working arrays stay in the cache
LARGEST = 1 << 29  # numerator of a scale: keeps every product below 2^63
VECTOR_STEPS = 8  # steps of the exp(-x) coin done on arrays; the few coins left are tossed one by one


@dataclass(frozen=True)
class Source:
    """Where random bytes come from, and what that is worth."""

    read: Callable[[int], bytes]
    guarantee: str

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self.read(8 * count), dtype="<u8")

    def halves(self, count: int) -> NDArray[np.uint32]:
        return np.frombuffer(self.read(4 * count), dtype="<u4")

    def octets(self, count: int) -> NDArray[np.uint8]:
        return np.frombuffer(self.read(count), dtype=np.uint8)

    def below(self, bound: int) -> int:
        """A uniform whole number in 0 .. bound-1, of any size."""
        bits = (bound - 1).bit_length()
        while True:
            value = int.from_bytes(self.read((bits + 7) // 8), "little") & ((1 << bits) - 1)
            if value < bound:
                return value


def system() -> Source:
    """The operating system's entropy: the only source for a real release."""
    return Source(os.urandom, SYSTEM)


def seeded(seed: int) -> Source:
    """A repeatable source, for tests only: what it makes carries no guarantee.

    >>> seeded(0).guarantee
    'no guarantee (seeded for tests)'
    """
    return Source(np.random.Generator(np.random.PCG64(seed)).bytes, SEEDED)


def scale_at_least(value: float | Fraction) -> Fraction:
    """A scale this file can draw that is not below the value, and above it by 2^-20 or a part in 2^26 at most.

    >>> scale_at_least(2.5), scale_at_least(Fraction(1, 3))
    (Fraction(5, 2), Fraction(174763, 524288))
    """
    value = Fraction(value)
    if value <= 0 or value > LARGEST:
        raise HoldfastError(f"noise of {float(value):.3g} grid steps cannot be drawn; ask for a larger epsilon.")
    denominator = 1 << max(0, min(20, 28 - math.ceil(value).bit_length()))
    return Fraction(math.ceil(value * denominator), denominator)


def laplace(count: int, scale: Fraction, source: Source) -> Whole:
    """Whole numbers with P(x) = (1 - r)/(1 + r) * r^|x|, r = exp(-1/scale).

    >>> laplace(5, Fraction(3), seeded(1)).dtype
    dtype('int64')
    """
    return _noise("laplace", count, scale, source)


def gaussian(count: int, scale: Fraction, source: Source) -> Whole:
    """Whole numbers with P(x) proportional to exp(-x^2 / (2 scale^2)); the variance is at most scale^2."""
    return _noise("gaussian", count, scale, source)


def _noise(kind: Kind, count: int, scale: Fraction, source: Source) -> Whole:
    scale = Fraction(scale)  # a whole number equals its Fraction in the tables' cache, but divides to a float
    if scale <= 0 or (scale >= 32 and scale.numerator > LARGEST):
        raise HoldfastError(f"noise: a scale of {scale} cannot be drawn; round it up with scale_at_least.")
    if count < 0:
        raise HoldfastError(f"noise: cannot draw {count} numbers.")
    result = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        kept = _propose(kind, min(CHUNK, count - done), scale, source)
        result[done : done + len(kept)] = kept
        done += len(kept)
    return result


def _propose(kind: Kind, count: int, scale: Fraction, source: Source, bits: int = 64) -> Whole:
    """Proposals that were accepted, at most `count` of them."""
    table, width = thresholds(kind, scale, bits), width_of(scale)
    uniform = source.words(count) >> np.uint64(64 - bits)
    block = np.searchsorted(table, uniform, side="left")
    past = block == len(table)
    doubtful = past | (table[np.where(past, 0, block)] == uniform)
    side = block & 1
    value = width * (block >> 1) + side
    kept = np.ones(count, dtype=bool)
    if width > 1:
        first = value
        step = source.halves(count).astype(np.int64) & (width - 1)
        value = first + step
        top, bottom = _exponents(kind, scale, first, step)
        clear = np.flatnonzero(~doubtful)
        kept[clear] = _keep(top[clear], bottom, source) if len(clear) < count else _keep(top, bottom, source)
    value = np.where(side == 1, -value, value)
    for i in np.flatnonzero(doubtful):
        kept[i], value[i] = _doubtful(kind, scale, int(uniform[i]), bits, source)
    return value[kept]


def _exponents(kind: Kind, scale: Fraction, first: Whole, step: Whole) -> tuple[NDArray[np.uint64], int]:
    """x of exp(-x) = f(first + step) / f(first), as numerators over one denominator."""
    p, q = scale.numerator, scale.denominator
    if kind == "laplace":
        return (step * q).astype(np.uint64), p
    return (step * (2 * first + step) * (q * q)).astype(np.uint64), 2 * p * p


def _keep(top: NDArray[np.uint64], bottom: int, source: Source) -> NDArray[np.bool_]:
    """Bernoulli(exp(-top/bottom)) for each numerator, each below the denominator."""
    keep = np.ones(len(top), dtype=bool)
    going = np.arange(len(top))
    for k in range(1, VECTOR_STEPS + 1):
        success = _coins(top[going], k * bottom, source)
        keep[going[~success]] = k % 2 == 1
        going = going[success]
        if not len(going):
            return keep
    for i in going:
        keep[i] = _coin_exp(int(top[i]), bottom, source, VECTOR_STEPS + 1)
    return keep


def _coins(top: NDArray[np.uint64], bottom: int, source: Source) -> NDArray[np.bool_]:
    """Bernoulli(top/bottom): the digits of top/bottom against random digits, until they differ."""
    digit_bits = min(8, 64 - bottom.bit_length())
    mask, shift, divisor = np.uint8((1 << digit_bits) - 1), np.uint64(digit_bits), np.uint64(bottom)
    heads = np.zeros(len(top), dtype=bool)
    open_ = np.arange(len(top))
    rest = top
    while len(open_):
        rest = rest << shift
        digit = rest // divisor
        rest = rest - digit * divisor
        random = source.octets(len(open_)) & mask
        heads[open_] = random < digit
        tie = random == digit
        open_, rest = open_[tie], rest[tie]
    return heads


def _coin_exp(top: int, bottom: int, source: Source, k: int = 1) -> bool:
    """Bernoulli(exp(-top/bottom)) in whole numbers of any size, or what is left of it at step k (top <= bottom)."""
    while top > bottom:
        if not _coin_exp(1, 1, source):
            return False
        top -= bottom
    while source.below(k * bottom) < top:
        k += 1
    return k % 2 == 1


def _doubtful(kind: Kind, scale: Fraction, prefix: int, bits: int, source: Source) -> tuple[bool, int]:
    """The whole proposal for one number whose first bits do not decide its block."""
    block = block_of(kind, scale, prefix, bits, lambda: int.from_bytes(source.read(4), "little"))
    width = width_of(scale)
    first = start_of(block, width)
    magnitude = first + source.below(width)
    x = exponent(kind, scale, magnitude) - exponent(kind, scale, first)
    kept = _coin_exp(x.numerator, x.denominator, source)
    return kept, -magnitude if block & 1 else magnitude
