"""Between updates with names and the rules' stacked vectors: stack, cut, shorten, merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from holdfast.core.rows import Aggregate
from holdfast.core.tensors import unflat
from holdfast.core.types import Tensors, Update, weighted_sum
from holdfast.trust.base import Judgement


def stacked(updates: Sequence[Update]) -> Tensor:
    """The updates as rows (n, d)."""
    names = list(updates[0].delta)
    return torch.cat([update.delta[name].flatten() for update in updates for name in names]).view(len(updates), -1)


def shortened(update: Update, factor: float) -> Update:
    """The update times a factor; as it is if that is one."""
    if factor == 1.0:
        return update
    return replace(update, delta={name: tensor * factor for name, tensor in update.delta.items()})


def average_buffers(updates: Sequence[Update], weights: Sequence[float], buffers: Tensors) -> Tensors:
    """Buffers are averaged with the updates' weights; counters, being whole numbers, take the lower median."""
    real = [(update.buffers, weight) for update, weight in zip(updates, weights, strict=True) if update.buffers]
    total = sum(weight for _, weight in real)
    if total <= 0 or not buffers:
        return buffers
    floats = [{n: t for n, t in values.items() if t.is_floating_point()} for values, _ in real]
    mean = weighted_sum(floats, [weight / total for _, weight in real])
    return {n: mean[n] if n in mean else lower_median([v[n] for v, _ in real]) for n in buffers}


def lower_median(values: Sequence[Tensor]) -> Tensor:
    """In each place; of yes and no the more frequent one.

    >>> lower_median([torch.tensor(True), torch.tensor(False), torch.tensor(True)])
    tensor(True)
    """
    stack = torch.stack(list(values))
    if stack.dtype is torch.bool:  # which torch has no median of
        return stack.byte().median(0).values.bool()
    return stack.median(0).values


def middle_buffers(updates: Sequence[Update]) -> Tensors:
    """Buffers (of normalisation layers) by the lower median of each value: nobody can pull it far."""
    buffered = [update.buffers for update in updates if update.buffers]
    return {name: lower_median([b[name] for b in buffered]) for name in (buffered or [{}])[0]}


def judge_merged(
    updates: Sequence[Update], found: Aggregate, notes: Sequence[str] = (), clients: Sequence[int] | None = None
) -> Judgement:
    """One update in place of all, as often as there were updates: FedDyn counts them.

    `clients` says whose the aggregated rows are, where they are not the updates'.
    """
    steps = sorted(update.steps for update in updates)[len(updates) // 2]
    delta = unflat(found.vector, updates[0].delta)
    one = Update(-1, delta, sum(update.samples for update in updates), steps, middle_buffers(updates))
    n, total = len(updates), float(found.weights.sum())
    shares = (found.weights / total if total > 0 else found.weights).tolist()
    whose = [update.client for update in updates] if clients is None else clients
    say = dict(zip(whose, shares, strict=True))
    return Judgement([one] * n, [1 / n] * n, say, notes=notes)


def judge_weighed(updates: Sequence[Update], masses: Sequence[float], notes: Sequence[str] = ()) -> Judgement:
    """The updates as they are, with weights in proportion to the masses; those without weight count as not sent."""
    total = sum(masses)
    weights = [mass / total for mass in masses]
    say = {update.client: weight for update, weight in zip(updates, weights, strict=True)}
    return Judgement(updates, weights, say, notes=notes)
