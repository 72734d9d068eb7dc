"""Updates as whole numbers on a public grid of 2^20 steps to 1, so that their weighted sum is exact.

    vector = w (1, told, told loss, q),   q = round(2^20 delta),   told = 1 if the member tells its loss, else 0

w are the member's records, or 1 where all count alike. An update longer than `clip` is shortened first, so that every
number of a total over W records fits into (W (clip 2^20 + 1)).bit_length() + 1 bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.core.failures import Refusal
from holdfast.core.tensors import norm_of
from holdfast.core.types import Tensors

STEPS = 1 << 20
ABOUT = 3  # numbers before those of the update


@dataclass(frozen=True)
class Mean:
    """What a total of updates says: their weighted mean, the weight of all, and the mean loss of those who tell it."""

    delta: Tensors
    weight: int
    loss: float | None


def as_whole(delta: Tensors, weight: int, loss: float | None, clip: float) -> NDArray[np.int64]:
    """A member's vector; an update that is not finite is refused.

    >>> as_whole({"w": torch.tensor([3.0, -4.0])}, 2, None, clip=2.5).tolist()
    [2, 0, 0, 3145728, -4194304]
    """
    length = norm_of(delta)
    if not math.isfinite(length):
        raise Refusal("internal", "secure sum: this client's training diverged, so its update is no number.")
    flat = torch.cat([delta[name].reshape(-1).double() for name in sorted(delta)]).cpu().numpy()
    values = np.rint(flat * (STEPS * min(1.0, clip / max(length, 1e-300)))).astype(np.int64)
    told = loss is not None and math.isfinite(loss)
    shown = round(STEPS * min(max(loss or 0.0, -clip), clip)) if told else 0
    return weight * np.concatenate([[1, int(told), shown], values]).astype(np.int64)


def layout_of(numbers: int, clip: float, records: int, *_: int) -> list[tuple[int, int]]:
    """Bits for each number of a total over so many records, whoever has them."""
    most = records * (math.ceil(clip * STEPS) + 1)
    bits = most.bit_length() + 1
    if not 0 < bits <= 64:
        raise Refusal("sum", f"secure sum: {records} records are more than a sum of updates has room for.")
    return [(ABOUT, bits), (numbers, bits)]


def mean_of(total: NDArray[np.int64], like: Mapping[str, torch.Tensor], weight: int, clip: float) -> Mean:
    """The weighted mean in a total; one that honest members' updates cannot have is refused."""
    counted, told, loss = (int(number) for number in total[:ABOUT])
    if counted != weight:
        raise HoldfastError("secure sum: the total has another weight than its members: one of them spoilt it.")
    flat = torch.from_numpy(total[ABOUT:] / (weight * STEPS))
    found, start = {}, 0
    for name in sorted(like):
        count = like[name].numel()
        found[name] = flat[start : start + count].reshape(like[name].shape).to(like[name])
        start += count
    if norm_of(found) > clip * 1.001 + math.sqrt(len(flat)) / STEPS:
        raise HoldfastError(f"secure sum: the mean update is longer than clip = {clip:g}: a member spoilt it.")
    return Mean(found, counted, loss / (told * STEPS) if 0 < told <= weight else None)
