"""What a final model looks like on the moderator's test set: the figures of its kind, as numbers in `curves.json`.

Two classes, labels   ROC curve; of two classes also the calibration: what is told against what comes true
regression, count     residuals: actual minus predicted over predicted, as counts in cells, no record by itself
survival, hazards     Kaplan-Meier curves of the thirds with the lowest, middle and highest predicted risk
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError, plain
from holdfast.core.types import State
from holdfast.data.class_metrics import confidence
from holdfast.data.contract import Kind
from holdfast.data.kinds import Classes, Counts, Labels, Regression, Survival
from holdfast.data.ranking_metrics import area, columns
from holdfast.data.survival import kaplan_meier, risk_of
from holdfast.learning.loop import outputs_of
from holdfast.models.networks import fill
from holdfast.runs.plan import Plan

Curves = dict[str, Any]
POINTS = 200  # of a curve
BINS, CELLS = 10, 24  # of the calibration; of the residuals, each way
MOST_LABELS = 6  # curves in one figure
GROUPS = ("lowest risk", "middle risk", "highest risk")
NUMBERS = {"roc": ("x", "y"), "calibration": ("x", "y", "count"), "survival": ("x", "y"), "residuals": ("x", "y")}


def draw_curves(plan: Plan, state: State) -> bytes:
    """The figures of a run's final model, as its folder keeps them; empty where the moderator has no test set."""
    found: Curves = {}
    if len(plan.task.test):
        model, test = plan.model(), plan.prepare(plan.task.test)
        fill(model, plan.method.absence.model_of(state), state.buffers)
        output = outputs_of(model, test)
        found = curves_of(plan.task.kind, output, test.labels, plan.task.class_names) if output.isfinite().all() else {}
    return json.dumps(found, allow_nan=False).encode()


def curves_of(kind: Kind, output: Tensor, labels: Tensor, names: tuple[str, ...]) -> Curves:
    """The figures of a kind; none of another kind, nor of three and more classes."""
    if isinstance(kind, Classes) and output.shape[1] == 2 and labels.ndim == 1:
        [(scores, true)] = columns(output, labels, several=False)
        return {"roc": roc(names[1], scores, true), "calibration": [calibration(output, labels)]}
    if isinstance(kind, Labels):
        each = zip(names, columns(output, labels, several=True), strict=True)
        return {"roc": [line for name, part in list(each)[:MOST_LABELS] for line in roc(name, *part)]}
    if isinstance(kind, Regression | Counts):
        return {"residuals": [residuals(kind.readout(output.double())[:, 0], labels[:, 0].double())]}
    if isinstance(kind, Survival):
        return {"survival": by_risk(risk_of(output), labels)}
    return {}


def roc(name: str, scores: Tensor, true: Tensor) -> list[Curves]:
    """Of each threshold the share of negatives above it (x) and of positives (y); none where one of them is missing.

    >>> roc("ill", torch.tensor([3.0, 2.0, 1.0]), torch.tensor([True, False, True]))[0]["y"]
    [0.0, 0.5, 0.5, 1.0]
    """
    if not true.any() or true.all():
        return []
    order = scores.argsort(descending=True, stable=True)
    _, counts = scores[order].unique_consecutive(return_counts=True)
    last = counts.cumsum(0) - 1  # equal scores are one step
    x, y = (side[order].double().cumsum(0)[last] / side.sum() for side in (~true, true))
    at = thinned(len(last))
    return [{"name": name, "value": area(scores, true), "x": [0.0, *x[at].tolist()], "y": [0.0, *y[at].tolist()]}]


def calibration(output: Tensor, labels: Tensor) -> Curves:
    """Of each tenth of probability that has samples: the mean that is told (x), the share that came true (y)."""
    chance, true = confidence(output, labels)
    bins = (chance * BINS).long().clamp(0, BINS - 1)
    count, told, came = (torch.bincount(bins, w, BINS) for w in (torch.ones_like(chance), chance, true))
    there = count > 0
    return {
        "x": (told[there] / count[there]).tolist(),
        "y": (came[there] / count[there]).tolist(),
        "count": count[there].tolist(),
    }


def residuals(predicted: Tensor, actual: Tensor) -> Curves:
    """How many samples lie in each cell of predicted (x) and actual minus predicted (y), from the low corner."""
    off = actual - predicted
    wide = float(off.abs().max()) or 1.0
    low, high = float(predicted.min()), float(predicted.max())
    span = high - low or 1.0
    column = ((predicted - low) / span * CELLS).long().clamp(0, CELLS - 1)
    row = ((off + wide) / (2 * wide) * CELLS).long().clamp(0, CELLS - 1)
    counts = torch.bincount(row * CELLS + column, minlength=CELLS * CELLS).view(CELLS, CELLS)
    return {"x": [low, low + span], "y": [-wide, wide], "cells": counts.tolist()}


def by_risk(risk: Tensor, labels: Tensor) -> list[Curves]:
    """Kaplan-Meier curves of the samples in order of their risk, cut in three."""
    lines = []
    for name, part in zip(GROUPS, risk.argsort(stable=True).tensor_split(3), strict=True):
        if not len(part):
            continue
        times, shares = kaplan_meier(labels[part])
        at = thinned(len(times)).tolist()
        x = [0.0, *(times[i] for i in at), float(labels[part, 0].max())]
        y = [1.0, *(shares[i] for i in at), shares[-1] if times else 1.0]
        lines.append({"name": name, "samples": len(part), "value": float(labels[part, 1].sum()), "x": x, "y": y})
    return lines


def thinned(count: int) -> Tensor:
    """At most so many places of a curve, the last one among them."""
    return torch.arange(count) if count <= POINTS else torch.linspace(0, count - 1, POINTS).round().long()


def read_curves(table: Mapping[str, Any], where: str) -> Curves:
    """Curves of a folder that may be a stranger's: whatever is not what `draw_curves` writes is refused."""
    try:
        return {name: [_line(name, one) for one in _list(lines)] for name, lines in table.items() if NUMBERS[name]}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise HoldfastError(f"{where} is not what a run writes; remove it to see the report without curves.") from None


def _line(kind: str, line: Mapping[str, Any]) -> Curves:
    known = {*NUMBERS[kind], *({"cells"} if kind == "residuals" else ()), "name", "value", "samples"}
    if not set(line) <= known:
        raise ValueError
    found: Curves = {key: [_number(one) for one in _list(line[key])] for key in NUMBERS[kind]}
    if len({len(values) for values in found.values()}) != 1:
        raise ValueError
    if kind == "residuals":
        rows = [[_number(one) for one in _list(row)] for row in _list(line["cells"])]
        if len(rows) != CELLS or any(len(row) != CELLS for row in rows) or len(found["x"]) != 2:
            raise ValueError
        found["cells"] = rows
    if "name" in line:
        found["name"] = plain(str(line["name"]), 40)
    return found | {key: _number(line[key]) for key in ("value", "samples") if key in line}


def _list(value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > 2 * POINTS:
        raise TypeError
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(f"{value:.5g}")
