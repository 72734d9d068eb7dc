"""Who is blamed for a round that harms: witnesses compare the average with that without each member (floor.py, 5)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from holdfast.algorithms.fedavg import average
from holdfast.core.tensors import unflat
from holdfast.core.types import State, Tensors, pack
from holdfast.trust.base import Judgement
from holdfast.trust.panel import ALL, PanelRequest
from holdfast.trust.robust.merging import stacked
from holdfast.trust.words import Found, Words, believed, compare


def left_out(before: State, judged: Judgement) -> PanelRequest:
    """The average of the updates that count, and that without each member in turn."""
    rows, weights = stacked(judged.updates).double(), torch.tensor(judged.weights, dtype=torch.float64)
    total = weights @ rows
    shifts = {ALL: average(judged.updates, judged.weights)}  # as FedAvg has it: witnesses know the new model's scores
    for update, row, weight in zip(judged.updates, rows, judged.weights, strict=True):
        if 0 < weight < 1:
            rest = (total - weight * row) / (1 - weight)
            shifts[str(update.client)] = unflat(rest.to(torch.float32), update.delta)
    packed: Tensors = {}
    for name, shift in shifts.items():
        packed |= pack(**{name: {n: tensor + shift[n] if n in shift else tensor for n, tensor in before.model.items()}})
    return PanelRequest(packed, {f"{name}/{n}": tensor for name in shifts for n, tensor in before.buffers.items()})


def each_left_out(words: Words) -> dict[int, Found]:
    """What the others say of the round without each member, as far as their words go with the others'."""
    clients = sorted({int(name) for told in words.values() for name in told if name != ALL})
    belief = believed(words, ALL, own=False) if words else {}
    found = {i: compare({j: told for j, told in words.items() if j != i}, str(i), ALL, belief) for i in clients}
    return {i: one for i, one in found.items() if one is not None}


def blamed(replayed: Mapping[int, Found]) -> list[int]:
    """Whom it is better to leave out, the most blamed first, at most half."""
    gains = {i: found.change for i, found in replayed.items() if found.change > found.error}
    return sorted(gains, key=lambda i: -gains[i])[: len(replayed) // 2]
