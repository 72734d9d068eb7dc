"""How long and how fast FedDig's server step learns; chosen on validation seeds, and in a run by rows left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from holdfast.core.randomness import rng
from holdfast.data.task import Samples
from holdfast.learning.device import batch_on
from holdfast.learning.loop import train
from holdfast.learning.objective import Objective
from holdfast.learning.settings import Learning

WARM = 10  # epochs of a server step on new digests alone, at most
TRIED = (1, 2, 5, WARM)
LEFT_OUT = 5  # one row of so many
TIMES = 2  # the clients' batch and learning rate, where no digest is new and rows are enough: fewer steps, as good
ENOUGH = 16  # of the clients' batches: with few rows the larger steps swing, each round further than the last
GENTLE = 0.3  # of the clients' learning rate, for samples drawn from moments: their classes blur into each other


def server_learning(
    learning: Learning, epochs: int, new: float, rows: int = 0, printed: bool = False, drawn: bool = False
) -> Learning:
    """How the server step learns, from how the clients do in this round.

    new: the share of records new to it; rows: of all digests; drawn: whether these are samples drawn from moments.

    >>> [(one.lr, one.batch_size) for rows in (512, 511) for one in [server_learning(Learning(), 1, 0.0, rows)]]
    [(0.1, 64), (0.05, 32)]
    """
    lr = learning.lr * (GENTLE if drawn and not new and not printed else 1)
    times = 1 if new or printed or drawn or rows < ENOUGH * learning.batch_size else TIMES
    epochs = epochs if printed else max(epochs, round(WARM * new))
    return replace(learning, local_steps=None, lr=times * lr, epochs=epochs, batch_size=times * learning.batch_size)


def warm_epochs(model: nn.Module, samples: Samples, learning: Learning, objective: Objective, seed: int) -> int:
    """For how many epochs to learn from new digests: as many as make the loss least on rows left out, a fifth."""
    order = torch.randperm(len(samples), generator=rng(seed, -1, -1, "rows left out"))
    out, rest = samples.take(order[: len(order) // LEFT_OUT]), samples.take(order[len(order) // LEFT_OUT :])
    if not len(out):
        return WARM
    begin = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    losses: dict[int, float] = {}
    for epochs in TRIED:
        chance = rng(seed, -1, -1, "warm epochs")
        train(model, rest, server_learning(learning, 1, epochs / WARM), chance, objective, falling=True)
        with torch.no_grad():
            model.eval()
            losses[epochs] = float(objective(model, *batch_on(model, out, torch.arange(len(out)))).mean())
        model.load_state_dict(begin)
    return min(losses, key=lambda epochs: losses[epochs])


def share_of(some: Collection[Any], records: Mapping[Any, int]) -> float:
    """The share of all records that some clients hold.

    >>> share_of(["b"], {"a": 30, "b": 10})
    0.25
    """
    return sum(records[name] for name in some) / sum(records.values())
