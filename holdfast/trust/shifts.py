"""What a search for backdoors shifts: records, or what a layer reads of them; and the odds in what a model says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.learning.device import outputs
from holdfast.trust.measures import has_hooks

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Read:
    """What is shifted, a row of real numbers for each record: the records themselves, or what a layer reads of them."""

    layer: nn.Module | None
    span: Tensor  # of the rows: orthonormal columns; at most half as many as a row has numbers, those that hold most
    reach: float  # how far a shift goes
    rows: Tensor
    rest: nn.Module | None = None  # of the network, from the layer on, where it can be told

    @classmethod
    def of(cls, rows: Tensor, layer: nn.Module | None = None, rest: nn.Module | None = None) -> Read:
        most = min(len(rows), rows.shape[1] // 2)
        span = torch.linalg.svd(rows, full_matrices=False).Vh[:most].T
        spread = float((rows - rows.mean(0)).norm(dim=1).mean()) if rows.numel() else 0.0
        return cls(layer, span, spread, rows, rest)

    def says(self, model: nn.Module, inputs: Inputs, places: Tensor) -> Callable[[Tensor], Tensor]:
        """From shifts of the rows of records at these places to what the model says then."""
        rest = self.rest
        if rest is not None:
            rows = self.rows[places]
            return lambda shifts: outputs(rest, rows + shifts)
        plain = tuple(tensor[places] for tensor in inputs)
        return lambda shifts: self.outputs(model, plain, shifts)

    def outputs(self, model: nn.Module, inputs: Inputs, shifts: Tensor) -> Tensor:
        """What the model says of inputs whose rows are shifted."""
        if self.layer is None:
            return outputs(model, *moved_by(inputs, shifts))
        with shifted(self.layer, shifts):
            return outputs(model, *inputs)


def what_is_read(model: nn.Module, inputs: Inputs) -> list[Read]:
    """The records as rows, and what the first full layer reads, unless there is no other layer before it."""
    rows = torch.cat([real(tensor).reshape(len(tensor), -1) for tensor in inputs], 1)
    order: list[tuple[nn.Module, Tensor]] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, given: order.append((module, given[0])))
        for module in model.modules()
        if next(module.parameters(recurse=False), None) is not None
    ]
    try:
        with torch.no_grad():
            outputs(model, *inputs)
    finally:
        for hook in hooks:
            hook.remove()
    full = [(layer, read) for layer, read in order if isinstance(layer, nn.Linear) and read.dim() == 2]
    hidden = [
        Read.of(read.float().cpu(), layer, rest_from(layer, model))
        for layer, read in full[:1]
        if layer is not order[0][0]
    ]
    return [read for read in (Read.of(rows), *hidden) if read.reach > 0] if rows.numel() else []


def rest_from(layer: nn.Module, model: nn.Module) -> nn.Module | None:
    """What of a network comes after what this layer reads, if it is one of layers that come one after the other."""
    if type(model) is not nn.Sequential or has_hooks(model) or [*model].count(layer) != 1:
        return None
    return model[[*model].index(layer) :]


@contextmanager
def shifted(layer: nn.Module, shifts: Tensor) -> Iterator[None]:
    """Meanwhile what a layer reads is shifted, each row by its own."""
    hook = layer.register_forward_pre_hook(lambda layer, given: (given[0] + shifts.to(given[0]), *given[1:]))
    try:
        yield
    finally:
        hook.remove()


def real(tensor: Tensor) -> Tensor:
    """What of a model's input can be shifted: whole numbers, as of texts, cannot."""
    return tensor if tensor.is_floating_point() else tensor.new_zeros(len(tensor), 0, dtype=torch.float32)


def moved_by(inputs: Inputs, shifts: Tensor) -> Inputs:
    """Inputs whose real numbers are shifted, each by its row.

    >>> moved_by((torch.tensor([[1.0, 2.0]]), torch.tensor([[7]])), torch.tensor([[0.5, -1.0]]))
    (tensor([[1.5000, 1.0000]]), tensor([[7]]))
    """
    parts = shifts.split([real(tensor)[0].numel() for tensor in inputs], 1)
    return tuple(
        tensor + part.view_as(tensor) if part.numel() else tensor for tensor, part in zip(inputs, parts, strict=True)
    )


def odds(output: Tensor, classes: Tensor) -> Tensor:
    """The log-odds of a class for each output.

    >>> odds(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), torch.tensor([1, 0]))
    tensor([2., 0.])
    """
    output, own = output.float(), classes[:, None]
    return output.gather(1, own).squeeze(1) - output.scatter(1, own, -torch.inf).logsumexp(1)
