"""The real digest, made with canaries whose one or other form chance decides, and read from the bytes that leave.

A release holds hundreds of canaries side by side, each in a group or a class of its own, and each is a trial: the code
adds noise to each group by itself. It is made twice, the second time with every canary the other way round.

Moments: class c holds known records of length K along an axis and a canary z or -z, |z| = 1, on the same axis. All that
leaves of this pair leaves in the sum of the class. Stage 1 sees a change of 2 in it; stage 2, whose centre is near K
and whose radius is R, one of 1 + R - K, half of it 1 + K - R above that of the known records alone. The axes differ
from class to class, so that centres stay what they are: a centre that was computed without noise shows in its radius.
Mixed digests: a group holds one canary and SpD - 1 empty records. Features and labels are held each to their own part
of the claim, labels between two classes, where randomised response is as visible as its epsilon allows.

Besides the test that is best where the code is right, the one number that tells the canaries apart best in the first
release is tried on the second: a leak is found by what it is, not by what the auditor expects.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.audit.tradeoff import Array, Audit, Scored, audit, learnt
from holdfast.context import About
from holdfast.digests.digest import open_digest
from holdfast.digests.moment_wire import open_moments
from holdfast.digests.moments import fewest
from holdfast.digests.release import make_release, strict_grid
from holdfast.digests.release_options import ReleaseOptions
from holdfast.privacy.claim import Claim
from holdfast.privacy.moment_noise import RADIUS, scales_for
from holdfast.privacy.noise import Source

WIDTH = 4  # features of a canary: the noise on each number does not depend on how many there are
MOST_PUBLISHED = 100  # trials of the published digest, which claims nothing
KNOWN = 0.25  # length of the known records around a canary


def audit_digest(options: ReleaseOptions, claim: Claim, width: int, trials: int, source: Source) -> dict[str, Audit]:
    """What canaries show of each part of a digest's claim, by the part's name."""
    if options.mode == "paper":
        return {"digest": audit_paper(options, claim, trials, source)}
    if options.mode == "moments":
        return {"digest": audit_moments(options, claim, min(width, WIDTH), trials, source)}
    found = {"digest": audit_features(options, claim, min(width, WIDTH), trials, source)}
    if options.mode == "dp-full":
        found["labels"] = audit_labels(options, claim, trials, source)
    return found


def audit_moments(options: ReleaseOptions, claim: Claim, k: int, trials: int, source: Source) -> Audit:
    """Each class has a canary; what leaves of a class is its count, its mean and its radius."""
    scales, ratio, _ = scales_for(options.true_epsilon, options.delta, k)
    known = math.ceil(fewest(scales) + 20 * scales.of_count())  # so that each class is trusted, and its centre clear
    radius = RADIUS * math.sqrt(1 - KNOWN**2)
    spread = float(scales.of_sum(radius))
    first = (spread / scales.first) ** 2  # how much stage 1 counts in the sum, stage 2 the rest
    change = first * 2 + (1 - first) * (1 + radius - KNOWN)
    middle = KNOWN * known + (1 - first) * (1 + KNOWN - radius) / 2
    axis = np.arange(trials) % k
    seen = []
    for side in both_ways(trials, source):
        made = open_moments(moment_bytes(options, side, known, k, source))
        sums = made.means[np.arange(trials), axis] * np.maximum(made.counts, 1.0)
        score = change * (sums - middle) / spread**2
        seen.append((side, score, np.column_stack([made.counts, made.means, made.radii])))
    return held(claim, seen, change / spread / ratio)


def moment_bytes(options: ReleaseOptions, side: Array, known: int, k: int, source: Source) -> Any:
    """The sealed digest of as many classes as there are canaries."""
    features = torch.zeros(len(side), known + 1, k)
    canary, axis = torch.arange(len(side)), torch.arange(len(side)) % k
    features[canary, :, axis] = KNOWN
    features[canary, -1, axis] = torch.from_numpy(side).float()
    labels = torch.arange(len(side)).repeat_interleave(known + 1)
    about = About("audit", len(side), "audit", (k,))
    return make_release(options, about, features.flatten(0, 1), labels, torch.Generator(), source)[0]


def audit_features(options: ReleaseOptions, claim: Claim, k: int, trials: int, source: Source) -> Audit:
    """Each group of a mixed digest has a canary of the greatest length, one way or the other."""
    grid = strict_grid(options, k)
    part = replace(
        claim,
        epsilon_pure=max(0.0, claim.epsilon_pure - (claim.epsilon_labels if options.mode == "dp-full" else 0.0)),
        epsilon_total=claim.epsilon_features,
    )
    scale = part.scale * strict_grid(options, k).step
    seen = []
    for side in both_ways(trials, source):
        records = np.zeros((trials, options.spd, k))
        records[:, 0, 0] = grid.clip * side
        made = mixed_rows(options, records, np.zeros((trials, options.spd), dtype=np.int64), source)
        x = made[:, 0] * options.spd
        if part.ratio:
            score = 2 * grid.clip * x / scale**2
        else:
            score = (np.abs(x + grid.clip) - np.abs(x - grid.clip)) / scale
        seen.append((side, score, made))
    laplace = math.log((1 - math.exp(-part.epsilon_total / 2) / 2) / (math.exp(-part.epsilon_total / 2) / 2))
    return held(part, seen, 1.0 if part.ratio else laplace / part.epsilon_total)


def audit_labels(options: ReleaseOptions, claim: Claim, trials: int, source: Source) -> Audit:
    """Each group is one canary of one of two classes; its features are known."""
    cost = claim.epsilon_labels
    part = replace(
        claim,
        ratio=0.0,
        epsilon_pure=cost,
        epsilon_grid=0.0,
        epsilon_total=cost,
        delta=0.0,
        delta_factor=1.0,
        delta_grid=0.0,
    )
    seen = []
    for side in both_ways(trials, source):
        labels = ((side + 1) / 2).astype(np.int64)[:, None]
        made = mixed_rows(replace(options, spd=1), np.zeros((trials, 1, 1)), labels, source)
        seen.append((side, made[:, -1] - made[:, -2], made))
    return held(part, seen, 1.0)


def mixed_rows(options: ReleaseOptions, records: Array, labels: Any, source: Source) -> Array:
    """What a mixed digest says of each group: features and soft labels, as they arrive."""
    groups, spd, k = records.shape
    order = torch.randperm(groups * spd, generator=torch.Generator().manual_seed(0))
    features, classes = torch.zeros(groups * spd, k), torch.zeros(groups * spd, dtype=torch.long)
    features[order], classes[order] = (
        torch.from_numpy(records).float().flatten(0, 1),
        torch.from_numpy(labels).flatten(),
    )
    about = About("audit", 2, "audit", (k,))
    plain = replace(options, strategy="across")  # groups that nobody's label moves
    sealed, _ = make_release(plain, about, features, classes, torch.Generator().manual_seed(0), source)
    made = open_digest({name: tensor for name, tensor in sealed.items() if name != "claim"})
    return torch.cat([made.features, made.labels], dim=1).double().numpy()


def audit_paper(options: ReleaseOptions, claim: Claim, trials: int, source: Source) -> Audit:
    """The published digest of a canary among SpD - 1 empty records that the adversary knows."""
    trials = min(trials, MOST_PUBLISHED)
    about, generator = About("audit", 1, "audit", (1,)), torch.Generator().manual_seed(0)

    def score(side: float) -> float:
        records = torch.zeros(options.spd, 1)
        records[0] = side
        sealed, _ = make_release(options, about, records, torch.zeros(options.spd, dtype=torch.long), generator, source)
        mixed: Tensor = open_digest(sealed).features
        return float(mixed.sum())

    out, inside = (np.array([score(side) for _ in range(trials)]) for side in (-1.0, 1.0))
    return audit(claim, [Scored(out, inside)])


def both_ways(trials: int, source: Source) -> list[Array]:
    """Which of its two forms each canary has, -1 or 1 by chance; and the other way round."""
    side = np.where(source.octets(trials) & 1, 1.0, -1.0)
    return [side, -side]


def held(claim: Claim, seen: list[tuple[Array, Array, Array]], sees: float) -> Audit:
    """Scores of both releases, and the number of the second that told most in the first, held to the claim."""
    sides = [(made[side < 0], made[side > 0]) for side, _, made in seen]
    out, inside = (np.concatenate([score[side * sign > 0] for side, score, _ in seen]) for sign in (-1, 1))
    half = claim.epsilon_total / 2
    found = [Scored(out, inside, (-half, half))]
    if min(len(one) for pair in sides for one in pair) >= 20:
        found.append(balanced(learnt(sides[0], sides[1])))
    return audit(claim, found, sees)


def balanced(attack: Scored) -> Scored:
    """As many trials of either kind."""
    few = min(len(attack.out), len(attack.inside))
    return Scored(attack.out[:few], attack.inside[:few], attack.also)
