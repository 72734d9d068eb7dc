"""FLAME: the majority that points the same way, clipped to the median length, with noise (Nguyen et al., USENIX 2022).

    c_ij = 1 - cos(w_i, w_j)                              of the clients' models w_i = w + D_i
    L    = the cluster of HDBSCAN on c with clusters of at least n // 2 + 1
    S    = median of ||D_i|| over all n                   w <- w + (1 / |L|) sum_{i in L} min(1, S / ||D_i||) D_i
    w   <- w + N(0, (lambda S)^2)                         lambda = 0.001 for pictures

HDBSCAN (min_samples 1, a single cluster allowed) is simple here. With one neighbour the mutual reachability is the
distance itself, so its tree is single linkage; two clusters of more than half cannot be, so none splits; and of the one
that is left those count as its members that leave it last. That is: join whoever is nearest until more than half hang
together, and take these. (Ties at that distance join as well.)

Rule from a re-implementation (zhmzm/FLAME) and general knowledge of the paper. That code hands the matrix of cosine
distances to HDBSCAN as if its rows were points, so it clusters by Euclidean distances between rows of distances, and it
takes the median over L in place of all; another version reads norms by place in L, not by client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.core.rows import Aggregate, canonical_order, combined, norms_of
from holdfast.core.tensors import flat
from holdfast.core.types import State, Update
from holdfast.trust.base import Hearing, Judgement, Trust
from holdfast.trust.robust.merging import judge_merged, stacked
from holdfast.trust.robust.preparing import clip_norms


@dataclass(frozen=True)
class Flame(Trust):
    """Of models only the majority that points the same way counts, clipped to the median length, with noise."""

    merges_updates: ClassVar[bool] = True

    noise: float = 0.001  # lambda

    def __post_init__(self) -> None:
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise must not be negative, got {self.noise}.")

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        rows = stacked(updates)
        inside = majority(cosine_distances(rows + flat(state.model, list(updates[0].delta))))
        weights = torch.zeros(len(updates), dtype=torch.float64)
        weights[inside] = 1 / len(inside)
        order = canonical_order(rows)
        vector = combined(clip_norms(rows).updates, weights[order], order)
        chance = torch.randn(len(vector), generator=hearing.context.draw(state.round, "flame"))
        vector = vector + self.noise * float(norms_of(rows).quantile(0.5)) * chance
        admitted = [updates[place] for place in inside]
        return judge_merged(admitted, Aggregate(vector, weights), clients=[update.client for update in updates])


def cosine_distances(rows: Tensor) -> Tensor:
    units = torch.nn.functional.normalize(rows.double(), dim=1)
    return (1 - units @ units.T).clamp(min=0)


def majority(distances: Tensor) -> list[int]:
    """The places of those who are the first to be more than half, when whoever is nearest is joined.

    Of points at 0, 1, 3, 7 and 20, those at distance 1 join first, then 3: three of five.

    >>> points = torch.tensor([0.0, 1.0, 3.0, 7.0, 20.0])
    >>> majority((points[:, None] - points[None, :]).abs())
    [0, 1, 2]
    """
    for bound in [0.0, *distances.flatten().unique().tolist()]:
        largest = max(linked(distances, bound), key=len)
        if len(largest) > len(distances) // 2:
            return largest
    raise ValueError("distances must be numbers.")


def linked(distances: Tensor, bound: float) -> list[list[int]]:
    """The groups of those who hang together by distances of at most the bound, in their order.

    >>> points = torch.tensor([0.0, 5.0, 1.0])
    >>> linked((points[:, None] - points[None, :]).abs(), 1.0)
    [[0, 2], [1]]
    """
    near, left, groups = distances <= bound, set(range(len(distances))), []
    while left:
        group, edge = set(), {min(left)}
        while edge:
            group |= edge
            edge = {int(j) for i in edge for j in near[i].nonzero().flatten()} - group
        left -= group
        groups.append(sorted(group))
    return groups
