"""Where training starts: `start = "weights.safetensors"`, in place of weights by chance."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from holdfast.core.errors import HoldfastError, brief, nearest
from holdfast.core.files import load_tensors
from holdfast.core.types import Tensors
from holdfast.core.validate import misfit
from holdfast.models.networks import buffers_of, weights_from


def first_tensors(model: nn.Module, start: str | None) -> tuple[Tensors, Tensors]:
    """The first weights and buffers: the model's own, and in their place those of the file.

    The model is not used any more. The file may hold a part only (a backbone, say), but nothing that it does not have.
    """
    weights, buffers = weights_from(model), buffers_of(model)
    if start is None:
        return weights, buffers
    try:
        found = load_tensors(Path(start).read_bytes(), start)
    except OSError as error:
        raise HoldfastError(f"start: cannot read {start}: {error.strerror}.") from None
    wanted = {**weights, **buffers}
    if not found:
        raise HoldfastError(f"start: {start} holds no weights.")
    for name in found:
        if name not in wanted:
            raise HoldfastError(f"start: the model has no {brief(name)}, which {start} holds; {nearest(name, wanted)}")
    if fault := misfit(found, {name: wanted[name] for name in found}):
        raise HoldfastError(f"start: {start} does not fit the model: {fault}.")
    return (
        {name: found.get(name, weight).contiguous() for name, weight in weights.items()},
        {name: found.get(name, buffer).contiguous() for name, buffer in buffers.items()},
    )
