"""The moderator follows what each client remembers (SCAFFOLD's c_i, FedDyn's g_i, AdaBest's h_i).

algorithm.remember() is a function of what the moderator sees anyway. So a stand-in goes on where its client left off,
and the client, when it is back, where its stand-in did.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.algorithms.fedavg import Work
from holdfast.context import Context
from holdfast.core.types import State, Tensors, Update, unpack


def memory_of(state: State, client: int) -> Tensors:
    """What the client, or its stand-in after it, remembers."""
    return unpack(state.absence, f"memory/{client}")


def stood_in(state: State, client: int) -> int:
    """The last round in which the client's stand-in acted."""
    return int(state.absence["stood_in"][client])


def last_act(state: State, client: int) -> int:
    """The last round in which the client or its stand-in acted."""
    return max(stood_in(state, client), state.accepted.get(client, -1))


def follow_memories(state: State, after: State, updates: Sequence[Update], context: Context) -> Tensors:
    """When each stand-in last acted, and what each client remembers after this round."""
    acted = state.absence["stood_in"].clone()
    followed: Tensors = {}
    server = context.algorithm.broadcast(state.algorithm)
    for update in updates:
        if update.synthetic:
            acted[update.client] = state.round
        elif after.accepted.get(update.client) != state.round:
            continue  # it did not count, so the client goes back to what it remembered before
        if context.algorithm.remembers:
            own = state.accepted.get(update.client, -1)  # all that a client knows of when it last acted
            last = last_act(state, update.client) if update.synthetic else own
            work = Work(state.round, update.steps, last, context.learning_in(state.round), state.model)
            memory = context.algorithm.remember(update.delta, work, server, memory_of(state, update.client))
            followed |= {f"memory/{update.client}/{name}": tensor for name, tensor in memory.items()}
    return {"stood_in": acted, **followed}
