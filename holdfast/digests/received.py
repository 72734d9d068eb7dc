"""What the moderator makes of a release: checked against what is publicly known, then features and soft labels.

Whatever the mode, a client's release ends as samples: a mixed digest's rows, stretched as far as mixing shrank them
(stretching.py), or samples drawn from moments.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from holdfast.context import About, Context
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import sentence_of
from holdfast.core.randomness import rng
from holdfast.core.tensors import bytes_of
from holdfast.core.types import Tensors
from holdfast.digests.compact import LEVELS
from holdfast.digests.digest import Digest, open_digest
from holdfast.digests.moment_sampling import Pooled, draw, pool
from holdfast.digests.moment_wire import check_moments, open_moments
from holdfast.digests.moments import MomentDigest
from holdfast.digests.release import LONGEST_EXCUSE, claim_of, strict_grid
from holdfast.digests.release_options import COMPACT, ReleaseOptions, noisy, sums_leave
from holdfast.digests.stretching import stretched
from holdfast.digests.sums import UNIT, SumDigest, check_sums, open_sums

TOGETHER = -1  # where a bench keeps what all clients' moments say together


def receive_one(options: ReleaseOptions, context: Context, client: int, samples: int, sealed: Tensors) -> None:
    """Refuse a release that is damaged, absurd, not what this run asked for, or of more samples than were claimed."""
    digest = opened(options, context, client, sealed, most_rows(options, samples, context.bench.about.classes))
    if isinstance(digest, SumDigest):
        check_sums(digest, "sum digest", samples)
    elif options.mode == "moments":
        check_moments(digest, "moment digest", samples)
    else:
        check_rows(options, context.bench.about, digest, samples)


def check_rows(options: ReleaseOptions, about: About, digest: Digest, samples: int) -> None:
    """Refuse rows that no honest client with so many samples can have: mixed otherwise, or too long."""
    if digest.spd != options.spd or digest.samples > samples:
        raise HoldfastError(
            f"digest: it mixes {digest.samples} samples by {digest.spd}, but the client has {samples} and the run "
            f"mixes by {options.spd}."
        )
    longest = float(digest.features.flatten(1).norm(dim=1).max())
    if longest > (bound := longest_row(options, about)):
        raise HoldfastError(f"digest: a row has the length {longest:.3g}, above the encoder's bound of {bound:.3g}.")


def most_rows(options: ReleaseOptions, samples: int, classes: int) -> int:
    """ceil(samples / SpD); strict modes that mix within classes fill each class's last row with empty places."""
    filled = classes - 1 if options.mode != "paper" and options.strategy == "within" else 0
    return -(-samples // options.spd) + filled


def longest_row(options: ReleaseOptions, about: About) -> float:
    """What no honest row exceeds: the bound of a record, what noise adds to it, and what rounding to codes adds.

    A code is off by at most half a step, and a step is at most 2 L / levels: L (1 + sqrt(width) / levels).
    """
    if about.norm_bound is None and options.mode == "paper":
        return math.inf
    length = (about.norm_bound or 0.0) if options.mode == "paper" else options.clip
    length += noise_length(options, about.feature_shape, about.classes, length)
    levels = LEVELS.get(COMPACT[options.bits].features, 1 << 10)
    return 1.001 * length * (1 + math.sqrt(math.prod(about.feature_shape)) / levels)


def noise_length(options: ReleaseOptions, feature_shape: tuple[int, ...], classes: int, bound: float) -> float:
    """The length that a row's noise exceeds less often than once in 10^20 rows.

    Gaussian: sigma (sqrt k + 10). Laplace: |x|_2^2 <= |x|_1 |x|_inf, where |x|_1 / b is Gamma(k), below
    k + 10 sqrt k + 50, and |x|_inf / b below log k + 50.
    """
    k = math.prod(feature_shape)
    scale, gaussian = noise_scale(options, feature_shape, classes, bound)
    if gaussian:
        return scale * (math.sqrt(k) + 10)
    return scale * math.sqrt((k + 10 * math.sqrt(k) + 50) * (math.log(k) + 50))


@functools.lru_cache(maxsize=8)
def noise_scale(
    options: ReleaseOptions, feature_shape: tuple[int, ...], classes: int, tau: float
) -> tuple[float, bool]:
    """The scale of the noise on a row (strict modes: on a row of one record), and whether it is Gaussian, not Laplace.

    tau: in mode paper, a client's largest feature value.
    """
    if not noisy(options):
        return 0.0, True
    claim = claim_of(options, feature_shape, classes)
    unit = tau if options.mode == "paper" else strict_grid(options, math.prod(feature_shape)).step
    return claim.scale * unit, claim.noise == "discrete gaussian"


def opened(options: ReleaseOptions, context: Context, client: int, sealed: Tensors, rows: int | None = None) -> Any:
    """A client's release of at most so many rows, checked and unpacked: once, not in every round it is in force."""
    kept = context.bench.opened.get(client)
    if kept is None or kept[0] is not sealed:
        if sums_leave(options, context.bench.about):
            found: Any = open_sums_for(options, context, sealed)
        elif options.mode == "moments":
            found = open_moments_for(options, context, sealed)
        else:
            found = open_for(context, sealed, rows)
        kept = (sealed, found)
        context.bench.opened[client] = kept
    return kept[1]


def as_records(options: ReleaseOptions, context: Context, client: int, sealed: Tensors) -> Digest:
    """A client's mixed digest, its rows stretched unless they are to be used as printed: once, like `opened`."""
    digest: Digest = opened(options, context, client, sealed)
    if options.printed:
        return digest
    kept = context.bench.stretched.get(client)
    if kept is None or kept[0] is not digest:
        about = context.bench.about
        bound = about.norm_bound if options.mode == "paper" else options.clip
        # What the run asked for counts, not what the client says of its digest.
        asked = dataclasses.replace(digest, spd=options.spd, weights=options.weights, signed=about.signed)
        kept = digest, stretched(asked, bound, noise_variance(options, about, digest))
        context.bench.stretched[client] = kept
    return kept[1]


def noise_variance(options: ReleaseOptions, about: About, digest: Digest) -> float:
    """The variance of the noise in each coordinate of a row.

    Mode paper: tau is the largest value of a client's features, which its rows' largest is nearly; strict modes: the
    noise is in the sum of SpD records.
    """
    tau = float(digest.features.abs().max())
    scale, gaussian = noise_scale(options, about.feature_shape, about.classes, tau)
    scale /= 1 if options.mode == "paper" else options.spd
    return scale**2 * (1 if gaussian else 2)


def samples_of(
    options: ReleaseOptions,
    context: Context,
    digests: Mapping[int, Tensors],
    round: int,
    clients: Sequence[int],
    claims: Mapping[int, int] | None = None,
) -> list[Digest]:
    """Features and soft labels that stand in for each of these clients in this round, each at most its share."""
    claims = claims or {}
    if options.mode != "moments":
        held = {client: as_records(options, context, client, digests[client]) for client in digests}
        claims = {**{client: digest.samples for client, digest in held.items()}, **claims}
        counted = context.sizes.counted(claims)
        return [share_of(options, context, held[client], client, counted[client]) for client in clients]
    pooled, places = together(options, context, digests, claims)
    about, found = context.bench.about, []
    for client in clients:
        generator = rng(context.seed, round, client, "moments")
        features, labels = draw(pooled, places[client], generator)
        soft = torch.nn.functional.one_hot(labels, about.classes).float()
        count = len(labels)
        found.append(
            Digest(features, soft, about.task, about.encoder, 1, "within", "balanced", "moments", count, count)
        )
    return found


def share_of(options: ReleaseOptions, context: Context, digest: Digest, client: int, samples: int) -> Digest:
    """A digest with no more rows than the samples that count for its client allow; of more, some drawn by chance."""
    most = most_rows(options, samples, digest.classes)
    if len(digest) <= most:
        return dataclasses.replace(digest, samples=min(digest.samples, samples))
    kept = torch.randperm(len(digest), generator=rng(context.seed, -1, client, "share of digests"))[:most]
    rows = kept.sort().values
    return dataclasses.replace(digest, features=digest.features[rows], labels=digest.labels[rows], samples=samples)


def together(
    options: ReleaseOptions, context: Context, digests: Mapping[int, Tensors], claims: Mapping[int, int]
) -> tuple[Pooled, dict[int, int]]:
    """What all moment digests say, worked out once for these digests; and each client's place in it."""
    held = {client: opened(options, context, client, digests[client]) for client in sorted(digests)}
    claims = {**{client: max(1, round(float(d.counts.sum()))) for client, d in held.items()}, **claims}
    counted = context.sizes.counted(claims)
    shares = {client: counted[client] / claims[client] for client in held}
    kept = context.bench.opened.get(TOGETHER, ({}, None, {}))
    same = kept[0].keys() == held.keys() and kept[2] == shares
    if not same or any(kept[0][c] is not one for c, one in held.items()):
        kept = (held, pool([scaled(one, shares[client]) for client, one in held.items()]), shares)
        context.bench.opened[TOGETHER] = kept
    return kept[1], {client: place for place, client in enumerate(held)}


def scaled(digest: MomentDigest, share: float) -> MomentDigest:
    """The moments of a share of the records, where more were claimed than count."""
    if share >= 1:
        return digest
    return dataclasses.replace(digest, counts=digest.counts * share, shared=digest.shared * share)


def open_moments_for(options: ReleaseOptions, context: Context, sealed: Tensors) -> MomentDigest:
    refuse_excuse(sealed)
    about = context.bench.about
    expected = {
        "task": about.task,
        "encoder": about.encoder,
        "classes": about.classes,
        "features": math.prod(about.feature_shape),
        "epsilon": options.true_epsilon,
        "delta": options.delta,
    }
    return open_moments(sealed, expected, "moment digest")


def open_sums_for(options: ReleaseOptions, context: Context, sealed: Tensors) -> SumDigest:
    refuse_excuse(sealed)
    about = context.bench.about
    expected = {
        "task": about.task,
        "encoder": about.encoder,
        "kind": about.kind,
        "classes": about.classes,
        "features": math.prod(about.feature_shape),
        "range": list(options.target_range or UNIT),
    }
    digest = open_sums(sealed, expected, "sum digest")
    asked = None if options.mode == "sums" else (options.true_epsilon, options.delta)
    made = None if digest.claim.mode == "sums" else (digest.claim.epsilon_nominal, digest.claim.delta)
    if made != asked:
        raise HoldfastError(f"sum digest: it was made for (epsilon, delta) {made}, but this run has {asked}.")
    return digest


def open_for(context: Context, sealed: Tensors, rows: int | None = None) -> Digest:
    """A mixed digest that fits this run, or a sentence why it does not."""
    refuse_excuse(sealed)
    about = context.bench.about
    return open_digest(
        {name: tensor for name, tensor in sealed.items() if name != "claim"},
        task=about.task,
        encoder=about.encoder,
        classes=about.classes,
        feature_shape=about.feature_shape,
        rows=rows,
    )


def refuse_excuse(sealed: Tensors) -> None:
    if code := excuse_in(sealed):
        raise HoldfastError(f"there is none ({sentence_of(code)})")


def excuse_in(sealed: Tensors) -> str:
    """The code of why there is no digest; empty: there is one."""
    return bytes_of(sealed["none"])[:LONGEST_EXCUSE].decode(errors="replace") if sealed.keys() == {"none"} else ""
