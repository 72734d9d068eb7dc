"""The real joint sums, attacked: two records that are easiest to tell apart, and canaries in real releases.

All numbers that a record adds (sum_noise.py) leave through one Gaussian mechanism, so the best test sees the length of
the difference of two records' vectors over the noise. The worst pair is looked for among records of full length, along
one axis, its opposite and another, with the targets at their ends.

Canaries: a release has an axis of its own for each of AXES canaries, whose features lie along it, one way or the other.
All that changes is t (x) z, the cells of that axis: 2 |t| of the sensitivity.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import torch
from torch import Tensor

from holdfast.audit import statistics as auditing
from holdfast.audit.canary import Finding, with_limits
from holdfast.audit.canary_digests import both_ways, held
from holdfast.audit.statistics import Membership, gaussian_auc
from holdfast.audit.tradeoff import Array, Audit
from holdfast.context import About
from holdfast.data.contract import Kind
from holdfast.data.kinds import Classes, Hazards, Labels, kind_of
from holdfast.digests.release import make_release
from holdfast.digests.release_options import ReleaseOptions
from holdfast.digests.sums import UNIT, bounds_of, open_sums, targets_of
from holdfast.privacy.claim import Claim
from holdfast.privacy.moment_noise import STEPS
from holdfast.privacy.noise import Source
from holdfast.privacy.sum_noise import exact_whole, scales_for

AXES = 40
FEWEST = 20  # records that a release needs


def attack_sums(
    options: ReleaseOptions, claim: Claim, kind: str, classes: int, k: int, trials: int, source: Source
) -> tuple[list[Finding], dict[str, Audit]]:
    """What the best test makes of the worst pair of records, and what canaries show of the claim."""
    who = "the worst pair of records"
    if claim.mode == "sums":  # no noise: they are told apart for certain, and nothing is claimed
        return [with_limits(Membership(1.0, 1.0, 1.0), trials, None, who)], {}
    change, spread = worst_change(options, kind_of(kind), classes, k)
    pairs = max(1000, trials)
    found = auditing.membership("gaussian", change, spread, pairs, source)
    predicted = gaussian_auc(float(np.sqrt(((change / spread) ** 2).sum())))
    audited = audit_sums(options, claim, kind, classes, trials, source)
    return [with_limits(found, pairs, predicted, who)], {"digest": audited}


def ends(kind: Kind, classes: int, options: ReleaseOptions) -> Tensor:
    """Targets at their ends, the one with the longest t first."""
    if isinstance(kind, Hazards):
        return torch.tensor([[2 * kind.cuts[-1], 0.0], [kind.cuts[0] / 2, 1.0]])
    if isinstance(kind, Labels):
        return torch.stack([torch.ones(classes), torch.zeros(classes)])
    if isinstance(kind, Classes):
        return torch.arange(min(classes, 2))
    low, high = options.target_range or UNIT
    return torch.tensor([[high], [low]])


def worst_change(options: ReleaseOptions, kind: Kind, classes: int, k: int) -> tuple[Array, Array]:
    """How the whole numbers change between the two records that are furthest apart, and the noise of each number."""
    bounds = bounds_of(kind, classes)
    (on, off), _, _ = scales_for(options.true_epsilon, options.delta, k, bounds)
    row, column = np.triu_indices(k)
    pairs = np.where(row == column, float(on), float(off))
    spread = np.concatenate(
        [np.full(bounds.targets * (1 + k), float(on)), pairs, np.full(int(bounds.with_squares), float(on))]
    )
    axes = np.zeros((3, k))
    axes[0, 0], axes[1, 0], axes[2, -1] = 1.0, -1.0, 1.0
    targets = targets_of(kind, ends(kind, classes, options), classes, options.target_range or UNIT)
    records = []
    for z, t in product(axes, targets):
        parts = exact_whole(z[None], t[None], bounds)
        records.append(np.concatenate([part.ravel().astype(np.float64) for part in parts]))
    changes = [one - other for one, other in product(records, records)]
    worst = max(changes, key=lambda change: float(((change / spread) ** 2).sum()))
    kept = worst != 0  # numbers that do not change tell nothing
    return worst[kept], spread[kept]


def audit_sums(options: ReleaseOptions, claim: Claim, kind: str, classes: int, trials: int, source: Source) -> Audit:
    """Canaries in real releases, as many of these as they need."""
    target = ends(kind_of(kind), classes, options)[:1]
    bounds = bounds_of(kind_of(kind), classes)
    t = targets_of(kind_of(kind), target, classes, options.target_range or UNIT)[0]
    (on, _), ratio, _ = scales_for(options.true_epsilon, options.delta, AXES, bounds)
    scale, about = float(on) / STEPS**2, About("audit", classes, "audit", (AXES,), kind=kind)
    known = torch.zeros(FEWEST, AXES), target.repeat(FEWEST, *[1] * (target.ndim - 1))
    seen = []
    for side in both_ways(math.ceil(trials / AXES) * AXES, source):
        cells = []
        for group in torch.from_numpy(side).float().split(AXES):
            features = torch.cat([known[0], torch.diag(group)])
            labels = torch.cat([known[1], target.repeat(AXES, *[1] * (target.ndim - 1))])
            sealed, _ = make_release(options, about, features, labels, torch.Generator(), source)
            cells.append(open_sums(sealed).sums.cells[:, 1:].T)
        made = np.concatenate(cells)
        seen.append((side, 2 * made @ t / scale**2, made))
    return held(claim, seen, 2 * float(np.sqrt((t**2).sum())) / scale / ratio)
