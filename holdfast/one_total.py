"""What all members' records say together, where protect = "secure-sum" and one message is sent: both stages' totals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from holdfast.digests.moment_wire import check_moments
from holdfast.digests.moments import MomentDigest, summarise
from holdfast.digests.release_options import ReleaseOptions
from holdfast.privacy import total_moments as totals
from holdfast.privacy.moment_noise import centres_of
from holdfast.privacy.noise import system
from holdfast.secure_exchange import Exchange


def learn_total(exchange: Exchange, options: object, clients: Sequence[int]) -> MomentDigest:
    """The moments of all records of those who take part."""
    about, secure = exchange.method.bench.about, exchange.method.secure
    assert secure is not None
    assert isinstance(options, ReleaseOptions)
    classes, k = about.classes, about.feature_shape[0]
    first, second, _, _ = totals.scales_for(options.true_epsilon, options.delta, k)
    known = exchange.join(1, clients)
    one = exchange.total(1, known, partial(totals.layout_of, totals.parts(1, first, second, classes, k)), {})
    noise = totals.deviations(first, second, len(one.members), one.counted - secure.colluding)
    early = totals.first_of(one.values, classes)
    centres = centres_of(early, noise)
    told = {"means": torch.from_numpy(centres.means), "radii": torch.from_numpy(centres.radii)}
    left = {member: known[member] for member in one.members}
    two = exchange.total(2, left, partial(totals.layout_of, totals.parts(2, first, second, classes, k)), told)
    claim = totals.total_claim(options.true_epsilon, options.delta, k, secure.colluding, system())
    digest = summarise(early, centres, totals.second_of(two.values, classes, k), noise, claim)
    check_moments(digest, "secure sum", one.records if one.members == two.members else None)
    return digest
