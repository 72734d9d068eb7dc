"""Who is asked to train in a round: a choice of its own, apart from who is away (scenarios.py).

A selection is called as selection(clients, state, generator) and answers with the clients to ask, or with a mapping
from each to the reason, which the round's record keeps. The generator is drawn from the experiment's seed and the
round, so a resumed run asks the same clients. A user's own is any such function or class, named by import path. Who
is not asked is not absent: nothing stands in for it. Selections that go by what happened are in informed.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import index

import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import rng
from holdfast.core.types import Reply, State, Tensors, Update
from holdfast.selection.informed import BySize, Heard, Informed, KCentres, PowerOfChoice, Tiers

Selection = Callable[[Sequence[int], State, torch.Generator], Collection[int]]


@dataclass(frozen=True)
class Everyone:
    """All clients are asked in every round."""

    def __call__(self, clients: Sequence[int], state: State, generator: torch.Generator) -> Collection[int]:
        return clients


@dataclass(frozen=True)
class Uniform:
    """So many clients, each round anew, each set as likely as any other (McMahan et al., AISTATS 2017).

    >>> state = State(0, {}, {}, {}, {}, {})
    >>> len(Uniform(2)(range(5), state, torch.Generator()))
    2
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}.")

    def __call__(self, clients: Sequence[int], state: State, generator: torch.Generator) -> Collection[int]:
        if self.count > len(clients):
            raise HoldfastError(f"selection: {self.count} of {len(clients)} clients cannot be asked; ask fewer.")
        return [clients[place] for place in torch.randperm(len(clients), generator=generator)[: self.count].tolist()]


SELECTIONS: dict[str, type] = {
    "all": Everyone,
    "uniform": Uniform,
    "size": BySize,
    "power-of-choice": PowerOfChoice,
    "tiers": Tiers,
    "k-centres": KCentres,
}


def select(selection: Selection, clients: Sequence[int], state: State, seed: int) -> dict[int, str]:
    """The clients that are asked this round, in their order, and why, if the selection says so.

    An answer that names nobody, or a stranger, is refused.
    """
    answer = selection(clients, state, rng(seed, state.round, -1, "selection"))
    chosen = list(map(index, answer))
    if strangers := [client for client in chosen if client not in clients]:
        raise HoldfastError(f"selection: {strangers[0]} is no client of this experiment; answer with those given.")
    if not chosen:
        raise HoldfastError(f"selection: nobody is asked in round {state.round + 1}; answer with at least one client.")
    why = answer if isinstance(answer, Mapping) else {}
    return {client: str(why.get(client, "")) for client in sorted(set(chosen))}


def remembered(
    selection: Selection,
    before: State,
    after: State,
    clients: Sequence[int],
    asked: Mapping[int, str],
    updates: Sequence[Update],
    replies: Sequence[Reply],
) -> Tensors:
    """What a selection knows after a round: who was asked, and what those told whose update counted."""
    if not isinstance(selection, Informed):
        return {}
    counted = {update.client: update for update in updates if after.accepted.get(update.client) == before.round}
    heard = [
        Heard(counted[reply.client], reply.scalars.get("loss"), reply.took)
        for reply in replies
        if reply.client in counted
    ]
    return selection.remember(before, clients, asked, heard)
