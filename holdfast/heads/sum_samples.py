"""Records that have a client's sums: what stands in for it where only joint sums of features and targets left.

regression, counts, labels   n rows z with the sum and the second moment of the client's records, and for each row the
                             targets that least squares expects there. So sum y and sum y z are the client's as well.
hazards                      for each interval those whose event was in it, and those last seen after it: as many rows
                             as there were records, with their mean; the spread around these means is the same for all.

With a linear model the gradient of the squared error over all rows is the client's own to the last digits: a member
that leaves after its digest costs nothing. Of the losses of labels and counts the part with the targets in it is exact
(it is linear in them); the rest depends on the distribution of z, of which two moments are known and a Gaussian is
assumed, as it is for hazards. Huber's loss is not linear in the targets: there a row's target is only the expected one.

Noise drowns a single client's sums sooner than those of all: with noise, a client's rows are drawn from the sums of all
clients, as many as it has records. All of it is post-processing of what left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.context import Context
from holdfast.core.randomness import rng
from holdfast.core.types import Tensors
from holdfast.data.kinds import Hazards, kind_of
from holdfast.digests.digest import Digest
from holdfast.digests.received import opened
from holdfast.digests.release_options import ReleaseOptions
from holdfast.digests.sums import SumDigest, scaled_sums
from holdfast.heads.from_sums import added, centred, head, noise_of
from holdfast.privacy.moment_noise import Array

PENALTY = 0.03  # of the likeliest head, chosen on validation splits
FLAT = 1e-10  # of the largest eigenvalue: a direction with less has no spread


def samples_from_sums(
    options: ReleaseOptions,
    context: Context,
    digests: Mapping[int, Tensors],
    round: int,
    clients: Sequence[int],
    claims: Mapping[int, int],
) -> list[Digest]:
    """Features and targets that stand in for each of these clients in this round, each at most its share."""
    held: dict[int, SumDigest] = {c: opened(options, context, c, digests[c]) for c in sorted(digests)}
    counted = context.sizes.counted({**{client: digest.records for client, digest in held.items()}, **claims})
    held = {client: scaled_sums(digest, counted[client]) for client, digest in held.items()}
    whole = all_together(list(held.values()))
    about, found = context.bench.about, []
    for client in clients:
        own = held[client] if not held[client].noise else scaled_sums(whole, held[client].records)
        features, targets = rows_of(own, rng(context.seed, round, client, "sums"))
        count = len(targets)
        found.append(
            Digest(features, targets, about.task, about.encoder, 1, "within", "balanced", "sums", count, count)
        )
    return found


def all_together(digests: Sequence[SumDigest]) -> SumDigest:
    """The sums of all clients as if they were one's."""
    records = sum(digest.records for digest in digests)
    return replace(digests[0], sums=added(digests), records=records, noise=noise_of(digests))


def rows_of(digest: SumDigest, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """As many rows as there are records: features and targets, with the digest's sums."""
    kind = kind_of(digest.kind)
    if isinstance(kind, Hazards):
        return hazard_rows(digest, kind.cuts, generator)
    _, mean, squares = centred(digest.sums, digest.noise)
    n = digest.records
    features = spread_around(np.array([n]), mean[None], squares, generator)
    middles = digest.sums.cells[1:, 0] / n
    joint = digest.sums.cells[1:, 1:] - n * np.outer(middles, mean)
    values, vectors = np.linalg.eigh(squares)
    inverse = np.where(values > FLAT * max(values[-1], 1e-12), 1 / np.maximum(values, 1e-300), 0.0)
    slopes = joint @ (vectors * inverse) @ vectors.T
    low, high = digest.range
    targets = middles + (features - mean) @ slopes.T
    targets = (high + low) / 2 + (high - low) / 2 * targets
    return torch.from_numpy(features).float(), torch.from_numpy(targets).float()


def hazard_rows(digest: SumDigest, cuts: Sequence[float], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows (time, event) that interval_targets reads as those of the records, by group.

    Whoever survived interval j and neither survives nor ends in j + 1 was last seen after j.
    """
    cells, intervals = digest.sums.cells, len(cuts)
    survived, ended = cells[:intervals], cells[intervals:]
    after = np.concatenate([survived[1:] + ended[1:], np.zeros((1, cells.shape[1]))])
    groups = np.concatenate([ended, survived - after])
    told = [(cut, 1.0) for cut in cuts] + [(cut, 0.0) for cut in cuts]
    counts = np.maximum(np.rint(groups[:, 0]), 0).astype(np.int64)
    middle = groups[:, 1:].sum(0) / max(float(groups[:, 0].sum()), 1.0)
    means = np.where(counts[:, None] > 0, groups[:, 1:] / np.maximum(groups[:, :1], 0.5), middle)
    rest = max(digest.records - int(counts.sum()), 0)  # last seen within the first interval: nothing is known of them
    counts, means = np.array([*counts, rest]), np.concatenate([means, middle[None]])
    squares = digest.sums.second - np.einsum("g,gk,gl->kl", counts.astype(float), means, means)
    features = spread_around(counts, means, squares, generator)
    targets = np.repeat(np.array([*told, (0.0, 0.0)]), counts, axis=0)
    return torch.from_numpy(features).float(), torch.from_numpy(targets).float()


def spread_around(counts: NDArray[np.int64], means: Array, squares: Array, generator: torch.Generator) -> Array:
    """Rows in groups of these counts, each with its mean, and sum (z - m)(z - m)' as given where rows suffice for it.

    >>> rows = spread_around(np.array([3]), np.zeros((1, 2)), np.diag([6.0, 2.0]), torch.Generator())
    >>> bool(np.allclose(rows.sum(0), 0)), bool(np.allclose(rows.T @ rows, np.diag([6.0, 2.0])))
    (True, True)
    """
    values, vectors = np.linalg.eigh(squares)
    free = int((counts - 1).clip(min=0).sum())  # directions that rows around their groups' means can have
    kept = np.flatnonzero(values > FLAT * max(float(values[-1]), 1e-12))[::-1][:free]
    group = np.repeat(np.arange(len(counts)), counts)
    chance = torch.randn((len(group), len(kept)), generator=generator, dtype=torch.float64).numpy()
    sums = np.zeros((len(counts), len(kept)))
    np.add.at(sums, group, chance)
    chance = chance - (sums / np.maximum(counts, 1)[:, None])[group]
    directions = np.linalg.qr(chance)[0]
    spread: Array = means[group] + (directions * np.sqrt(values[kept])) @ vectors[:, kept].T
    return spread


def most_likely(digests: Sequence[SumDigest], seed: int) -> Tensors:
    """A linear head with the greatest likelihood of rows drawn from sums, by the kind's own loss.

    It has one slope for all outputs; added to the mean loss is PENALTY / 2 times the sum over columns of the squared
    slope times the column's variance: the penalty that standardised columns would have.

    The likelihood of counts and hazards is no function of the sums; what is exact in it is the part with the targets.
    Drawn client by client, rows keep how members differ, which the sums of all do not.
    """
    noisy = any(digest.noise for digest in digests)
    drawn = [rows_of(one, rng(seed, -1, place, "rows")) for place, one in enumerate(
        [all_together(digests)] if noisy else digests)]  # fmt: skip
    features, targets = (torch.cat(parts).double() for parts in zip(*drawn, strict=True))
    kind = kind_of(digests[0].kind)
    slope = torch.zeros(features.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(kind.outputs(0), dtype=torch.float64, requires_grad=True)
    spread = features.var(0) + 1e-9
    solver = torch.optim.LBFGS([slope, bias], max_iter=500, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def value() -> float:
        solver.zero_grad()
        penalty = PENALTY / 2 * (slope.square() * spread).sum()
        loss = kind.loss((features @ slope)[:, None] + bias, targets) + penalty
        loss.backward()
        return float(loss.detach())

    solver.step(value)
    return head(np.tile(slope.detach().numpy(), (len(bias), 1)), bias.detach().numpy())
