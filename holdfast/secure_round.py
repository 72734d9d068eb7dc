"""A round with protect = "secure-sum": clients train, and the moderator learns the mean of their updates alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from holdfast.algorithms.fedavg import add
from holdfast.client import SECURE_TRAIN, SecureTrainRequest
from holdfast.client.secure_sum import UPDATE
from holdfast.core.errors import HoldfastError
from holdfast.core.types import Federation, State
from holdfast.method import Method
from holdfast.record import Clock, Record
from holdfast.secure_exchange import Exchange, closed
from holdfast.secure_sum import updates
from holdfast.secure_sum.moderator import Total
from holdfast.selection import select
from holdfast.trust import Uniform


def play_secure_round(state: State, federation: Federation, method: Method) -> tuple[State, Record]:
    """State in, state out, as play_round; without a total the model stays as it is."""
    clock, exchange = Clock(), Exchange(federation, method, state.round)
    asked = [*select(method.selection, federation.clients, state, method.seed)]
    lr = method.learning_in(state.round).lr
    trained = exchange.keys_from(
        [
            SECURE_TRAIN.message(c, state.round, SecureTrainRequest(state.model, state.accepted.get(c, -1), lr))
            for c in asked
        ]
    )
    clock.lap("clients")
    after, weights, loss = state, dict[int, float](), None
    try:
        after, weights, loss = learn_mean(state, exchange, trained, method)
    except HoldfastError as error:
        exchange.notes.append(str(error))
    clock.lap("trust")
    return closed(exchange, after, clock, asked, weights, loss)


def learn_mean(
    state: State, exchange: Exchange, trained: dict[int, str], method: Method
) -> tuple[State, dict[int, float], float | None]:
    """The state with the mean of the members' updates, how much each member counts, and the mean training loss."""
    secure = method.secure
    assert secure is not None
    numbers = sum(weight.numel() for weight in state.model.values())
    total = exchange.total(UPDATE, trained, partial(updates.layout_of, numbers, secure.clip), state.model)
    weights = weights_in(total, method)
    mean = updates.mean_of(total.values, state.model, sum(weights.values()), secure.clip)
    if moved := [name for name in method.frozen() if mean.delta[name].any()]:
        raise HoldfastError(f"secure sum: the mean update moves {moved[0]}, which is frozen: a member spoilt it.")
    model, kept = method.server_optimizer.step(state.model, add(state.model, mean.delta), state.server_optimizer)
    accepted = {**state.accepted, **dict.fromkeys(total.members, state.round)}
    after = replace(state, model=model, server_optimizer=kept, accepted=accepted)
    return after, {client: weight / mean.weight for client, weight in weights.items()}, mean.loss


def weights_in(total: Total, method: Method) -> dict[int, int]:
    """The records that each member of a total says it has, or 1 where all count alike."""
    return dict.fromkeys(total.members, 1) if isinstance(method.trust, Uniform) else dict(total.claims)
