"""Backdoors of any shape: each witness looks for what updates give a meaning to that is in nobody's records.

A model with a backdoor is right on everybody's held-out samples, so no witness sees harm. But whatever its shape, the
stamp moves what the model reads away from where records lie, and there the model says its class. Each witness looks
at w = the model that it was sent (measures.py), with what was taken out of it and set aside (unlearning.py), + FURTHER
times the mean of all updates, each as long as the median one: there also shows what those teach who have no say any
more. For each class c it takes a few of its records x of other classes, and

    1  searches  the shift b, the same for all x, with which odds(c | x + b) are largest: a few steps along the gradient
                 less what lies in the span of its own records, at most as far as its records lie from their mean.
                 Where a network has other layers before its first full one, as one for pictures has, what that layer
                 reads is shifted too, in a search of its own: an inversion is no shift of pixels
    2  explains  g_c = the gradient over the weights of  odds(c | x + b) - odds(c | x),  less what lies in the span of
                 the gradients of odds(k | x) of each of its own records x, k its class: what honest members teach
    3  blames    b_i = max_c (cos(g_c, P_i) - the median over classes of it), P_i what i alone taught so far
                 (unlearning.py), or its update where nothing is known of that: who is merely unlike the others moves
                 the odds of all classes, who plants something those of one. (Of two classes nothing is taken off: a
                 shift and its opposite are one.) Of both searches the larger b_i / m counts, m the median member's b,
                 at least LEAST. It tells what share of that goes beyond the median member's. To a witness with few
                 records of a class, whoever teaches it looks like a backdoor: where the largest is of a class of which
                 it has fewer than half of OF_EACH, and above SUSPECT, it cannot tell

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
from holdfast.trust.measures import TestRequest, all_cosines, classes_of, each_gradient, lengths_of
from holdfast.trust.row_gradients import knows_rows, sums_of_gradients
from holdfast.trust.shifts import Inputs, Read, moved_by, odds, shifted, what_is_read

FURTHER = 3  # updates' mean, beyond the model that was sent
OF_EACH = 8  # records of a class that a witness looks at
RECORDS = 4  # of other classes, that are shifted
STEPS = 10  # of the search
LEAST = 0.04  # cosine that is found with who plants nothing: the median is taken for no less
SUSPECT = 0.5  # a share of blame, beyond the median member's, from which on a member is suspected


def innocence_of(
    model: nn.Module, validation: Samples, train: Samples, asked: TestRequest, clients: Sequence[int]
) -> dict[str, float]:
    """From 0 (it alone gives a shift a meaning) over 0.5 (as most, or it cannot tell) to 1 (it has no part in any)."""
    unsure = {str(client): 0.5 for client in clients}
    few = few_of_each(validation, train) if len(validation) + len(train) else train
    if not len(few) or not all(bool(tensor.isfinite().all()) for tensor in few.inputs):
        return unsure
    fill(model, with_all(asked), asked.buffers)
    model.eval()
    records = Records.of(few)
    classes, searches = unexplained(model, records)
    if not searches:
        return unsure
    places = [asked.clients.index(client) for client in clients]
    found = [blames(all_cosines(one, asked.alone or asked.units)[:, places]) for one in searches]
    times, worst = (torch.stack(both) for both in zip(*found, strict=True))
    most, which = times.max(0)
    share = beyond_median(most)
    known = torch.tensor([int((records.classes == c).sum()) >= OF_EACH // 2 for c in classes])
    held = known[worst.gather(0, which[None])[0]]
    innocent = torch.where(held | (share <= SUSPECT), 0.5 - 0.5 * share, 0.5)
    return dict(zip(unsure, innocent.tolist(), strict=True))


def blames(cosines: Tensor) -> tuple[Tensor, Tensor]:
    """Step 3: of each column, which is a member's, how many times the median member's blame it has, and its class.

    >>> blames(torch.tensor([[0.5, 0.2, 0.2], [0.1, 0.1, 0.1], [0.1, 0.0, 0.1]]))
    (tensor([4., 1., 1.]), tensor([0, 0, 0]))
    """
    blame, worst = (cosines - cosines.quantile(0.5, 0) if len(cosines) > 2 else cosines.clamp_min(0)).max(0)
    return blame / blame.quantile(0.5).clamp_min(LEAST), worst


def beyond_median(times: Tensor) -> Tensor:
    """What of each goes beyond the median, as a share of the larger of both.

    >>> beyond_median(torch.tensor([4.0, 1.0, 0.5]))
    tensor([ 0.7500,  0.0000, -0.5000])
    """
    usual = times.quantile(0.5).clamp_min(1)
    return (times - usual) / torch.maximum(times, usual)


def with_all(asked: TestRequest) -> Tensors:
    """The model to look at: beyond the one that was sent, all updates alike.

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
    """A witness's records, a few of each class."""

    inputs: Inputs
    classes: Tensor

    @classmethod
    def of(cls, samples: Samples) -> Records:
        inputs, labels = samples.batch(torch.arange(len(samples)))
        return cls(inputs, classes_of(labels).long())

    def take(self, index: Tensor) -> Inputs:
        return tuple(tensor[index] for tensor in self.inputs)

    def of_others(self, c: int) -> Tensor:
        """The places of up to RECORDS records of other classes, evenly spaced."""
        others = (self.classes != c).nonzero().flatten()
        count = min(RECORDS, len(others))
        return others[torch.arange(count) * len(others) // max(count, 1)]


def unexplained(model: nn.Module, records: Records) -> tuple[list[int], list[Tensors]]:
    """Steps 1 and 2: the classes, and of each search their g, stacked name by name."""
    with torch.inference_mode():
        classes = outputs(model, *records.take(torch.arange(1))).shape[1]
    sets = {c: places for c in range(classes) if len(places := records.of_others(c))}
    reads = what_is_read(model, records.inputs) if sets else []
    if not reads:
        return [], []
    if knows_rows(model) and len(records.inputs) == 1:
        found = unexplained_at_once(model, records, sets, reads)
        return (list(sets), found) if found else ([], [])
    each = [Samples(records.take(torch.tensor([i])), records.classes[[i]]) for i in range(len(records.classes))]
    known = as_rows(each_gradient(model, each, mean_odds))
    raised = [raised_by(model, records, sets, read) for read in reads]
    left = beside(torch.cat([as_rows(one) for one in raised]), known)
    if left is None:
        return [], []
    found, sizes = list[Tensors](), [stack[0].numel() for stack in raised[0].values()]
    for like, rows in zip(raised, left.split(len(sets)), strict=True):
        parts = zip(like, rows.split(sizes, 1), strict=True)
        found.append({name: part.view_as(like[name]) for name, part in parts})
    return list(sets), found


def unexplained_at_once(
    model: nn.Module, records: Records, sets: Mapping[int, Tensor], reads: Sequence[Read]
) -> list[Tensors]:
    """As unexplained, where a record's gradient need not be made: of each search their g, or none."""
    shifts, chosen = [search(model, records, sets, read) for read in reads], Chosen.of(sets)
    plain, known, count = records.take(chosen.places), len(records.classes), len(chosen.places)
    inputs = [records.inputs[0], plain[0]]
    sums = torch.zeros(known + len(reads) * len(sets), known + (1 + len(reads)) * count)
    sums[:known, :known] = torch.eye(known)
    for k, (read, shift) in enumerate(zip(reads, shifts, strict=True)):
        inputs.append(plain[0] if read.layer is not None else moved_by(plain, shift[chosen.row])[0])
        own, start = slice(known + k * len(sets), known + (k + 1) * len(sets)), known + (k + 1) * count
        sums[own, known : known + count], sums[own, start : start + count] = -chosen.mean, chosen.mean
    labels = torch.cat([records.classes, chosen.targets.repeat(1 + len(reads))])
    layer = reads[-1].layer  # the records are shifted first
    moved = None if layer is None else (layer, shifts[-1][chosen.row])
    found = sums_of_gradients(model, torch.cat(inputs), labels, odds, sums, moved)
    products, lengths = found.products()
    if not products.isfinite().all():
        return []
    shares = torch.cat(
        [-shares_of(products[known:, :known], products[:known, :known]), torch.eye(len(sums) - known)], 1
    )
    left = found.combined(shares)
    least = torch.maximum(1e-4 * products.diagonal().clamp_min(0).sqrt(), 1e-6 * lengths)[known:]
    rounding = lengths_of(left) <= least
    for stack in left.values():
        stack[rounding] = 0
    return [
        {name: stack[k : k + len(sets)] for name, stack in left.items()} for k in range(0, len(rounding), len(sets))
    ]


def raised_by(model: nn.Module, records: Records, sets: Mapping[int, Tensor], read: Read) -> Tensors:
    """The gradients of how far the shift of each class raises its odds, stacked name by name."""
    shifts = search(model, records, sets, read)
    plain = [records.take(places) for places in sets.values()]
    moves = [shift.expand(len(places), -1) for shift, places in zip(shifts, sets.values(), strict=True)]
    labels = [torch.full((2 * len(places),), c) for c, places in sets.items()]
    if read.layer is None:
        moved = [moved_by(inputs, move) for inputs, move in zip(plain, moves, strict=True)]
        pairs = [twice(*both) for both in zip(moved, plain, strict=True)]
        parts = [Samples(both, label) for both, label in zip(pairs, labels, strict=True)]
        return each_gradient(model, parts, odds_raised)
    found = []
    for inputs, move, label in zip(plain, moves, labels, strict=True):
        with shifted(read.layer, torch.cat([move, torch.zeros_like(move)])):
            found.append(each_gradient(model, [Samples(twice(inputs, inputs), label)], odds_raised))
    return {name: torch.cat([one[name] for one in found]) for name in found[0]}


def twice(first: Inputs, second: Inputs) -> Inputs:
    return tuple(torch.cat(pair) for pair in zip(first, second, strict=True))


def as_rows(stacks: Tensors) -> Tensor:
    """What is stacked name by name as rows."""
    return torch.cat([stack.reshape(len(stack), -1) for stack in stacks.values()], 1)


def search(model: nn.Module, records: Records, sets: Mapping[int, Tensor], read: Read) -> Tensor:
    """Step 1: the shift for each class, a row each, in STEPS steps that could go half as far again as it may.

    `sets` are the places of the records that are shifted for each class; all are searched in one pass.
    """
    chosen, shifts = Chosen.of(sets), torch.zeros(len(sets), len(read.span))
    says = read.says(model, records.inputs, chosen.places)
    for _ in range(STEPS):
        moves = shifts[chosen.row].requires_grad_()
        with torch.enable_grad():
            value = odds(says(moves), chosen.targets).sum()
        [each] = torch.autograd.grad(value, [moves])
        uphill = torch.zeros_like(shifts).index_add_(0, chosen.row, each)
        uphill = uphill - uphill @ read.span @ read.span.T
        shifts = shifts + 1.5 / STEPS * read.reach * nn.functional.normalize(uphill, eps=1e-30)
        shifts = shifts * (read.reach / shifts.norm(dim=1, keepdim=True).clamp_min(1e-30)).clamp_max(1)
    return shifts


@dataclass(frozen=True)
class Chosen:
    """The records that are shifted, one class after the other."""

    places: Tensor
    row: Tensor  # which shift
    targets: Tensor
    mean: Tensor  # (classes, records): over those of a class

    @classmethod
    def of(cls, sets: Mapping[int, Tensor]) -> Chosen:
        sizes = torch.tensor([len(places) for places in sets.values()])
        row = torch.repeat_interleave(torch.arange(len(sets)), sizes)
        mean = (row == torch.arange(len(sets))[:, None]) / sizes[:, None]
        return cls(torch.cat(list(sets.values())), row, torch.tensor(list(sets))[row], mean)


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


def beside(rows: Tensor, known: Tensor) -> Tensor | None:
    """What of each row is orthogonal to all that is known; nothing, where that is no more than rounding; None, where
    not all is finite.

    >>> known = torch.tensor([[2.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 9.0, 0.0]])
    >>> beside(torch.tensor([[3.0, 4.0, 5.0], [1.0, 1.0, 0.0]]), known).round(decimals=4)
    tensor([[0., 0., 5.],
            [0., 0., 0.]])
    """
    products, lengths = known @ known.T, rows.norm(dim=1, keepdim=True)
    if not (products.isfinite().all() and lengths.isfinite().all()):
        return None
    left = rows - shares_of(rows @ known.T, products) @ known
    return torch.where(left.norm(dim=1, keepdim=True) > 1e-4 * lengths, left, 0.0)


def shares_of(between: Tensor, products: Tensor) -> Tensor:
    """What of rows is in the span of what is known, as shares of each known: from inner products."""
    own: Tensor = torch.linalg.pinv(products.double(), rtol=1e-8, hermitian=True)
    return (between.double() @ own).to(between.dtype)
