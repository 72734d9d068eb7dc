"""MIFA: the last update of whoever is missing counts again (Gu et al., NeurIPS 2021), here with decay.

    G_i = (w_i - w) / lr         of client i's last round t_i, by the lr of that round; 0 before its first
    w  <- w + lr_t sum_i a_i decay^(t - t_i) G_i        over all clients, present (t_i = t) or not

decay = 1 and a_i = 1/N (trust = "uniform") is MIFA as printed, in the variant that does not wait until all have been
heard. A replayed update is a stand-in: it passes the trust rule as any other. With decay 1 and nobody left, w moves by
the same vector in every round, without end; the sum of 1 + d + d^2 + ... bounds that to 1 / (1 - d) of it.

Public code: the division by lr is in the authors' (hmgxr128/MIFA_code); copies that replay w_i - w itself replay an old
update at the old rate, which under a falling rate is too long.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from holdfast.absence.base import AbsencePolicy, NoStandIns
from holdfast.algorithms.fedavg import shared
from holdfast.context import Context
from holdfast.core.errors import HoldfastError
from holdfast.core.types import State, Tensors, Update, unpack
from holdfast.models.networks import weights_of


@dataclass(frozen=True)
class Memory(AbsencePolicy):
    """A missing client's last update counts again, less in every round (MIFA with decay 1)."""

    decay: float = 1.0  # of a replayed update, for each round since it was made

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay must lie between 0 and 1, got {self.decay}.")

    def begin(self, context: Context) -> Tensors:
        algorithm = context.algorithm
        if algorithm.extra(shared(algorithm, weights_of(context.bench.model))):
            raise HoldfastError(
                f"absence 'memory' replays updates alone, and {type(algorithm).__name__} needs more with each; "
                "choose another algorithm."
            )
        return {}

    def stand_ins(self, state: State, asked: Collection[int], context: Context) -> NoStandIns:
        return Replayed(self, state, asked, context)

    def server_step(self, before: State, after: State, updates: Sequence[Update], context: Context) -> State:
        """Not a step: what each client that counted sent is kept."""
        lr = context.learning_in(before.round).lr
        kept = {
            f"memory/{update.client}/{name}": change / lr
            for update in updates
            if not update.synthetic and after.accepted.get(update.client) == before.round
            for name, change in update.delta.items()
        }
        return replace(after, absence={**after.absence, **kept})


@dataclass(frozen=True)
class Replayed(NoStandIns):
    """The last updates of those who are missing, or were not asked."""

    policy: Memory
    state: State
    asked: Collection[int]
    context: Context

    def result(self, absent: Collection[int], received: Sequence[Update]) -> list[Update]:
        state, context = self.state, self.context
        claims = {**state.claims, **{update.client: update.samples for update in received}}
        if not claims:  # nobody was ever heard: there is nothing to count
            return []
        usual = round(statistics.fmean(claims.values()))  # of who was never heard, whose update is 0
        nothing = {name: torch.zeros_like(weight) for name, weight in shared(context.algorithm, state.model).items()}
        lr = context.learning_in(state.round).lr
        updates = []
        for client in sorted({*absent, *(c for c in range(context.clients) if c not in self.asked)}):
            age = state.round - state.accepted.get(client, state.round)
            known = unpack(state.absence, f"memory/{client}")
            delta = {name: lr * self.policy.decay**age * change for name, change in known.items()}
            samples = context.sizes.counted(claims).get(client, usual)
            updates.append(Update(client, delta or nothing, samples, context.steps(samples), synthetic=True))
        return updates
