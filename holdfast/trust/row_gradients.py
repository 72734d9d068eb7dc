"""Sums of single records' gradients, without the gradients, where a network's layers know one record at a time.

Of record r a full layer reads x_r, and s_r is the gradient of r's value over what it says. Then r's gradient over the
layer's weights and bias is (s_r x_r', s_r), and

    <gradient of q, gradient of r> = <s_q, s_r> (<x_q, x_r> + 1)
    sum over r of a_r times r's gradient = (S' diag(a) X, S' a)

so that nothing as large as records times weights is made. Of convolutions and norms, whose weights are few, it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm, unfold

from holdfast.core.types import Tensors
from holdfast.learning.device import device_of
from holdfast.trust.measures import BY_ROWS, layered

PICTURES = (nn.Conv2d, nn.GroupNorm, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
AT_A_TIME = 16  # records of which a convolution's gradients are there at once

ValueOfEach = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) -> each record's value


def knows_rows(model: nn.Module) -> bool:
    """Whether a network is full layers, convolutions and norms of one record one after the other."""
    return layered(model, BY_ROWS + PICTURES) and all(
        layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        for layer in model.modules()
        if isinstance(layer, nn.Conv2d)
    )


@dataclass(frozen=True)
class Outer:
    """Of each record what a full layer reads, and the gradient over what it says."""

    read: Tensor
    said: Tensor
    bias: bool

    def products(self) -> Tensor:
        return (self.said @ self.said.T) * (self.read @ self.read.T + float(self.bias))

    def summed(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Over weights and bias, each row of `sums` times the records' gradients; most records are in few sums."""
        found = torch.empty(len(sums), self.said.shape[1], self.read.shape[1])
        for out, row in zip(found, sums, strict=True):
            own = row.nonzero().flatten()
            torch.mm((row[own, None] * self.said[own]).T, self.read[own], out=out)
        return found, sums @ self.said


@dataclass(frozen=True)
class Sums:
    """Sums of records' gradients, of full layers as they come about, of other layers as they are, stacked."""

    sums: Tensor  # (sums, records)
    full: dict[str, Outer]
    other: Tensors

    def products(self) -> tuple[Tensor, Tensor]:
        """The sums' inner products, and how long each would be at most, were its records' gradients parallel."""
        total = torch.zeros(len(self.sums), len(self.sums))
        inner = torch.zeros(self.sums.shape[1], self.sums.shape[1])
        for outer in self.full.values():
            inner += outer.products()
        for stack in self.other.values():
            rows = stack.reshape(len(stack), -1)
            total += rows @ rows.T
        lengths = self.sums.abs() @ inner.diagonal().clamp_min(0).sqrt() + total.diagonal().clamp_min(0).sqrt()
        return total + self.sums @ inner @ self.sums.T, lengths

    def combined(self, shares: Tensor) -> Tensors:
        """Each row of shares times the sums, stacked name by name."""
        found = {name: torch.tensordot(shares, stack, 1) for name, stack in self.other.items()}
        for name, outer in self.full.items():
            found[f"{name}.weight"], bias = outer.summed(shares @ self.sums)
            if outer.bias:
                found[f"{name}.bias"] = bias
        return found


def sums_of_gradients(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    values: ValueOfEach,
    sums: Tensor,
    moved: tuple[nn.Module, Tensor] | None = None,
) -> Sums:
    """Sums of records' gradients, each row of `sums` one; what a layer reads of the last records may be shifted."""
    read, said, x = dict[str, Tensor](), dict[str, Tensor](), inputs.to(device_of(model))
    with torch.enable_grad():
        for name, layer in model.named_children():
            if moved is not None and layer is moved[0]:
                shifts = moved[1].to(x)
                x = torch.cat([x[: -len(shifts)], x[-len(shifts) :] + shifts])
            before, x = x, layer(x)
            if next(layer.parameters(), None) is not None:
                read[name], said[name] = before.detach(), x
        signals = torch.autograd.grad(values(x.cpu(), labels).sum(), list(said.values()))
    full, other = dict[str, Outer](), dict[str, Tensor]()
    for (name, x), s in zip(read.items(), signals, strict=True):
        layer = model.get_submodule(name)
        if isinstance(layer, nn.Linear) and x.dim() == 2:
            full[name] = Outer(x.cpu(), s.cpu(), layer.bias is not None)
            continue
        for own, each in summed_by(layer, x, s, sums.to(x)).items():
            other[f"{name}.{own}"] = each.cpu()
    return Sums(sums, full, other)


def summed_by(layer: nn.Module, x: Tensor, s: Tensor, sums: Tensor) -> Tensors:
    """The sums of the gradients over a layer's weights, from what it reads and the gradients over what it says."""
    found = {name: weight.new_zeros(len(sums), weight.numel()) for name, weight in layer.named_parameters()}
    for start in range(0, len(x), AT_A_TIME):
        rows = slice(start, start + AT_A_TIME)
        for name, each in each_over(layer, x[rows], s[rows]).items():
            if name in found:
                found[name].addmm_(sums[:, rows], each.flatten(1))
    return {name: found[name].view(-1, *weight.shape) for name, weight in layer.named_parameters()}


def each_over(layer: nn.Module, x: Tensor, s: Tensor) -> Tensors:
    """Of each record the gradient over a layer's weights, and over its bias, whether it has one or not."""
    if isinstance(layer, nn.Linear):  # of several rows in each record
        x, s = x.flatten(1, -2), s.flatten(1, -2)
        return {"weight": s.mT @ x, "bias": s.sum(1)}
    if isinstance(layer, nn.GroupNorm):
        normed = group_norm(x, layer.num_groups, eps=layer.eps)
        return {"weight": (s * normed).flatten(2).sum(2), "bias": s.flatten(2).sum(2)}
    if not isinstance(layer, nn.Conv2d) or isinstance(layer.padding, str):
        raise TypeError(f"of {layer} no record's gradient is known; ask knows_rows first.")
    patches = unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return {"weight": s.flatten(2) @ patches.mT, "bias": s.flatten(2).sum(2)}
