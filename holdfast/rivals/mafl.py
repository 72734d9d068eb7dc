"""MAFL: averages of a few records of each client, for all clients (Yoon et al., ICLR 2021).

A client sends the means of `spd` feature vectors and of their labels, once, as FedDig's digests; the moderator hands
all of them to all clients, whose algorithm learns from them: `fedmix`, `naivemix` or `classweights`. Nothing stands
in, and the moderator takes no step. The paper averages raw images; here they are public features, which
the model reads.

Averages of few records tell of them, and here the other members read them too: there is no promise of privacy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from holdfast.absence.base import NoStandIns
from holdfast.absence.feddig import FedDig
from holdfast.context import Context
from holdfast.core.errors import HoldfastError
from holdfast.core.types import State, Tensors, Update

NAME = "mafl"


@dataclass(frozen=True)
class Mafl(FedDig):
    """Averages of a few records, from all clients to all clients, for algorithms that learn from them."""

    strategy: Literal["across", "within"] = "across"
    bits: Literal["32", "16", "8", "6", "4"] = "32"
    printed: bool = True
    server_epochs: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode != "paper" or self.server_epochs or self.epsilon is not None:
            raise ValueError("averages go as they are: leave out mode, epsilon and server_epochs.")

    def begin(self, context: Context) -> Tensors:
        if context.algorithm.needs_absence != NAME:
            raise HoldfastError(
                f"absence {NAME!r} serves algorithms that learn from averages; say algorithm = 'fedmix', 'naivemix' "
                "or 'classweights'."
            )
        if context.bench.producer is not None:
            raise HoldfastError(f"absence {NAME!r} averages features; choose model = 'features'.")
        return super().begin(context)

    def stand_ins(self, state: State, asked: Collection[int], context: Context) -> NoStandIns:
        return NoStandIns()

    def server_step(self, before: State, after: State, updates: Sequence[Update], context: Context) -> State:
        """Not a step: what clients are to be told of each other."""
        holders = sorted(after.digests)
        if not holders or all(before.digests.get(client) is after.digests[client] for client in holders):
            return after
        found = self.samples_for(context, after, holders)
        counts = torch.stack([one.labels.mean(0) * one.samples for one in found]).sum(0)
        told = {
            "averages": torch.cat([one.features for one in found]),
            "labels": torch.cat([one.labels for one in found]),
            "counts": counts,
        }
        return replace(after, algorithm={**after.algorithm, **told})
