"""The one round of algorithm "oneshot": digests, or with secure sums their total, come in, and a head is fitted."""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.client import DIGEST, DigestRequest
from holdfast.core.errors import HoldfastError
from holdfast.core.types import Absent, Federation, Reply, State, size
from holdfast.core.validate import bad_count
from holdfast.method import Method
from holdfast.one_total import learn_total
from holdfast.record import Clock, Record
from holdfast.secure_exchange import Exchange, closed
from holdfast.selection import select


def exchange_digests(state: State, federation: Federation, method: Method) -> tuple[State, Record]:
    """Each client is asked for its digest, and a head is fitted to them."""
    clock = Clock()
    asked = select(method.selection, federation.clients, state, method.seed)
    replies = federation.ask([DIGEST.message(client, state.round, DigestRequest()) for client in asked])
    clock.lap("clients")
    heard = [reply for reply in replies if isinstance(reply, Reply)]
    absent = {reply.client: reply.reason for reply in replies if isinstance(reply, Absent)}
    refused = {reply.client: fault for reply in heard if (fault := bad_count(reply, "samples"))}
    fresh = [reply for reply in heard if reply.client not in refused]
    claims = {**{reply.client: reply.scalars["samples"] for reply in fresh}, **state.claims}
    state = replace(state, claims=claims)
    digests, bad = method.absence.receive(state, fresh, method)
    refused |= bad
    after = replace(state, digests=digests)
    if digests:
        model, buffers = method.absence.fit_head(after, method)
        after = replace(after, model=model, buffers=buffers)
    clock.lap("server_step")
    counted = method.sizes.counted({client: claims[client] for client in digests})
    after = after.next(absent=tuple(sorted([*absent, *refused])))
    return after, Record(
        round=after.round,
        absent=absent,
        refused=refused,
        stand_ins=[],
        weights={client: count / sum(counted.values()) for client, count in counted.items()},
        scores={},
        suspects={},
        loss=None,
        bytes_up=sum(size(reply.tensors) for reply in heard),
        bytes_down=0,
        seconds=clock.laps,
        notes=[f"{method.called(client)}'s digest is refused: {why}" for client, why in refused.items()],
        asked=None if len(asked) == len(federation.clients) else list(asked),
        client_seconds={reply.client: reply.seconds for reply in heard if 0 <= reply.seconds < math.inf},
    )


def exchange_total(state: State, federation: Federation, method: Method) -> tuple[State, Record]:
    """The same where protect = "secure-sum": the moderator learns the members' total alone, and fits a head to that."""
    clock, exchange = Clock(), Exchange(federation, method, state.round)
    asked = [*select(method.selection, federation.clients, state, method.seed)]
    after = state
    try:
        total = learn_total(exchange, method.absence, asked)
        clock.lap("clients")
        model, buffers = method.absence.fit_total(total, method)
        after = replace(state, model=model, buffers=buffers)
    except HoldfastError as error:
        exchange.notes.append(str(error))
    clock.lap("server_step")
    return closed(exchange, after, clock, asked)
