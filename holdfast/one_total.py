"""What all members' records say together, where protect = "secure-sum": both stages of moments, and metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from holdfast.client.secure_metrics import told_of
from holdfast.client.secure_sum import METRICS, SUMS, bounds_in, claim_of_total
from holdfast.core.types import Tensors
from holdfast.data.kinds import kind_of
from holdfast.data.task import Metric
from holdfast.digests.moment_wire import check_moments
from holdfast.digests.moments import MomentDigest, summarise
from holdfast.digests.release_options import ReleaseOptions
from holdfast.digests.sums import UNIT, SumDigest, check_sums
from holdfast.privacy import total_counts, total_sums
from holdfast.privacy import total_moments as totals
from holdfast.privacy.moment_noise import STEPS, Centres, centres_of
from holdfast.privacy.noise import Whole
from holdfast.privacy.total_counts import Wanted
from holdfast.secure_exchange import Exchange
from holdfast.secure_sum.moderator import LayoutFor, Total


def learn_total(exchange: Exchange, options: object, clients: Sequence[int]) -> MomentDigest | SumDigest:
    """What the records of those who take part say together."""
    assert isinstance(options, ReleaseOptions)
    if kind_of(exchange.method.bench.about.kind).has_classes:
        return learn_moments(exchange, options, clients)
    return learn_sums(exchange, options, clients)


def learn_sums(exchange: Exchange, options: ReleaseOptions, clients: Sequence[int]) -> SumDigest:
    """The joint sums of features and targets, of kinds without classes."""
    about, secure = exchange.method.bench.about, exchange.method.secure
    assert secure is not None
    k, bounds = about.feature_shape[0], bounds_in(about)
    asked = (options.true_epsilon, options.delta, k, bounds)
    parts = total_sums.parts(*asked)
    total = exchange.total(SUMS, exchange.join(SUMS, clients), layout_for(parts), {})
    noise = total_sums.deviation(*asked, len(total.members), total.honest)
    sums, range = total_sums.sums_of(in_steps(total, parts), k, bounds), options.target_range or UNIT
    claim = claim_of_total(options, about, secure)
    digest = SumDigest(sums, about.kind, about.classes, total.records, range, noise, claim)
    check_sums(digest, "secure sum")
    return digest


def learn_moments(exchange: Exchange, options: ReleaseOptions, clients: Sequence[int]) -> MomentDigest:
    """The moments of all records, in two stages."""
    about, secure = exchange.method.bench.about, exchange.method.secure
    assert secure is not None
    classes, k = about.classes, about.feature_shape[0]
    first, second, _, _ = totals.scales_for(options.true_epsilon, options.delta, k)
    known = exchange.join(1, clients)
    parts = totals.parts(1, first, second, classes, k)
    one = exchange.total(1, known, layout_for(parts), {})
    noise = totals.deviations(first, second, len(one.members), one.honest)
    early = totals.first_of(in_steps(one, parts), classes)
    around, tail = totals.around(centres_of(early, noise), early.counts / STEPS)
    told = {"means": torch.from_numpy(around.means), "radii": torch.from_numpy(around.radii)}
    told |= {"tail": torch.from_numpy(tail.copy())} if tail.size else {}
    left = {member: known[member] for member in one.members}
    parts = totals.parts(2, first, second, classes, taken := totals.directions(k))
    two = exchange.total(2, left, layout_for(parts), told)
    noise = replace(noise, second=totals.deviations(first, second, len(two.members), two.honest).second)
    early = replace(early, sums=np.rint(early.sums @ around.basis).astype(np.int64))
    late = totals.second_of(in_steps(two, parts), classes, taken)
    centres = Centres(around.means @ around.basis, around.radii)
    digest = summarise(early, centres, late, noise, claim_of_total(options, about, secure))
    check_moments(digest, "secure sum", one.records if one.members == two.members else None)
    return replace(digest, basis=around.basis if taken < k else None)


def learn_metrics(
    exchange: Exchange, model: Tensors, buffers: Tensors, metrics: Sequence[Metric]
) -> tuple[dict[str, list[float]], Total]:
    """The sums of metrics over the members' records, with the most noise that any of them wants; and whose they are."""
    known = exchange.join(METRICS, list(exchange.federation.clients))
    wanted = Wanted(
        min((one.epsilon for one in exchange.wanted), default=math.inf),
        min((one.delta for one in exchange.wanted), default=Wanted.delta),
    )
    told = total_counts.summed(metrics, wanted.noisy)
    width = sum(metric.width for metric in told)
    total = exchange.total(METRICS, known, lambda *_: [(width, total_counts.BITS)], told_of(model, buffers, wanted))
    return total_counts.sums_in(told, total.values, wanted.noisy), total


def layout_for(parts: Sequence[totals.Part]) -> LayoutFor:
    """The form of a vector, by the records of all, how many members they have, and whose noise is sure."""
    return lambda records, members, honest: totals.layout_of(parts, records, members, honest)


def in_steps(total: Total, parts: Sequence[totals.Part]) -> Whole:
    """A total in steps of the grid, of which members send multiples."""
    found: Whole = total.values * totals.sent_steps(parts, total.honest)
    return found
