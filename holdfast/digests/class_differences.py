"""Which of a few digests the others contradict: by how classes differ within each, wherever they lie.

A hospital with other patients or another scanner has all its classes elsewhere, which among few says nothing against
it: what labels mean is in how its classes differ from each other. For classes c and d that members i and j both hold,

    x = <a, b>,   a = m_ic - m_id,   b = m_jc - m_jd         where each lies cancels; turned labels turn the sign
    Var x = <a, V_j a> + <b, V_i b> - tr(V_i V_j)            as a and b are seen with their own errors
    V_i = S_j (1/r_ic + 1/r_id) + s_ic + s_id                r rows, of covariance S_j at j, who has the vote (of mixed
                                                             rows: P_cc + P_dd - 2 P_cd, P the inverse of Y'Y); s the
                                                             variance of noise that rows do not show (moments)
    t_c = x / (|a| |b|),  e_c = sqrt(Var x) / (|a| |b|)      at the d where x / sqrt(Var x) is least
    z_ij = sum_c n_ic (t_c + sqrt(2 log(number of d)) e_c) / sum_c n_ic e_c

The root is what chance makes of the smallest of so many, at most. j contradicts i where z_ij is below minus two
deviations (of Student's t: S_j is of few rows), and agrees with it above two. A digest is contradicted if more than
f = (n - 1) / 3 contradict it, and more than agree with it.

z_ij depends on i and j alone, and on i's spread not at all. So nobody escapes by rows that scatter, and f liars (one of
four to six) alone contradict nobody: whatever they send, an honest digest is contradicted only if another honest one
contradicts it beyond two standard errors. Who holds one class only, or only a row of another, is not judged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from holdfast.digests.cells import FEW, Cells, Values

BEYOND = 2.0  # standard errors


def outvoted(digests: Mapping[int, Cells]) -> dict[int, float]:
    """The clients whose digest the others contradict, with the median cosine of their class differences and others'."""
    liars = (len(digests) - 1) // 3
    found = {}
    for client, cells in digests.items():
        told = [compared(cells, other) for place, other in digests.items() if place != client]
        against, agreed = sum(z < -1 for z, _ in told), sum(z > 1 for z, _ in told)
        if against > max(liars, agreed):
            found[client] = statistics.median(cosine for z, cosine in told if z)
    return found


def compared(one: Cells, other: Cells) -> tuple[float, float]:
    """z as the other sees it, in units of what is believed, and the cosine it rests on; 0 where nothing can be told."""
    both = np.flatnonzero((one.counts >= FEW) & (other.counts >= FEW))
    if len(both) < 2 or other.rows <= 2 or not np.trace(other.scatter) > 0:
        return 0.0, 0.0
    a, b = one.means[both], other.means[both]
    products = between(a @ b.T)
    deviations = np.sqrt(variances(a, b, errors(one, both), errors(other, both), other.scatter / other.rows))
    z = products / np.where(np.eye(len(both), dtype=bool), np.nan, deviations)
    least = np.arange(len(both)), np.nanargmin(z, axis=1)
    lengths = np.sqrt(np.maximum(between(a @ a.T) * between(b @ b.T), 1e-60))[least]
    cosines, error = products[least] / lengths, deviations[least] / lengths
    shares = one.counts[both] / one.counts[both].sum()
    lifted = (z[least] + smallest_of(len(both) - 1)) * error
    beyond = BEYOND * math.sqrt(other.rows / (other.rows - 2))
    return float(shares @ lifted / (shares @ error)) / beyond, float(shares @ cosines)


def between(products: Values) -> Values:
    """<a_c - a_d, b_c - b_d> for each pair of classes, from <a_c, b_d>.

    >>> between(np.array([[3.0, 1.0], [2.0, 5.0]]))
    array([[0., 5.],
           [5., 0.]])
    """
    own = np.diag(products)
    return np.asarray(own[:, None] + own[None, :] - products - products.T)


def smallest_of(count: int) -> float:
    """How many deviations below zero the smallest of so many normal values is, at most, on the mean: sqrt(2 log n)."""
    return math.sqrt(2 * math.log(count))


def errors(cells: Cells, classes: NDArray[np.int64]) -> tuple[Values, Values]:
    """Of the differences between each two classes: 1/r_c + 1/r_d, and the variance of the noise in a coordinate."""
    noises = cells.noises[classes]
    return between(cells.inverse_rows[np.ix_(classes, classes)]), noises[:, None] + noises[None, :]


def variances(a: Values, b: Values, of_a: tuple[Values, Values], of_b: tuple[Values, Values], spread: Values) -> Values:
    """Var <a_c - a_d, b_c - b_d> of each two classes, at least tr(V_i V_j), which is what errors alone come to.

    Two coordinates of variance 4, differences (3, 0) and (0, 5) of means of 2 and 2 rows (1/2 + 1/2), and no noise:
    V = 4 I for both, and 36 + 100 - 32.

    >>> one = (np.ones((2, 2)), np.zeros((2, 2)))
    >>> a, b = np.array([[3.0, 0.0], [0.0, 0.0]]), np.array([[0.0, 5.0], [0.0, 0.0]])
    >>> float(variances(a, b, one, one, 4 * np.eye(2))[0, 1])
    104.0
    """
    (rows_a, noise_a), (rows_b, noise_b) = of_a, of_b
    trace = float(np.trace(spread))
    both = rows_a * rows_b * float((spread**2).sum()) + (rows_a * noise_b + rows_b * noise_a) * trace
    both = both + noise_a * noise_b * len(spread)
    seen = [
        rows * np.maximum(between(means @ spread @ means.T), 0.0) + noise * between(means @ means.T)
        for means, rows, noise in ((a, rows_b, noise_b), (b, rows_a, noise_a))
    ]
    return np.asarray(np.maximum(seen[0] + seen[1] - both, both))
