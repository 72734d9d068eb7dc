"""What digests can be solved for: scores of classes, or values, as a linear or quadratic function of the features, or
as a sum of bells around centres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.models.contract import Model, Shape

Form = Literal["linear", "quadratic", "cosine", "proportional", "kernel"]
CENTRES = 3072  # of bells


@dataclass(frozen=True)
class Head(Model):
    """One layer on the encoded features: linear, quadratic, the cosine to one direction of each class, proportional:
    one slope for all outputs, as for hazards that are higher by the same odds in every interval; or kernel: bells."""

    inputs: ClassVar[tuple[str, ...]] = ("features",)
    form: Form = "linear"

    def build(self, shape: Shape, outputs: int, features: Shape) -> nn.Module:
        width = int(torch.Size(features).numel())
        return Bells(width, outputs) if self.form == "kernel" else Scores(width, outputs, self.form)


class Scores(nn.Module):
    """linear: W z + b; quadratic: z' Q_c z + W z + b; cosine: b + s cos(V z, W_c), s being the length of W_c;
    proportional: w'z + b_c.

    >>> network = Scores(2, 3, "proportional")
    >>> sum(weight.numel() for weight in network.parameters()), network(torch.ones(4, 2)).shape
    (5, torch.Size([4, 3]))
    """

    subspace: Tensor

    def __init__(self, width: int, outputs: int, form: Form) -> None:
        super().__init__()
        self.form = form
        inner = min(width, max(1, outputs - 1)) if form == "cosine" else width
        self.weight = nn.Parameter(torch.zeros(1 if form == "proportional" else outputs, inner))
        self.bias = nn.Parameter(torch.zeros(outputs))
        if form == "quadratic":
            self.square = nn.Parameter(torch.zeros(outputs, width, width))
        if form == "cosine":
            self.register_buffer("subspace", torch.zeros(inner, width))

    def forward(self, features: Tensor) -> Tensor:
        z = features.flatten(1)
        if self.form == "cosine":
            z = functional.normalize(z @ self.subspace.T, dim=1)
        if self.form == "proportional":
            return functional.linear(z, self.weight) + self.bias
        scores: Tensor = functional.linear(z, self.weight, self.bias)
        if self.form == "quadratic":
            scores = scores + torch.einsum("nk,ckl,nl->nc", z, self.square, z)
        return scores


class Bells(nn.Module):
    """W k(z) + b, k_j(z) = exp(-|M z - u_j|^2): a bell around each of the centres u_j, in the metric M'M.

    >>> network = Bells(2, 3)
    >>> network(torch.ones(4, 2)).shape, {name: list(one.shape) for name, one in network.named_buffers()}
    (torch.Size([4, 3]), {'metric': [2, 2], 'centres': [3072, 2]})
    """

    metric: Tensor
    centres: Tensor

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, CENTRES))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.register_buffer("metric", torch.zeros(width, width))
        self.register_buffer("centres", torch.zeros(CENTRES, width))

    def forward(self, features: Tensor) -> Tensor:
        return functional.linear(bells(features.flatten(1) @ self.metric.T, self.centres), self.weight, self.bias)


def bells(u: Tensor, centres: Tensor) -> Tensor:
    """exp(-|u - c|^2) of each row u and each centre c."""
    far = u.square().sum(1, keepdim=True) + centres.square().sum(1) - 2 * u @ centres.T
    return torch.exp(-far.clamp(min=0))
