"""Which digests the others contradict: poisoned or mislabelled ones, which must neither stand in nor teach.

A digest says where each of its classes lies: n_c samples with mean m_c among the features. These are taken as the
encoder gives them: to divide by the spread within classes blows up noise where there is little spread.

Among fewer than seven digests see class_differences.py. Among more, first the majority is found. Let a_ij be the sum,
over the classes c that i and j both hold, of min_d t_cd as below, but with j's means in place of M: positive where two
agree, negative where they contradict each other. The leading eigenvector of the symmetric part of a splits the digests
in two camps by sign: all on one side where everybody agrees; the honest and the poisoned apart where these tell one
story, though they hold most of some classes. The larger camp is the majority; of two camps alike in number, both.

For client i, let M_c be what the *others* of the majority say: the median, coordinate by coordinate, of their means,
where at least three of them hold class c. Then

    t_cd = <m_c - (M_c + M_d)/2, M_c - M_d> / (|M_c - M_d|^2 / 2)      +1: where the others have class c, -1: class d
    agreement_i = sum_c n_c min_d t_cd / sum_c n_c,    t in [-1, 1],    c, d over classes that the others know

Noise of variance s in each of k coordinates of m_c, and s_c, s_d in those of M_c and M_d, lengthens |M_c|^2 by k s_c,
and the smallest of several t is small by chance. So k (s_c - s_d) / 2 is added to what is above the fraction bar, and
sqrt(2 log(number of d)) deviations to the smallest t, 2 sqrt(s + (s_c + s_d) / 4) / |M_c - M_d| each.

A digest is contradicted if its agreement is below zero (by weight, its classes lie nearer to other classes than to
their own) and 0.5 below the median digest's, which itself must be above zero: where noise drowns all digests, nobody is
judged. The most contradicted one, over all classes together, is set aside and the rest are judged again, so that
poisoned digests do not speak against honest ones. Classes that fewer than three others hold are not judged: nobody can
contradict who alone holds a class, and one word against another proves nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from holdfast.core.types import Tensors
from holdfast.digests.cells import FEW, Cells, Flags, Values
from holdfast.digests.class_differences import outvoted, smallest_of

ENOUGH = 7  # digests, 3f + 1 for f = 2
OTHERS = 3  # who must hold a class: of two, one could be hostile, and nobody could say which
OF_MEDIAN = math.pi / 2  # the variance of a median, of that of a mean
BELOW = 0.5  # the median agreement: where noise lowers everybody's, zero alone would be unfair


def of_all(found: Mapping[int, float], clients: int) -> Tensors:
    """What is to be remembered of the digests: the agreement of those that are contradicted, NaN for all others."""
    values = [found.get(client, math.nan) for client in range(clients)]
    return {"contradicted": torch.tensor(values, dtype=torch.float64)}


def in_words(memory: Tensors) -> dict[int, str]:
    """Whose digest is contradicted, as it was remembered; nobody's where digests were never judged."""
    values = memory["contradicted"].tolist() if "contradicted" in memory else []
    return {
        client: f"the other digests contradict its digest (agreement {value:+.2f})"
        for client, value in enumerate(values)
        if not math.isnan(value)
    }


def contradicted(digests: Mapping[int, Cells]) -> dict[int, float]:
    """The clients whose digest the others contradict, with its agreement."""
    if len(digests) < ENOUGH:
        return outvoted(digests) if len(digests) > OTHERS else {}
    found: dict[int, float] = {}
    left = dict(sorted(digests.items()))
    camp = majority(left)
    while True:
        heard = [client in camp for client in left]
        now = dict(zip(left, agreements(list(left.values()), np.array(heard)), strict=True))
        judged = [now[client][0] for client in left if client in camp and now[client][1]]
        usual = statistics.median(judged or [0.0])
        low = min(0.0, usual - BELOW)
        against = [client for client, (agreement, _) in now.items() if agreement < low]
        if usual <= 0 or not against:
            return found
        worst = min(against, key=lambda client: math.prod(now[client]))
        found[worst] = now[worst][0]
        del left[worst]


def majority(digests: Mapping[int, Cells]) -> set[int]:
    """The larger of the two camps that the digests fall into; all of them where neither is, or it is too small."""
    if len(digests) <= OTHERS:
        return set(digests)
    cells = list(digests.values())
    held = np.stack([one.counts for one in cells]) >= FEW
    means, noises = np.stack([one.means for one in cells]), np.stack([one.noises for one in cells])
    agreed = np.zeros((len(cells), len(cells)))
    for i in range(len(cells)):
        for j in range(len(cells)):
            known = np.flatnonzero(held[j])
            if i != j and len(known) > 1:
                both = [place for place, c in enumerate(known) if held[i, c]]
                agreed[i, j] = sum(
                    nearest_of(
                        means[i, known[place]], means[j, known], place, noises[i, known[place]], noises[j, known]
                    )
                    for place in both
                )
    leading = np.linalg.eigh(agreed + agreed.T)[1][:, -1]
    camps = [{c for c, side in zip(digests, sign * leading, strict=True) if side > -1e-9} for sign in (1, -1)]
    larger = max(camps, key=len)
    return larger if 2 * len(larger) > len(digests) and len(larger) > OTHERS else set(digests)


def agreements(digests: Sequence[Cells], heard: Flags | None = None) -> list[tuple[float, int]]:
    """The agreement of each digest with all others, or those that are heard, and in how many classes it was judged."""
    if len(digests) <= OTHERS:
        return [(0.0, 0)] * len(digests)
    counts = np.stack([cells.counts for cells in digests])
    held = counts >= FEW
    means, noises = np.stack([cells.means for cells in digests]), np.stack([cells.noises for cells in digests])
    found = []
    for own in range(len(digests)):
        others = held.copy() if heard is None else held & heard[:, None]
        others[own] = False
        known = np.flatnonzero(others.sum(0) >= OTHERS)
        judged = [place for place, c in enumerate(known) if held[own, c]]
        if len(known) < 2 or not judged:
            found.append((0.0, 0))
            continue
        usual = np.stack([np.median(means[others[:, c], c], axis=0) for c in known])
        left = np.array([OF_MEDIAN * noises[others[:, c], c].mean() / others[:, c].sum() for c in known])
        nearness = [
            nearest_of(means[own, known[place]], usual, place, noises[own, known[place]], left) for place in judged
        ]
        found.append((float(np.average(nearness, weights=counts[own, known[judged]])), len(judged)))
    return found


def disagreements(digests: Mapping[int, Cells]) -> list[tuple[int, int, float]]:
    """(one, other, agreement) of each ordered pair in which the classes of one lie, by weight, nearer to other classes
    of the other's than to their own; classes that both hold count. Of a pair alone nobody can say who is wrong.
    """
    if len(digests) < 2:
        return []
    found = []
    for one, own in digests.items():
        for other, theirs in digests.items():
            both = np.flatnonzero((own.counts >= FEW) & (theirs.counts >= FEW))
            if one == other or len(both) < 2:
                continue
            means, usual = own.means[both], theirs.means[both]
            nearness = [
                nearest_of(mean, usual, place, own.noises[both[place]], theirs.noises[both])
                for place, mean in enumerate(means)
            ]
            agreement = float(np.average(nearness, weights=own.counts[both]))
            if agreement < 0:
                found.append((one, other, agreement))
    return found


def nearest_of(mean: Values, usual: Values, own: int, noise: float = 0.0, noises: Values | None = None) -> float:
    """min over d of t_cd, for the mean of class c = own; less what noise of these variances explains.

    >>> usual = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 9.0]])
    >>> nearest_of(np.array([1.0, 0.0]), usual, 0), nearest_of(np.array([4.0, 0.0]), usual, 0)
    (0.5, -1.0)

    With noise in class 0 alone, k (s_c - s_d) / 2 = 1 of a half square of 8; and nothing is the smallest of one.

    >>> nearest_of(np.array([3.0, 0.0]), usual[:2], 0, 0.0, np.array([1.0, 0.0]))  # (-4 + 1) / 8
    -0.375
    """
    noises = np.zeros(len(usual)) if noises is None else noises
    others = np.delete(noises, own)
    away = usual[own] - np.delete(usual, own, axis=0)
    middle = usual[own] - away / 2
    squares = np.maximum((away**2).sum(1), 1e-30)
    found = (((mean - middle) * away).sum(1) + len(mean) * (noises[own] - others) / 2) / (squares / 2)
    least = int(found.argmin())
    deviation = 2 * math.sqrt((noise + (noises[own] + others[least]) / 4) / squares[least])
    return float(np.clip(found[least] + smallest_of(len(found)) * deviation, -1, 1))
