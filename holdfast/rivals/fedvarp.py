"""FedVARP: what is known of the absent lessens the noise of who is there (Jhunjhunwala et al., UAI 2022).

    v   = sum_{i in S} a_i (D_i - y_i) + (1/N) sum_j y_j            S answered, of N; a_i = 1/|S| as printed
    w  <- w + v,    y_i <- D_i for i in S                           y_i = 0 before a client's first update

It equals MIFA when all answer. When nobody does, the round changes nothing, as in IBM/fedau's code; the printed formula
would move w by the mean of the y_j for ever. With one present client the first term is its whole update: noisy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from holdfast.algorithms.fedavg import FedAvg, add
from holdfast.core.types import Tensors, Update, pack, unpack, weighted_sum
from holdfast.learning.settings import Learning


@dataclass(frozen=True)
class FedVARP(FedAvg):
    """Updates corrected by each client's last one, whose mean over all clients is added.

    Client 0 sent 4 before and 6 now, client 1 sent 2 and is away: (6 - 4) + (4 + 2) / 2 = 5.

    >>> import torch
    >>> known = {"memory/0/w": torch.tensor([4.0]), "memory/1/w": torch.tensor([2.0])}
    >>> now = Update(0, {"w": torch.tensor([6.0])}, samples=1, steps=1)
    >>> model, kept = FedVARP().aggregate({"w": torch.tensor([0.0])}, [now], [1.0], known, 2, Learning())
    >>> model["w"], kept["memory/0/w"]
    (tensor([5.]), tensor([6.]))
    """

    weights: ClassVar[str] = "uniform"
    needs_each_update: ClassVar[str] = "keeps each"

    def aggregate(
        self,
        model: Tensors,
        updates: Sequence[Update],
        weights: Sequence[float],
        server: Tensors,
        clients: int,
        learning: Learning,
    ) -> tuple[Tensors, Tensors]:
        known = known_updates(server)
        fresh = weighted_sum([less(update.delta, known.get(update.client)) for update in updates], weights)
        found = add(model, fresh)
        for update in known.values():
            found = add(found, update, 1 / clients)
        return found, {**server, **kept(updates)}


def known_updates(server: Tensors) -> dict[int, Tensors]:
    """The last update of each client that was ever heard."""
    heard = sorted({int(name.split("/")[1]) for name in server if name.startswith("memory/")})
    return {client: unpack(server, f"memory/{client}") for client in heard}


def kept(updates: Sequence[Update]) -> Tensors:
    """These updates, as the moderator keeps them; who withdraws is forgotten by the name."""
    return pack(**{f"memory/{update.client}": update.delta for update in updates})


def less(delta: Tensors, known: Tensors | None, scale: float = 1.0) -> Tensors:
    """D_i - scale y_i."""
    return delta if known is None else add(delta, known, -scale)
