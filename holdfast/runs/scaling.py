"""scaling = "federated": mean and deviation of a table's columns over all members, from sums, before round 1.

The schema's public ranges come first, so that two members mean the same by a number and one record moves a sum by a
known amount; on top of them each number is standardised by a layer of the model (models/scaling.py), whose mean and
deviation travel, are saved and are used as its weights are, and are frozen as `groups` freezes weights.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from holdfast.client.scale import SCALE, ScaleReply, ScaleRequest
from holdfast.core.errors import HoldfastError
from holdfast.core.types import Absent, Federation, Reply, State, Tensors
from holdfast.data.task import Task
from holdfast.encoders import Encoder
from holdfast.method import Method
from holdfast.models.scaling import Columns, scaled_columns
from holdfast.runs.experiment import Experiment

FROZEN = ("scaling.*", 0.0)  # as `groups` says it
CONSTANT = 1e-6  # a variance, of a range from -1 to 1, below which a column is left as the schema has it


def columns_of(experiment: Experiment, task: Task, inputs: tuple[str, ...], encoder: Encoder | None) -> Columns:
    """Where the model reads the numbers of the task's table; refused where it reads no columns."""
    schema = task.schema
    if schema is None:
        raise HoldfastError(f"scaling: only a table has columns to scale, and {task.name} is none; leave it out.")
    if experiment.algorithm.name == "oneshot":
        raise HoldfastError("scaling: the heads of 'oneshot' are fitted in the schema's scale; leave it out.")
    if encoder is not None and (encoder.name != "table" or encoder.feature_shape != (len(schema.encoded),)):
        raise HoldfastError("scaling: mean and deviation are of columns; choose encoder = 'table', without fourier.")
    if len(inputs) != 1:
        raise HoldfastError(f"scaling: {experiment.model} reads more than the columns; choose another model.")
    found = [(column, start) for column, start in schema.places if column.kind != "category"]
    if not found:
        raise HoldfastError(f"scaling: {schema.name} has no column of numbers; leave it out.")
    flags = tuple(start + 1 if column.missing == "indicator" else None for column, start in found)
    unit = 1.0 if encoder is None else 1.0 / schema.longest
    return Columns(len(schema.encoded), tuple(start for _, start in found), flags, unit)


def learn_scaling(state: State, federation: Federation, method: Method) -> tuple[State, list[str]]:
    """The state with mean and deviation over those who answer, and notes on those who do not."""
    columns = scaled_columns(method.bench.model)
    if columns is None:
        return state, []
    answers = federation.ask([SCALE.message(client, state.round, ScaleRequest()) for client in federation.clients])
    told = {reply.client: SCALE.read(reply) for reply in answers if isinstance(reply, Reply)}
    silent = {reply.client: reply.reason for reply in answers if isinstance(reply, Absent)}
    notes = [f"mean and deviation are without {method.called(client)}: {why}" for client, why in silent.items()]
    if not told:
        raise HoldfastError(
            "scaling: no member told the sums of its columns"
            + (f" ({notes[0].rpartition('are ')[2]})" if notes else "")
            + "; leave out scaling, or see docs/tables.md for what a policy must allow."
        )
    counts = method.sizes.counted({client: one.samples for client, one in told.items()})
    scale = scale_of([(one, counts[client]) for client, one in told.items()], columns)
    return replace(state, model={**state.model, **scale}), notes


def scale_of(told: list[tuple[ScaleReply, int]], columns: Columns) -> Tensors:
    """Mean and deviation from all members' sums; sums that no records can have are brought to the nearest possible."""
    k, flagged = len(columns.numbers), columns.flagged
    total = np.zeros((3, k))
    for reply, counted in told:
        sums = np.array(reply.scaling) * (counted / reply.samples)  # of a claim that counts in part, a part
        present = np.full(k, float(counted))
        present[flagged] -= np.clip(sums[: len(flagged)], 0, counted)
        first = np.clip(sums[-2 * k : -k], -present, present)
        total += present, first, np.clip(sums[-k:], 0, present)
    present = np.maximum(total[0], 1e-9)
    mean = total[1] / present
    variance = total[2] / present - mean**2
    known = (variance > CONSTANT) & (total[0] > 0)
    found = {"mean": np.zeros(columns.width), "deviation": np.ones(columns.width)}
    for which, position in enumerate(columns.numbers):
        if known[which]:
            found["mean"][position] = mean[which] * columns.unit
            found["deviation"][position] = math.sqrt(variance[which])
    return {f"scaling.{name}": torch.from_numpy(value.astype(np.float32)) for name, value in found.items()}
