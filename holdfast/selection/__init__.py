"""Who is asked to train in a round: a choice of its own, apart from who is away (scenarios.py).

A selection is called as selection(clients, state, generator) and answers with the clients to ask. The generator is
drawn from the experiment's seed and the round, so a resumed run asks the same clients. A user's own is any such
function or class, named by import path. A client that is not asked is not absent: nothing stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import index

import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import rng
from holdfast.core.types import State

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


SELECTIONS: dict[str, type] = {"all": Everyone, "uniform": Uniform}


def select(selection: Selection, clients: Sequence[int], state: State, seed: int) -> list[int]:
    """The clients that are asked this round, in their order; an answer that names nobody, or a stranger, is refused."""
    chosen = list(map(index, selection(clients, state, rng(seed, state.round, -1, "selection"))))
    if strangers := [client for client in chosen if client not in clients]:
        raise HoldfastError(f"selection: {strangers[0]} is no client of this experiment; answer with those given.")
    if not chosen:
        raise HoldfastError(f"selection: nobody is asked in round {state.round + 1}; answer with at least one client.")
    return sorted(set(chosen))
