"""What a tester does: it measures other clients' models, or the help of their updates, on its own held-out samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from holdfast.core.tensors import norm_of
from holdfast.core.types import Tensors, Update, pack, unpack
from holdfast.data.task import Samples, right_or_wrong
from holdfast.learning.device import batch_on, outputs
from holdfast.models.networks import fill


@dataclass(frozen=True)
class TestRequest:
    """What testers are sent: a model, and either each client's change of it or the directions of all changes."""

    __test__: ClassVar[bool] = False  # its name is no call for pytest

    model: Tensors
    buffers: Tensors
    delta: Tensors = field(default_factory=dict)  # "client/name"
    changed: Tensors = field(default_factory=dict)  # buffers, "client/name"
    units: Tensors = field(default_factory=dict)  # updates at length one, stacked name by name
    order: Tensor | None = None  # whose updates are stacked
    length: Tensor | None = None  # the median of how long they are
    signatures: dict[str, str] | None = None  # of each client's change: it is as its sender sent it (relayed.py)
    weights: list[float] | None = None  # of relayed changes, where their directions at the sum are asked for

    @property
    def clients(self) -> list[int]:
        """The clients whose updates it holds.

        >>> TestRequest({}, {}, delta={"2/w": torch.ones(1), "0/w": torch.ones(1)}).clients
        [0, 2]
        """
        if self.order is not None:
            return [int(client) for client in self.order.tolist()]
        return sorted({int(name.split("/")[0]) for name in self.delta})


def ask_for_accuracies(model: Tensors, buffers: Tensors, updates: Sequence[Update]) -> TestRequest:
    """The model, and the change that each client made to it."""
    delta = pack(**{str(update.client): update.delta for update in updates})
    return TestRequest(model, buffers, delta, pack(**{str(update.client): update.buffers for update in updates}))


@torch.inference_mode()
def accuracies(model: nn.Module, samples: Samples, asked: TestRequest, clients: Sequence[int]) -> dict[str, float]:
    """The accuracy of each client's model, sent model + its delta, on the tester's samples: one batch for each.

    One model after the other: stacking their weights (vmap) turns convolutions into grouped ones, which are slower.
    """
    inputs, labels = batch_on(model, samples, torch.arange(len(samples)))
    found = {}
    model.eval()
    for client in clients:
        delta = unpack(asked.delta, str(client))
        own = unpack(asked.changed, str(client))
        changed = {name: asked.model[name] + change for name, change in delta.items()}
        fill(model, {**asked.model, **changed}, {**asked.buffers, **own})
        found[str(client)] = float(right_or_wrong(model(*inputs), labels).mean())
    return found


def held_out(validation: Samples, train: Samples, most: int | None = None) -> Samples:
    """The samples that a tester tests on: those it does not train on, if it keeps any; at most so many."""
    samples = validation if len(validation) else train
    return samples if most is None or len(samples) <= most else samples.take(torch.arange(most))


def held_out_and_more(validation: Samples, train: Samples, most: int) -> Samples:
    """Held-out samples first, then those that it trains on, which all models have seen.

    >>> a, b = (Samples((torch.zeros(len(labels)),), torch.tensor(labels)) for labels in ([0, 0], [1, 0, 1]))
    >>> held_out_and_more(a, b, most=4).labels.tolist()
    [0, 0, 1, 0]
    """
    held = held_out(validation, train, most)
    count = min(len(train), most - len(held)) if len(validation) else 0
    if not count:
        return held
    more = train.take(torch.arange(count))
    inputs = tuple(torch.cat(pair) for pair in zip(held.inputs, more.inputs, strict=True))
    return Samples(inputs, torch.cat([held.labels, more.labels]))


def to_compare_classes(validation: Samples, train: Samples, most: int) -> Samples:
    """Held-out samples, or if they are of one class, which cannot be told from others, some to train on as well."""
    held = held_out(validation, train, most)
    return held if len(classes_of(held.labels).unique()) > 1 else held_out_and_more(validation, train, most)


def some_of(samples: Samples, most: int) -> Samples:
    """At most so many, evenly spaced: digests are sorted by class, and the first ones would leave classes out.

    >>> some_of(Samples((torch.arange(6),), torch.tensor([0, 0, 1, 1, 2, 2])), 3).labels.tolist()
    [0, 1, 2]
    """
    if len(samples) <= most:
        return samples
    places = torch.arange(most) * len(samples) // most
    return Samples(tuple(tensor[places] for tensor in samples.inputs), samples.labels[places])


def classes_of(labels: Tensor) -> Tensor:
    """Whole-number classes, also of soft labels."""
    return labels if labels.dim() == 1 else labels.argmax(1)


def ask_for_help(model: Tensors, buffers: Tensors, updates: Sequence[Update]) -> TestRequest:
    """The model, and each update at length one, stacked name by name in the clients' order."""
    lengths = torch.tensor([max(norm_of(update.delta), 1e-30) for update in updates])
    stacks = {
        name: torch.stack([update.delta[name] for update in updates]) / lengths.view(-1, *[1] * tensor.dim())
        for name, tensor in updates[0].delta.items()
    }
    order = torch.tensor([update.client for update in updates])
    return TestRequest(model, buffers, units=stacks, order=order, length=lengths.quantile(0.5))


def help_of(model: nn.Module, samples: Samples, asked: TestRequest, clients: Sequence[int]) -> dict[str, float]:
    """How far each client's update helps the witness's samples at the sent model, from 0 (harm) to 1 (help).

        help_i = (1 + cos(g, delta_i)) / 2,    g = gradient of the mean over held classes of p(true class | held ones)

    g is taken at the model that was sent, the aggregate in question: <g, a_i delta_i> is what the score would lose
    without update i (leave-one-out, to first order). One gradient tests all updates. p is bounded: a few mislabelled
    samples cannot outweigh the rest, as they do in the cross-entropy. Classes that the witness does not hold are left
    out of p: it has no quarrel with a client that learns them.
    """
    values = helps_of(model, [samples], asked)[0]
    return {str(client): values[client] for client in clients}


def helps_of(model: nn.Module, witnesses: Sequence[Samples], asked: TestRequest) -> list[dict[int, float]]:
    """As help_of, of all updates, for each of several witnesses: the model is filled once."""
    fill(model, asked.model, asked.buffers)
    found = (0.5 + 0.5 * all_cosines([score_gradient(model, samples) for samples in witnesses], asked)).clamp(0, 1)
    return [dict(zip(asked.clients, row, strict=True)) for row in found.tolist()]


def cosines(gradient: Tensors, asked: TestRequest) -> Tensor:
    """The cosine of a gradient with each update that was sent (see ask_for_help); 0 for all if there is no gradient."""
    return all_cosines([gradient], asked)[0]


def all_cosines(gradients: Sequence[Tensors], asked: TestRequest) -> Tensor:
    """As cosines, of several gradients, (gradients, updates)."""
    lengths = torch.tensor([[norm_of(gradient)] for gradient in gradients])
    inner = torch.zeros(len(gradients), len(asked.clients))
    for name, stack in asked.units.items():
        inner += torch.stack([gradient[name].flatten() for gradient in gradients]) @ stack.reshape(len(stack), -1).T
    return torch.where(lengths > 0, inner / lengths, 0.0)


def score_gradient(model: nn.Module, samples: Samples) -> Tensors:
    """The gradient of the class-balanced mean of p(true class) at the model as it is."""
    model.eval()
    inputs, labels = samples.batch(torch.arange(len(samples)))
    classes = classes_of(labels).long()
    with torch.enable_grad():
        output = outputs(model, *inputs)
        counts = torch.bincount(classes, minlength=output.shape[1])
        chance = output.masked_fill(counts == 0, -torch.inf).softmax(1).gather(1, classes[:, None]).squeeze(1)
        weights = 1 / counts[classes].float()
        score = (chance * weights).sum() / weights.sum()
    names, parameters = zip(*model.named_parameters(), strict=True)
    return {name: gradient.cpu() for name, gradient in zip(names, gradients_over(parameters, score), strict=True)}


def gradients_over(weights: Sequence[Tensor], value: Tensor) -> list[Tensor]:
    """The gradient of a value over each of these; zeros for weights that do not learn, as of a scaling or a backbone.

    >>> learns, stays = torch.ones(1, requires_grad=True), torch.ones(1)
    >>> gradients_over([stays, learns], (3 * stays * learns).sum())
    [tensor([0.]), tensor([3.])]
    """
    found = iter(torch.autograd.grad(value, [w for w in weights if w.requires_grad], materialize_grads=True))
    return [next(found) if weight.requires_grad else torch.zeros_like(weight) for weight in weights]


MEASURES = {"accuracy": accuracies, "help": help_of}
