"""Backdoors of any shape: each witness looks for what updates give a meaning to that is in nobody's records.

A model with a backdoor is right on everybody's held-out samples, so no witness sees harm. But whatever its shape, the
stamp moves what the model reads away from where records lie, and there the model says its class. Each witness looks
at w = the aggregate + FURTHER times the mean of all updates, each as long as the median one: there also shows what
those teach who have no say any more. For each class c it takes a few of its records x of other classes, and

    1  searches  the shift b, the same for all x, with which odds(c | x + b) are largest: a few steps along the gradient
                 less what lies in the span of its own records, at most as far as its records lie from their mean
    2  explains  g = the gradient over the weights of  odds(c | x + b) - odds(c | x),  less what lies along those of
                 odds(c | x) and of odds(c | its records of c): whoever teaches the class itself moves these
    3  blames    cos(g, delta_i), of all classes the largest. To a witness without records of a class, whoever teaches
                 it looks like a backdoor: where the largest is of such a class, and above SUSPECT, it cannot tell

odds: the mean log-odds, because p is flat where a backdoor is complete. Nothing has to be known of the stamp, and
inputs need not be images: all that the model reads as real numbers is shifted, so texts are not searched. A witness
reports one number of each member.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.core.tensors import unflat
from holdfast.core.types import Tensors
from holdfast.data.task import Samples
from holdfast.learning.device import outputs
from holdfast.models.networks import fill
from holdfast.trust.measures import TestRequest, classes_of, cosines, gradients_over

FURTHER = 3  # updates' mean, beyond the aggregate
OF_EACH = 8  # records of a class that a witness looks at
RECORDS = 8  # of other classes, that are shifted
STEPS = 3  # of the search
SUSPECT = 0.14  # a cosine from which on an update is suspected

Inputs = tuple[Tensor, ...]


def innocence_of(
    model: nn.Module, validation: Samples, train: Samples, asked: TestRequest, clients: Sequence[int]
) -> dict[str, float]:
    """From 0 (its update is what gives a shift a meaning) to 1 (it undoes it), of each client; 0.5: it cannot tell."""
    fill(model, with_all(asked), asked.buffers)
    model.eval()
    records = Records.of(few_of_each(validation, train))
    blame, held = torch.zeros(len(asked.clients)), torch.ones(len(asked.clients), dtype=torch.bool)
    for c, gradient in unexplained(model, records):
        found = cosines(gradient, asked)
        more = found > blame
        blame, held = torch.where(more, found, blame), torch.where(more, bool((records.classes == c).any()), held)
    innocent = torch.where(held | (blame <= SUSPECT), (0.5 - 0.5 * blame).clamp(0, 1), 0.5)
    values = dict(zip(asked.clients, innocent.tolist(), strict=True))
    return {str(client): values[client] for client in clients}


def with_all(asked: TestRequest) -> Tensors:
    """The model to look at: beyond the aggregate, all updates alike.

    >>> units, one = {"w": torch.tensor([[1.0], [0.0]])}, torch.tensor([1.0])
    >>> with_all(TestRequest({"w": one}, {}, units=units, order=torch.arange(2), length=torch.tensor(2.0)))
    {'w': tensor([4.])}
    """
    reach = 0.0 if asked.length is None else FURTHER * float(asked.length)
    return {
        name: weight + reach * asked.units[name].mean(0) if name in asked.units else weight
        for name, weight in asked.model.items()
    }


def few_of_each(validation: Samples, train: Samples) -> Samples:
    """OF_EACH samples of every class, class by class, held-out ones first.

    >>> a, b = (Samples((torch.zeros(len(y)),), torch.tensor(y)) for y in ([2, 0, 2, 2], [0, 2, 2, 1]))
    >>> few_of_each(a, b).labels.tolist()
    [0, 0, 1, 2, 2, 2, 2, 2]
    """
    labels = torch.cat([classes_of(validation.labels), classes_of(train.labels)])
    chosen = torch.cat([(labels == c).nonzero().flatten()[:OF_EACH] for c in labels.unique()])
    own, more = chosen[chosen < len(validation)], chosen[chosen >= len(validation)] - len(validation)
    parts = [part for part in (validation.take(own), train.take(more)) if len(part)]
    inputs = tuple(torch.cat(tensors) for tensors in zip(*(part.inputs for part in parts), strict=True))
    together = Samples(inputs, torch.cat([part.labels for part in parts]))
    return together.take(classes_of(together.labels).argsort(stable=True))


@dataclass(frozen=True)
class Records:
    """A witness's records, which are one row of real numbers each, and what lies in their span."""

    inputs: Inputs
    classes: Tensor
    span: Tensor  # orthonormal columns; at most half as many as a record has numbers, those that hold most
    reach: float  # how far a shift goes

    @classmethod
    def of(cls, samples: Samples) -> Records:
        inputs, labels = samples.batch(torch.arange(len(samples)))
        rows = torch.cat([real(tensor).reshape(len(tensor), -1) for tensor in inputs], 1)
        most = min(len(rows), rows.shape[1] // 2)
        span = torch.linalg.svd(rows, full_matrices=False).Vh[:most].T
        spread = float((rows - rows.mean(0)).norm(dim=1).mean()) if rows.numel() else 0.0
        return cls(inputs, classes_of(labels), span, spread)

    def take(self, index: Tensor) -> Inputs:
        return tuple(tensor[index] for tensor in self.inputs)


def real(tensor: Tensor) -> Tensor:
    """What of a model's input can be shifted: whole numbers, as of texts, cannot."""
    return tensor if tensor.is_floating_point() else tensor.new_zeros(len(tensor), 0, dtype=torch.float32)


def unexplained(model: nn.Module, records: Records) -> Iterator[tuple[int, Tensors]]:
    """Steps 1 and 2: each class with its g."""
    weights: Tensors = dict(model.named_parameters())
    with torch.inference_mode():
        classes = outputs(model, *records.take(torch.arange(1))).shape[1]
    for c in range(classes if records.reach > 0 else 0):
        others = (records.classes != c).nonzero().flatten()
        if not len(others):
            continue
        count = min(RECORDS, len(others))
        plain = records.take(others[torch.arange(count) * len(others) // count])
        usual = gradient_of(model, plain, c, list(weights.values()))
        shifted = moved_by(plain, search(model, records, plain, c))
        known = [usual]
        if len(own := (records.classes == c).nonzero().flatten()):
            known.append(gradient_of(model, records.take(own), c, list(weights.values())))
        found = beside(gradient_of(model, shifted, c, list(weights.values())) - usual, known)
        yield c, unflat(found, weights)


def search(model: nn.Module, records: Records, plain: Inputs, c: int) -> Tensor:
    """Step 1: the shift, as one row, found in STEPS steps that could go half as far again as it may."""
    shift = torch.zeros_like(records.span[:, 0])
    for _ in range(STEPS):
        shift.requires_grad_()
        uphill = gradient_of(model, moved_by(plain, shift), c, [shift])
        uphill = uphill - records.span @ (records.span.T @ uphill)
        shift = shift.detach() + 1.5 / STEPS * records.reach * uphill / uphill.norm().clamp_min(1e-30)
        shift = shift * (records.reach / shift.norm().clamp_min(1e-30)).clamp_max(1)
    return shift


def moved_by(inputs: Inputs, shift: Tensor) -> Inputs:
    """Inputs whose real numbers are all shifted alike.

    >>> moved_by((torch.tensor([[1.0, 2.0]]), torch.tensor([[7]])), torch.tensor([0.5, -1.0]))
    (tensor([[1.5000, 1.0000]]), tensor([[7]]))
    """
    parts = iter(shift.split([real(tensor)[0].numel() for tensor in inputs]))
    return tuple(
        tensor + part.view_as(tensor[0]) if part.numel() else tensor for tensor, part in zip(inputs, parts, strict=True)
    )


def gradient_of(model: nn.Module, inputs: Inputs, c: int, over: Sequence[Tensor]) -> Tensor:
    """The gradient of the mean log-odds of c, as one vector."""
    with torch.enable_grad():
        output = outputs(model, *inputs).float()
        rest = torch.cat([output[:, :c], output[:, c + 1 :]], 1)
        found = gradients_over(over, (output[:, c] - rest.logsumexp(1)).mean())
    return torch.cat([gradient.flatten() for gradient in found]).cpu()


def beside(vector: Tensor, known: Sequence[Tensor]) -> Tensor:
    """What of a vector is orthogonal to all of these; nothing, where that is no more than rounding.

    >>> beside(torch.tensor([3.0, 4.0, 5.0]), [torch.tensor([2.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 0.0])])
    tensor([0., 0., 5.])
    """
    left, axes = vector, list[Tensor]()
    for direction in known:
        for axis in axes:
            direction = direction - (direction @ axis) * axis
        if (length := direction.norm()) > 0:
            axes.append(direction / length)
            left = left - (left @ axes[-1]) * axes[-1]
    return left if left.norm() > 1e-5 * vector.norm() else torch.zeros_like(left)
