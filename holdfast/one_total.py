"""What all members' records say together, where protect = "secure-sum" and one message is sent: both stages' totals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from holdfast.client.secure_sum import SUMS, bounds_in, claim_of_total
from holdfast.data.kinds import kind_of
from holdfast.digests.moment_wire import check_moments
from holdfast.digests.moments import MomentDigest, summarise
from holdfast.digests.release_options import ReleaseOptions
from holdfast.digests.sums import UNIT, SumDigest, check_sums
from holdfast.privacy import total_moments as totals
from holdfast.privacy import total_sums
from holdfast.privacy.moment_noise import centres_of
from holdfast.secure_exchange import Exchange


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
    total = exchange.total(SUMS, exchange.join(SUMS, clients), partial(totals.layout_of, total_sums.parts(*asked)), {})
    noise = total_sums.deviation(*asked, len(total.members), total.honest)
    sums, range = total_sums.sums_of(total.values, k, bounds), options.target_range or UNIT
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
    one = exchange.total(1, known, partial(totals.layout_of, totals.parts(1, first, second, classes, k)), {})
    noise = totals.deviations(first, second, len(one.members), one.honest)
    early = totals.first_of(one.values, classes)
    centres = centres_of(early, noise)
    told = {"means": torch.from_numpy(centres.means), "radii": torch.from_numpy(centres.radii)}
    left = {member: known[member] for member in one.members}
    two = exchange.total(2, left, partial(totals.layout_of, totals.parts(2, first, second, classes, k)), told)
    claim = claim_of_total(options, about, secure)
    digest = summarise(early, centres, totals.second_of(two.values, classes, k), noise, claim)
    check_moments(digest, "secure sum", one.records if one.members == two.members else None)
    return digest
