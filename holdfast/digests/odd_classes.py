"""Which classes of which digests lie far from where the others have them: a backdoor in a digest does, a stranger may.

A backdoor calls stamped records of all classes by one name, so that class of the digest lies elsewhere. Let r be the
rows of a class in a digest, and D its squared distance from the median of the others' means (coordinate by coordinate,
where at least three others hold the class), in a metric that is the spread within classes (each client's at the same
trace, so that nobody is louder). Means of few rows scatter, and clients differ:

    E[D] = a + b / r,    b the median of D r over the half of all classes with few rows,
                         a the median of D - b / r over the other half, at least 0

A class is odd where D > 4 (a + b / r): twice as far away as usual.

Stamps on few records move a class by less, but all members who share a stamp move it the same way. Let d_i be how far
class c of member i lies from the median of the others', v the direction in which the d_j / sqrt(1 / r_j + m_j) of the
*other* members spread most (of which i has no part), and s the spread of single rows of the class along v, within
members:

    z_i = |<d_i, v>| / (s sqrt(1 / r_i + m_i))     normal with deviation 1 where members differ by chance alone
    m_i = (pi / 2) mean_j (1 / r_j) / (n - 1)      over the n - 1 others: how far their median strays, which members
                                                   of one row make wide, and which a large one must not answer for

A class is odd, too, where z is above 4.5 times the usual, median z / 0.6745 over all classes and members, at least 1;
and then, with v the mean of the odd ones', those others of the class whose z on their side is above 3 times, now from
the median of those who are not odd: the odd ones have drawn the others' median to their side.

The rows of an odd class neither stand in, teach nor testify; nobody is named for it, since a hospital with another
scanner may be odd too. Among fewer than seven digests no class is: two could tip the scales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from holdfast.core.types import Tensors
from holdfast.digests.cells import FEW, Cells, Flags, Values
from holdfast.digests.contradiction import ENOUGH, OTHERS
from holdfast.digests.digest import Digest

FLOOR = 0.05  # of the mean variance within classes: least variance of a direction
TWICE = 4.0  # as far away as usual, squared
ALIKE = 4.5  # deviations, in a direction that was looked for among the others
SAME = 3.0  # deviations, in a direction that is known
NORMAL = 0.6745  # the median of |z|


def odd_classes(digests: Mapping[int, Cells]) -> dict[int, Flags]:
    """Of each client, which classes of its digest are odd; all, also those it does not hold, where nothing is left."""
    cells = list(digests.values())
    if len(cells) < ENOUGH:
        return {client: np.zeros(len(one.counts), dtype=bool) for client, one in digests.items()}
    counts = np.stack([one.counts for one in cells])
    metric = whitening(cells)
    means = np.stack([one.means for one in cells]) @ metric
    away = from_others(means, counts >= FEW)
    judged = ~np.isnan(away[:, :, 0])
    if not judged.any():
        return {client: np.zeros(counts.shape[1], dtype=bool) for client in digests}
    odd = far_away(away, judged, np.stack([one.rows_of for one in cells]))
    odd |= moved_alike(means, away, judged, cells, metric, odd)
    has_rows = np.stack([one.has_rows for one in cells])  # without_odd goes by what most of a row is, not by label mass
    odd[(has_rows <= odd).all(1)] = True
    return dict(zip(digests, odd, strict=True))


def whitening(digests: Sequence[Cells]) -> Values:
    """A matrix R with R R' = W^-1, W the spread within classes."""
    k = len(digests[0].scatter)
    within = np.zeros((k, k))
    for cells in digests:
        trace = float(np.trace(cells.scatter))
        if trace > 0:
            within += cells.rows / trace * cells.scatter
    values, vectors = np.linalg.eigh(within / max(float(np.trace(within)) / k, 1e-30))
    return np.asarray(vectors / np.sqrt(np.maximum(values, FLOOR)))


def from_others(means: Values, held: Flags) -> Values:
    """How far each class of each client lies from the median of the others', (clients, classes, k); NaN where fewer
    than three others hold it."""
    away = np.full(means.shape, np.nan)
    for own, c in zip(*np.nonzero(held), strict=True):
        others = held[:, c].copy()
        others[own] = False
        if others.sum() >= OTHERS:
            away[own, c] = means[own, c] - np.median(means[others, c], axis=0)
    return away


def far_away(away: Values, judged: Flags, rows: Values) -> Flags:
    """Which classes lie more than twice as far away as usual."""
    squares = (np.nan_to_num(away) ** 2).sum(2)
    far, many = squares[judged], np.maximum(rows[judged], 1e-9)
    few = many <= np.median(many)
    b = float(np.median((far * many)[few]))
    a = max(0.0, float(np.median((far - b / many)[~few]))) if (~few).any() else 0.0
    return np.asarray(judged & (squares > TWICE * (a + b / np.maximum(rows, 1e-9))))


def moved_alike(
    means: Values, away: Values, judged: Flags, cells: Sequence[Cells], metric: Values, odd: Flags
) -> Flags:
    """Which classes of which clients are moved as those of other clients are."""
    found = np.zeros(judged.shape)
    moved: dict[
        int, tuple[Flags, Values, Values, Values]
    ] = {}  # class -> judged, sqrt(r), d sqrt(r), rows within members
    for c in range(judged.shape[1]):
        who = judged[:, c]
        within = [one.rest[one.classes == c] for one in cells if one.rest is not None and one.classes is not None]
        rows = np.array([0 if one.classes is None else int((one.classes == c).sum()) for one in cells])
        free = int(rows[who].sum()) - int(who.sum())
        if who.sum() <= OTHERS or free < 1:
            continue
        spread = np.concatenate(within) @ metric / np.sqrt(free)
        roots = np.sqrt(worth(rows[who]))[:, None]
        moved[c] = who, roots, away[who, c] * roots, spread
        found[who, c] = deviations(away[who, c] * roots, spread)
    usual = max(1.0, float(np.median(found[judged])) / NORMAL)
    alike = found > ALIKE * usual
    for c, (who, roots, steps, spread) in moved.items():
        known = (alike | odd)[who, c]
        if known.any() and (~known).sum() > OTHERS:
            rest = np.flatnonzero(who)[~known]
            plain = from_others(means[rest][:, [c]], np.ones((len(rest), 1), dtype=bool))[:, 0]
            alike[rest, c] |= along(plain * roots[~known], steps[known].mean(0), spread) > SAME * usual
    return alike


def worth(rows: Values) -> Values:
    """1 / (1 / r_i + m_i): the rows that each is worth, beside a median of the others' that strays itself.

    Four of one row: m = (pi / 2) / 3, and so each is worth 1 / (1 + 0.52).

    >>> worth(np.ones(4)).round(3).tolist(), worth(np.array([100.0, 1, 1, 1])).round(1).tolist()
    ([0.656, 0.656, 0.656, 0.656], [1.9, 0.7, 0.7, 0.7])
    """
    scatter = 1 / np.maximum(rows, 1)
    strays = np.pi / 2 * (scatter.sum() - scatter) / (len(rows) - 1) ** 2
    return np.asarray(rows / (1 + rows * strays))


def deviations(steps: Values, spread: Values) -> Values:
    """z of each client: how far it is moved along the way in which the others spread most, (clients,).

    Two of five are moved alike, by 6 and 5 rows' deviations; the others not at all:

    >>> steps = np.array([[6.0, 0.0], [5.0, 0.1], [0.0, 0.4], [0.0, -0.5], [0.0, 0.3]])
    >>> deviations(steps, np.eye(2)).round(1).tolist()
    [6.0, 5.0, 0.0, 0.0, 0.0]
    """
    products = steps @ steps.T
    found = []
    for own in range(len(steps)):
        others = np.arange(len(steps)) != own
        leading = np.linalg.eigh(products[np.ix_(others, others)])[1][:, -1]
        found.append(abs(float(along(steps[own : own + 1], leading @ steps[others], spread)[0])))
    return np.array(found)


def along(steps: Values, way: Values, spread: Values) -> Values:
    """How far each is moved this way, in deviations of a row."""
    deviation = np.sqrt(((spread @ way) ** 2).sum())
    return np.asarray(steps @ way / max(float(deviation), 1e-30))


def remembered(odd: Mapping[int, Flags], clients: int, classes: int) -> Tensors:
    """What is to be remembered of them."""
    found = torch.zeros(clients, classes, dtype=torch.bool)
    for client, flags in odd.items():
        found[client] = torch.from_numpy(flags)
    return {"odd": found}


def nothing_left(memory: Tensors) -> set[int]:
    """The clients all of whose classes are odd."""
    return set(memory["odd"].all(1).nonzero().flatten().tolist()) if "odd" in memory else set()


def without_odd(digest: Digest, memory: Tensors, client: int) -> Digest:
    """The digest without the rows of its odd classes."""
    if "odd" not in memory or not bool(memory["odd"][client].any()):
        return digest
    kept = ~memory["odd"][client][digest.labels.argmax(1)]
    return replace(digest, features=digest.features[kept], labels=digest.labels[kept])
