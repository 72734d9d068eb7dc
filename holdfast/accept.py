"""Updates are checked before they count: names, shapes, types, finite values, norm. A bad one is refused and named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from holdfast.core import Reply, State, Tensors, Update, unpack

MOST = 2**48  # samples or steps


def accept(replies: Sequence[Reply], state: State, max_norm: float | None) -> tuple[list[Update], dict[int, str]]:
    """Updates that are well formed, and the clients whose update is refused, with the reason."""
    updates, refused = [], {}
    expected = {"delta": state.model, "buffers": state.buffers}
    for reply in replies:
        fault = find_fault(reply, expected, max_norm)
        if fault:
            refused[reply.client] = fault
            continue
        delta, buffers = (unpack(reply.tensors, group) for group in expected)
        samples, steps = reply.scalars["samples"], reply.scalars["steps"]
        updates.append(Update(reply.client, delta, samples, steps, buffers))
    return updates, refused


def find_fault(reply: Reply, expected: Mapping[str, Tensors], max_norm: float | None) -> str | None:
    """The first thing wrong with an update, or None: names, shapes, types, finite values, norm."""
    for count in ("samples", "steps"):
        value = reply.scalars.get(count)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            return f"{count} is {brief(value)}, not a positive whole number"
        if value > MOST:  # beyond it, arithmetic with it would raise an error here, at the moderator
            return f"{count} is above {MOST}"
    if not isinstance(loss := reply.scalars.get("loss", 0.0), float):
        return f"loss is {brief(loss)}, not a number"
    for name in reply.tensors:
        if name.partition("/")[0] not in (*expected, "digest"):  # a digest is checked by whoever asked for it
            return f"{brief(name)} is not part of the model"
    for group, wanted in expected.items():
        if fault := misfit(unpack(reply.tensors, group), wanted):
            return f"{group}/{fault}"
    return too_long(unpack(reply.tensors, "delta"), max_norm)


def misfit(got: Tensors, wanted: Tensors) -> str | None:
    """The first tensor that is not as wanted, and in what: name, shape, type, finite values."""
    if got.keys() != wanted.keys():
        odd = sorted(got.keys() ^ wanted.keys())[0]
        return f"{odd} is {'missing' if odd in wanted else 'not part of the model'}"
    for name, tensor in got.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            return f"{name} is {describe(tensor)}, expected {describe(wanted[name])}"
    if not all_finite(got):
        return f"{next(n for n, t in got.items() if not t.isfinite().all())} is not finite"
    return None


def too_long(delta: Tensors, max_norm: float | None) -> str | None:
    if max_norm is not None and (norm := norm_of(delta)) > max_norm:
        return f"its norm {norm:.3g} is above the bound {max_norm:.3g}"
    return None


def all_finite(tensors: Tensors) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def norm_of(tensors: Tensors) -> float:
    """The Euclidean norm of all the tensors as one vector."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors.values()))


def describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def brief(value: object) -> str:
    """A stranger's value, to be read in one line."""
    text = (
        f"a whole number of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > MOST else repr(value)
    )
    return text if len(text) <= 40 else text[:40] + "..."
