"""Backdoors of any shape: each witness looks for what updates give a meaning to that is in nobody's records.

A model with a backdoor is right on everybody's held-out samples, so no witness sees harm. But whatever its shape, the
stamp moves what the model reads away from where records lie, and there the model says its class. Each witness looks
at w = the aggregate, with what was taken out of it and set aside (unlearning.py), + FURTHER times the mean of all
updates, each as long as the median one: there also shows what those teach who have no say any more. For each class c
it takes a few of its records x of other classes, and

    1  searches  the shift b, the same for all x, with which odds(c | x + b) are largest: a few steps along the gradient
                 less what lies in the span of its own records, at most as far as its records lie from their mean
    2  explains  g = the gradient over the weights of  odds(c | x + b) - odds(c | x),  less what lies in the span of
                 the gradients of odds(k | its records of k), of all classes k that it holds: what honest members teach
    3  blames    cos(g, P_i), of all classes the largest, P_i what i alone taught so far (unlearning.py), or its update
                 where nothing is known of that. To a witness without records of a class, whoever teaches it looks like
                 a backdoor: where the largest is of such a class, and above SUSPECT, it cannot tell

odds: the mean log-odds, because p is flat where a backdoor is complete. Nothing has to be known of the stamp, and
inputs need not be images: all that the model reads as real numbers is shifted, so texts are not searched. A witness
reports one number of each member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.core.types import Tensors
from holdfast.data.task import Samples
from holdfast.learning.device import outputs
from holdfast.models.networks import fill
from holdfast.trust.measures import TestRequest, all_cosines, classes_of, each_gradient

FURTHER = 3  # updates' mean, beyond the aggregate
OF_EACH = 8  # records of a class that a witness looks at
RECORDS = 4  # of other classes, that are shifted
STEPS = 3  # of the search
SUSPECT = 0.14  # a cosine from which on an update is suspected

Inputs = tuple[Tensor, ...]


def innocence_of(
    model: nn.Module, validation: Samples, train: Samples, asked: TestRequest, clients: Sequence[int]
) -> dict[str, float]:
    """From 0 (its update is what gives a shift a meaning) to 1 (it undoes it), of each client; 0.5: it cannot tell."""
    unsure = {str(client): 0.5 for client in clients}
    few = few_of_each(validation, train) if len(validation) + len(train) else train
    if not len(few) or not all(bool(tensor.isfinite().all()) for tensor in few.inputs):
        return unsure
    fill(model, with_all(asked), asked.buffers)
    model.eval()
    records = Records.of(few)
    classes, gradients = unexplained(model, records)
    if not classes:
        return unsure
    blame, worst = all_cosines(gradients, asked.alone or asked.units).clamp_min(0).max(0)
    held = torch.isin(torch.tensor(classes)[worst], records.classes)
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
        for name, weight in (asked.taught or asked.model).items()
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
        return cls(inputs, classes_of(labels).long(), span, spread)

    def take(self, index: Tensor) -> Inputs:
        return tuple(tensor[index] for tensor in self.inputs)

    def of_others(self, c: int) -> Tensor:
        """The places of up to RECORDS records of other classes, evenly spaced."""
        others = (self.classes != c).nonzero().flatten()
        count = min(RECORDS, len(others))
        return others[torch.arange(count) * len(others) // max(count, 1)]


def real(tensor: Tensor) -> Tensor:
    """What of a model's input can be shifted: whole numbers, as of texts, cannot."""
    return tensor if tensor.is_floating_point() else tensor.new_zeros(len(tensor), 0, dtype=torch.float32)


def unexplained(model: nn.Module, records: Records) -> tuple[list[int], Tensors]:
    """Steps 1 and 2: the classes, and their g, stacked name by name."""
    with torch.inference_mode():
        classes = outputs(model, *records.take(torch.arange(1))).shape[1]
    sets = {c: places for c in range(classes) if len(places := records.of_others(c))}
    if not sets or not records.reach > 0:
        return [], {}
    shifted = []
    for (c, places), shift in zip(sets.items(), search(model, records, sets), strict=True):
        plain = records.take(places)
        moved = moved_by(plain, shift.expand(len(places), -1))
        both = tuple(torch.cat(pair) for pair in zip(moved, plain, strict=True))
        shifted.append(Samples(both, torch.full((2 * len(places),), c)))
    own = [(records.classes == k).nonzero().flatten() for k in records.classes.unique()]
    taught = [Samples(records.take(places), records.classes[places]) for places in own]
    raised, known = each_gradient(model, shifted, odds_raised), each_gradient(model, taught, mean_odds)
    rows, explaining = as_rows(raised), as_rows(known)
    if not (rows.isfinite().all() and explaining.isfinite().all()):
        return [], {}
    left = beside(rows, explaining).split([stack[0].numel() for stack in raised.values()], 1)
    return list(sets), {name: part.view_as(raised[name]) for name, part in zip(raised, left, strict=True)}


def as_rows(stacks: Tensors) -> Tensor:
    """What is stacked name by name as rows."""
    return torch.cat([stack.reshape(len(stack), -1) for stack in stacks.values()], 1)


def search(model: nn.Module, records: Records, sets: Mapping[int, Tensor]) -> Tensor:
    """Step 1: the shift for each class, a row each, in STEPS steps that could go half as far again as it may.

    `sets` are the places of the records that are shifted for each class; all are searched in one pass.
    """
    plain = records.take(torch.cat(list(sets.values())))
    row = torch.repeat_interleave(torch.arange(len(sets)), torch.tensor([len(places) for places in sets.values()]))
    targets, shifts = torch.tensor(list(sets))[row], torch.zeros(len(sets), len(records.span))
    for _ in range(STEPS):
        shifts.requires_grad_()
        with torch.enable_grad():
            value = odds(outputs(model, *moved_by(plain, shifts[row])), targets).sum()
        [uphill] = torch.autograd.grad(value, [shifts])
        uphill = uphill - uphill @ records.span @ records.span.T
        shifts = shifts.detach() + 1.5 / STEPS * records.reach * nn.functional.normalize(uphill, eps=1e-30)
        shifts = shifts * (records.reach / shifts.norm(dim=1, keepdim=True).clamp_min(1e-30)).clamp_max(1)
    return shifts


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


def mean_odds(output: Tensor, labels: Tensor, sizes: Sequence[int]) -> Tensor:
    """The mean log-odds of the label in each part; their sum."""
    each = odds(output, labels).split(list(sizes))
    return torch.stack([part.mean() for part in each]).sum()


def odds_raised(output: Tensor, labels: Tensor, sizes: Sequence[int]) -> Tensor:
    """The mean log-odds of the label in the first half of each part less that in the second; their sum.

    >>> odds_raised(torch.tensor([[3.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0]), [2])
    tensor(2.)
    """
    halves = odds(output, labels).split([size // 2 for size in sizes for _ in (0, 1)])
    means = torch.stack([half.mean() for half in halves])
    return means[0::2].sum() - means[1::2].sum()


def beside(rows: Tensor, known: Tensor) -> Tensor:
    """What of each row is orthogonal to all that is known; nothing, where that is no more than rounding.

    >>> known = torch.tensor([[2.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 9.0, 0.0]])
    >>> beside(torch.tensor([[3.0, 4.0, 5.0], [1.0, 1.0, 0.0]]), known).round(decimals=4)
    tensor([[0., 0., 5.],
            [0., 0., 0.]])
    """
    products = (known @ known.T).double()  # small: a product for each pair of classes
    shares = (rows @ known.T).double() @ torch.linalg.pinv(products, rtol=1e-8, hermitian=True)
    left = rows - shares.to(rows.dtype) @ known
    return torch.where(left.norm(dim=1, keepdim=True) > 1e-4 * rows.norm(dim=1, keepdim=True), left, 0.0)
