"""Which digests the others contradict: poisoned or mislabelled ones, which must neither stand in nor teach.

A digest says where each of its classes lies: n_c samples with mean m_c, in a metric W that is the spread within classes
(each client's at the same trace, so that nobody is louder).

First the majority is found. Let a_ij be the sum, over the classes c that i and j both hold, of min_d t_cd as below, but
with j's means in place of M: positive where two agree, negative where they contradict each other. The leading
eigenvector of the symmetric part of a splits the digests in two camps by sign: all on one side where everybody agrees;
the honest and the poisoned apart where these tell one story, though they hold most of some classes. The larger camp is
the majority; of two camps alike in number, both.

For client i, let M_c be what the *others* of the majority say: the median, coordinate by coordinate, of their means,
where at least three of them hold class c. Then

    t_cd = <m_c - (M_c + M_d)/2, M_c - M_d> / (|M_c - M_d|^2 / 2)      +1: where the others have class c, -1: class d
    agreement_i = sum_c n_c min_d t_cd / sum_c n_c,    t in [-1, 1],    c, d over classes that the others know

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
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.context import Context
from holdfast.core.types import Tensors
from holdfast.digests.digest import Digest
from holdfast.digests.moments import MomentDigest
from holdfast.digests.received import open_for, open_moments_for
from holdfast.digests.release_options import ReleaseOptions

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]
OTHERS = 3  # who must hold a class: of two, one could be hostile, and nobody could say which
FEW = 4  # samples of a class, below which its mean says too little
BELOW = 0.5  # the median agreement: where noise lowers everybody's, zero alone would be unfair
FLOOR = 0.05  # of the mean variance within classes: least variance of a direction


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


class Cells(NamedTuple):
    """What a digest says of each class."""

    counts: Values  # (classes,): samples
    means: Values  # (classes, k)
    scatter: Values  # (k, k): within classes
    rows: float  # that the scatter is a sum of
    rest: Values | None = None  # (rows, k): what each row of a mixed digest lies from its class means
    classes: NDArray[np.int64] | None = None  # (rows,): the class that most of it is


def contradicted(digests: Mapping[int, Cells]) -> dict[int, float]:
    """The clients whose digest the others contradict, with its agreement."""
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
    means = np.stack([one.means for one in cells]) @ whitening(cells)
    agreed = np.zeros((len(cells), len(cells)))
    for i in range(len(cells)):
        for j in range(len(cells)):
            known = np.flatnonzero(held[j])
            if i != j and len(known) > 1:
                both = [place for place, c in enumerate(known) if held[i, c]]
                agreed[i, j] = sum(nearest_of(means[i, known[place]], means[j, known], place) for place in both)
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
    means = np.stack([cells.means for cells in digests]) @ whitening(digests)
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
        nearness = np.array([nearest_of(means[own, known[place]], usual, place) for place in judged])
        found.append((float(np.average(nearness, weights=counts[own, known[judged]])), len(judged)))
    return found


def disagreements(digests: Mapping[int, Cells]) -> list[tuple[int, int, float]]:
    """(one, other, agreement) of each ordered pair in which the classes of one lie, by weight, nearer to other classes
    of the other's than to their own; classes that both hold count. Of a pair alone nobody can say who is wrong.
    """
    if len(digests) < 2:
        return []
    metric = whitening(list(digests.values()))
    found = []
    for one, own in digests.items():
        for other, theirs in digests.items():
            both = np.flatnonzero((own.counts >= FEW) & (theirs.counts >= FEW))
            if one == other or len(both) < 2:
                continue
            means, usual = own.means[both] @ metric, theirs.means[both] @ metric
            nearness = [nearest_of(mean, usual, place) for place, mean in enumerate(means)]
            agreement = float(np.average(nearness, weights=own.counts[both]))
            if agreement < 0:
                found.append((one, other, agreement))
    return found


def nearest_of(mean: Values, usual: Values, own: int) -> float:
    """min over d of t_cd, for the mean of class c = own.

    >>> usual = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 9.0]])
    >>> nearest_of(np.array([1.0, 0.0]), usual, 0), nearest_of(np.array([4.0, 0.0]), usual, 0)
    (0.5, -1.0)
    """
    away = usual[own] - np.delete(usual, own, axis=0)
    middle = usual[own] - away / 2
    half = np.maximum((away**2).sum(1) / 2, 1e-30)
    return float(np.clip(((mean - middle) * away).sum(1) / half, -1, 1).min())


def whitening(digests: Sequence[Cells]) -> Values:
    """A matrix R with R R' = W^-1."""
    k = len(digests[0].scatter)
    within = np.zeros((k, k))
    for cells in digests:
        trace = float(np.trace(cells.scatter))
        if trace > 0:
            within += cells.rows / trace * cells.scatter
    values, vectors = np.linalg.eigh(within / max(float(np.trace(within)) / k, 1e-30))
    return np.asarray(vectors / np.sqrt(np.maximum(values, FLOOR)))


def cells_of(options: ReleaseOptions, context: Context, sealed: Tensors) -> Cells:
    """What a digest says of each class, whatever its mode."""
    if options.mode == "moments":
        return moment_cells(open_moments_for(options, context, sealed))
    return mixed_cells(open_for(context, sealed))


def mixed_cells(digest: Digest) -> Cells:
    """E[d | y] = M' y: class means are the least-squares fit of the features to the soft labels."""
    x, y = digest.features.flatten(1).double().numpy(), digest.labels.double().numpy()
    mass = y.sum(0)
    means = np.zeros((y.shape[1], x.shape[1]))
    means[mass > 0] = np.linalg.lstsq(y[:, mass > 0], x, rcond=1e-6)[0]
    rest = x - y @ means
    counts, free = mass * digest.used / len(x), max(1, len(x) - int((mass > 0).sum()))
    return Cells(counts, means, rest.T @ rest, free, rest, y.argmax(1))


def moment_cells(digest: MomentDigest) -> Cells:
    """Of noisy moments only the cells with enough samples count; their shared second moment is the spread's shape."""
    counts = np.where(digest.trusted, digest.counts, 0.0)
    return Cells(counts, digest.means, digest.shared, max(1.0, float(counts.sum())))
