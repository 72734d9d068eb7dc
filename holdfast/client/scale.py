"""The job `scale`: sums of a client's columns, from which mean and deviation over all members follow.

Of each number column, as the public schema scales it to [-1, 1]: how many cells are missing (where they may be), the
sum of the others, and the sum of their squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from holdfast.client.client import Client
from holdfast.context import Context
from holdfast.core.errors import brief
from holdfast.core.failures import Refusal
from holdfast.core.types import Reply
from holdfast.core.validate import bad_count
from holdfast.data.task import Samples
from holdfast.jobs import Job, is_number, register
from holdfast.models.scaling import Columns, scaled_columns


@dataclass(frozen=True)
class ScaleRequest:
    """Nothing is sent: which columns there are stands in the schema."""


@dataclass(frozen=True)
class ScaleReply:
    """Missing cells of the columns that may have some, then all columns' sums, then all their sums of squares."""

    scaling: list[float]
    samples: int


class Scale(Job[Client, ScaleRequest, ScaleReply]):
    name, request, reply = "scale", ScaleRequest, ScaleReply

    def due(self, round: int, client: Client, context: Context) -> bool:
        return round == 0 and scaled_columns(context.bench.model) is not None

    def records(self, client: Client, round: int) -> int:
        return len(client.train)

    def perform(self, client: Client, asked: ScaleRequest, round: int) -> ScaleReply:
        columns = scaled_columns(client.model)
        if columns is None:
            raise Refusal("job", "a 'scale' was asked, but the experiment scales by the schema alone.")
        return ScaleReply(sums_of(client.train, columns), len(client.train))

    def fault(self, reply: Reply, context: Context) -> str | None:
        told, columns = self.read(reply), scaled_columns(context.bench.model)
        if odd := bad_count(reply, "samples"):
            return odd
        if columns is None or len(told.scaling) != columns.width_of_sums:
            return f"its scaling has {len(told.scaling)} sums, not those of the schema's columns"
        if not all(is_number(one) and math.isfinite(one) for one in told.scaling):
            return f"its scaling has impossible sums, {brief(told.scaling)}"
        return None


SCALE = register(Scale())


def sums_of(samples: Samples, columns: Columns) -> list[float]:
    """A client's sums; where records have weights, each counts by its own."""
    x = samples.inputs[0].double() / columns.unit
    weights = torch.ones(len(x), dtype=torch.float64) if samples.weights is None else samples.weights.double()
    missing = x[:, [flag for flag in columns.flags if flag is not None]]
    numbers = x[:, list(columns.numbers)].clamp(-1.0, 1.0)  # 0 where the cell is missing
    return (weights @ torch.cat([missing, numbers, numbers.square()], 1)).tolist()
