"""P_crt: the chance that a random guess splits each element of a digest into the SpD values that were added.

An element is a whole number V, the sum of s = SpD whole numbers >= 0. There are kappa ways to split it:
* ordered (who held what matters): kappa = C(V + s - 1, s - 1);
* unordered (the published count): kappa = partitions of V into at most s parts.
A guess is right with probability 1/kappa; over a digest the elements' probabilities multiply. FedDig takes V uniform on
1 .. I and bounds the mean of 1/kappa by (ln I + 0.577)/I = 22.8/2^32 at I = 2^32. That bound holds for SpD >= 3 only
(for SpD 2 the unordered mean is 43.1/2^32), and it leaves out V = 0, which has exactly one split and of which ReLU
features are full. So this is a guessing index, not a guarantee: it says nothing of an adversary who knows what
features look like. All results are log10 of a probability: 0 means certain.

Reference: FedDig, Section IV.C.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError

EXACT_PARTS = 10  # up to here partitions of any V are counted exactly by formula; beyond, by a table of floats
TABLE = 1 << 20
PAPER_BOUND = 22.8 / 2**32


@dataclass(frozen=True)
class GuessingIndex:
    """log10 of the chance to split a digest's elements right: all of them, the easiest one, the median one."""

    total: float
    worst: float
    median: float
    certain: int  # elements with exactly one split (V = 0, or SpD 1): mixing hides nothing of them


def index_of(values: NDArray[Any], spd: int, ordered: bool = False) -> GuessingIndex:
    """The index of one digest from its elements' whole-number sums.

    >>> index_of(np.array([0, 2, 4]), 2)  # 1, 2 and 3 ways
    GuessingIndex(total=-0.77815, worst=0.0, median=-0.30103, certain=1)
    """
    if not np.issubdtype(values.dtype, np.integer) or (values.size and int(values.min()) < 0) or not values.size:
        raise HoldfastError("guessing index: expected the digest's elements as whole numbers, 0 or more.")
    seen = Counter(values.ravel().tolist())
    logs = {value: log10_element(value, spd, ordered) for value in seen}
    spread = np.repeat([logs[value] for value in seen], list(seen.values()))
    numbers = [float(spread.sum()), float(spread.max()), float(np.median(spread))]
    total, worst, median = (round(number, 5) + 0.0 for number in numbers)
    return GuessingIndex(total, worst, median, int((spread == 0.0).sum()))


def elements(features: NDArray[Any], largest_feature: float, levels: int = 2**32) -> NDArray[np.int64]:
    """A digest's floats as whole numbers: 0 .. largest_feature becomes 0 .. levels; what noise made negative becomes 0.

    >>> elements(np.array([0.0, 0.5, -0.1]), 1.0, 100).tolist()
    [0, 50, 0]
    """
    if not (np.isfinite(features).all() and math.isfinite(largest_feature) and largest_feature > 0):
        raise HoldfastError("guessing index: features must be finite and the largest feature positive.")
    return np.rint(np.maximum(features.astype(np.float64), 0.0) / largest_feature * levels).astype(np.int64)


def log10_element(value: int, spd: int, ordered: bool = False) -> float:
    """log10 of 1/kappa for one element of value V.

    Unordered beyond SpD 10: from the table up to 2^20, past it from kappa >= C(V+s-1, s-1)/s!, never too small.

    >>> log10_element(9, 2, ordered=True)  # 9 = 0+9 = 1+8 = ... = 9+0: ten ways
    -1.0
    """
    _check(spd, 1)
    compositions = math.comb(value + spd - 1, spd - 1)
    if ordered:
        return -math.log10(compositions) + 0.0
    if min(spd, value) <= EXACT_PARTS:
        return -math.log10(partitions(value, spd)) + 0.0
    ways = _partition_table(min(spd, value), 1 << value.bit_length())[value] if value <= TABLE else math.inf
    if math.isfinite(ways):
        return -math.log10(ways)
    return min(0.0, math.log10(math.factorial(spd)) - math.log10(compositions))


def log10_mean(spd: int, largest: int, ordered: bool = False, elements: int = 1) -> float:
    """log10 of the mean of 1/kappa over V = 1 .. I, for `elements` independent elements.

    >>> [round(log10_mean(s, 2**32, ordered, 256), 1) for s in (2, 3, 4, 8) for ordered in (False, True)]
    [-2047.5, -2123.6, -2320.7, -2466.0, -2348.7, -2543.1, -2362.8, -2665.2]
    """
    _check(spd, largest)
    mean = _mean_ordered(spd, largest) if ordered else _mean_unordered(spd, largest)
    return elements * math.log10(mean)


def paper_bound_holds(spd: int, value: int | None = None) -> bool:
    """Whether (22.8/2^32) bounds the mean for this SpD at I = 2^32, or 1/V the chance for this single element.

    >>> [paper_bound_holds(s) for s in (1, 2, 3, 4)], paper_bound_holds(4, value=0), paper_bound_holds(4, value=3)
    ([False, False, True, True], False, True)
    """
    if value is None:
        return log10_mean(spd, 2**32) <= math.log10(PAPER_BOUND)
    return value > 0 and log10_element(value, spd) <= -math.log10(value)


def _mean_ordered(s: int, largest: int) -> float:
    """(1/I) sum of 1/C(V+s-1, s-1): 1 for s = 1, (H_(I+1) - 1)/I for s = 2, a telescope for s >= 3.

    1/C(n, r) = r/(r-1) (1/C(n-1, r-1) - 1/C(n, r-1)) with r = s-1, n = V+r: the sum is r/(r-1) (1/r - 1/C(I+r, r-1)).
    """
    if s == 1:
        return 1.0
    if s == 2:
        return (_harmonic(largest + 1) - 1.0) / largest
    first = Fraction(1, s - 2) - Fraction(s - 1, s - 2) / math.comb(largest + s - 1, s - 2)
    return float(first / largest)


def _mean_unordered(s: int, largest: int) -> float:
    """A table up to 2^20; beyond, the sum is squeezed between two telescopes whose middle is taken.

    C(V+s-1, s-1)/s! <= partitions <= C(V + s(s+1)/2 - 1, s-1)/s!: a partition has at most s! orders, and adding
    1, 2, ..., s to its parts makes them distinct, with exactly s! orders. Past 2^20 the two agree to s^3/2^20 of a tail
    that is itself below 2^-14 for s = 3 and vanishes for more.
    """
    if s == 1:
        return 1.0
    if s == 2:  # kappa = V//2 + 1, each value twice except the ends
        half = largest // 2
        return (2.0 * (_harmonic(half + 1) - 1.0) + 1.0 - (1.0 / (half + 1) if largest % 2 == 0 else 0.0)) / largest
    table = _partition_table(s, TABLE)[1 : min(largest, TABLE) + 1]
    total = float((1.0 / table[::-1]).sum())
    if largest > TABLE:
        tails = []
        for shift in (s - 1, s * (s + 1) // 2 - 1):
            r = s - 1
            edges = [Fraction(1, math.comb(end + shift, r - 1)) for end in (TABLE, largest)]
            tails.append(float(math.factorial(s) * Fraction(r, r - 1) * (edges[0] - edges[1])))
        total += (tails[0] + tails[1]) / 2
    return total / largest


def partitions(value: int, parts: int) -> int:
    """Partitions of a whole number into at most `parts` parts, exactly.

    With L = lcm(1..s) the generating function 1/prod(1 - x^i) equals N(x)/(1 - x^L)^s for a polynomial N, so the count
    is the sum over j = V mod L of N_j C((V - j)/L + s - 1, s - 1). Beyond 10 parts N is too long.

    >>> partitions(4, 4), partitions(4, 2), partitions(2**32, 3)
    (5, 3, 1537228674956612950)
    """
    if value < 0 or parts < 1:
        raise HoldfastError(f"partitions of {value} into {parts} parts are not defined.")
    parts = min(parts, max(value, 1))
    if parts > EXACT_PARTS:
        raise HoldfastError(f"partitions: counted exactly up to {EXACT_PARTS} parts, got {parts}.")
    numerator = _numerator(parts)
    cycle = math.lcm(*range(1, parts + 1))
    top = min(value, len(numerator) - 1)
    first = value % cycle
    return sum(
        numerator[j] * math.comb((value - j) // cycle + parts - 1, parts - 1) for j in range(first, top + 1, cycle)
    )


@lru_cache(maxsize=32)
def _numerator(parts: int) -> tuple[int, ...]:
    """prod over i <= s of (1 - x^L)/(1 - x^i) = prod of 1 + x^i + ... + x^(L-i)."""
    cycle = math.lcm(*range(1, parts + 1))
    poly = [1]
    for i in range(1, parts + 1):
        longer = poly + [0] * (cycle - i)
        for j in range(i, len(longer)):  # divide by 1 - x^i ...
            longer[j] += longer[j - i]
        copy = list(longer)
        for j in range(cycle, len(longer)):  # ... and multiply by 1 - x^L
            longer[j] = copy[j] - copy[j - cycle]
        poly = longer
    return tuple(poly)


@lru_cache(maxsize=8)
def _partition_table(parts: int, size: int) -> NDArray[np.float64]:
    """Partitions of 0 .. size as floats (relative error below 1e-12): a running sum for each residue of each part."""
    ways = np.ones(size + 1)
    with np.errstate(over="ignore"):
        for part in range(2, parts + 1):
            padded = np.zeros(-(-len(ways) // part) * part)
            padded[: len(ways)] = ways
            ways = padded.reshape(-1, part).cumsum(0).ravel()[: size + 1]
    return ways


def _harmonic(n: int) -> float:
    if n < 1000:
        return math.fsum(1.0 / i for i in range(1, n + 1))
    return math.log(n) + 0.5772156649015329 + 1 / (2 * n) - 1 / (12 * n**2)


def _check(spd: int, largest: int) -> None:
    if spd < 1 or largest < 1:
        raise HoldfastError(f"guessing index: SpD and the range must be at least 1, got {spd} and {largest}.")
