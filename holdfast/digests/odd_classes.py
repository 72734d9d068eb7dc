"""Which classes of which digests lie far from where the others have them: a backdoor in a digest does, a stranger may.

A backdoor calls stamped records of all classes by one name, so that class of the digest lies elsewhere. Let r be the
rows of a class in a digest, and D its squared distance from the median of the others' means (coordinate by coordinate,
where at least three others hold the class), in the metric of `contradiction.py`. Means of few rows scatter, and clients
differ:

    E[D] = a + b / r,    b the median of D r over the half of all classes with few rows,
                         a the median of D - b / r over the other half, at least 0

A class is odd where D > 4 (a + b / r): twice as far away as usual. Its rows neither stand in, teach nor testify; nobody
is named for it, since a hospital with another scanner may be odd too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from holdfast.core.types import Tensors
from holdfast.digests.contradiction import FEW, OTHERS, Cells, Flags, whitening
from holdfast.digests.digest import Digest

TWICE = 4.0  # as far away as usual, squared


def odd_classes(digests: Mapping[int, Cells]) -> dict[int, Flags]:
    """Of each client, which classes of its digest are odd; all, also those it does not hold, where nothing is left."""
    cells = list(digests.values())
    if len(cells) <= OTHERS:
        return {client: np.zeros(len(one.counts), dtype=bool) for client, one in digests.items()}
    counts = np.stack([one.counts for one in cells])
    held = counts >= FEW
    means = np.stack([one.means for one in cells]) @ whitening(cells)
    rows = counts * np.array([[one.rows / max(one.counts.sum(), 1.0)] for one in cells])
    away = np.full(counts.shape, np.nan)
    for own, c in zip(*np.nonzero(held), strict=True):
        others = held[:, c].copy()
        others[own] = False
        if others.sum() >= OTHERS:
            away[own, c] = ((means[own, c] - np.median(means[others, c], axis=0)) ** 2).sum()
    judged = ~np.isnan(away)
    if not judged.any():
        return {client: np.zeros(counts.shape[1], dtype=bool) for client in digests}
    far, many = away[judged], np.maximum(rows[judged], 1e-9)
    few = many <= np.median(many)
    b = float(np.median((far * many)[few]))
    a = max(0.0, float(np.median((far - b / many)[~few]))) if (~few).any() else 0.0
    odd = judged & (np.nan_to_num(away) > TWICE * (a + b / np.maximum(rows, 1e-9)))
    odd[((counts > 0) <= odd).all(1)] = True
    return dict(zip(digests, odd, strict=True))


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
