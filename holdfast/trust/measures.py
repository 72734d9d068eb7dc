"""What a tester does: it measures other clients' models, or the help of their updates, on its own held-out samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from holdfast.core.types import Tensors, Update, pack, unpack
from holdfast.data.task import Samples, joined, right_or_wrong
from holdfast.learning.device import batch_on, device_of, outputs
from holdfast.models.networks import Scale, fill
from holdfast.trust.reputation import ENOUGH

# (outputs, labels, how many of them are each part's) -> the sum of each part's value
SumOfValues = Callable[[Tensor, Tensor, Sequence[int]], Tensor]
BY_ROWS = (
    nn.Linear, nn.Flatten, nn.Identity, nn.Dropout, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus,
    nn.Tanh, nn.Sigmoid, Scale,
)  # fmt: skip
BLOCK = 256  # squares that are added up in single precision


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
    alone: Tensors = field(default_factory=dict)  # what each alone taught so far, at length one, as `units`
    taught: Tensors = field(default_factory=dict)  # the model as it were with all that was taken out of it
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
    return samples if most is None or len(samples) <= most else samples.take(slice(most))


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
    more = train.take(slice(count))
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


def lengths_of(stacks: Tensors) -> Tensor:
    """How long each of the vectors is that are stacked name by name; also where squares overflow single precision.

    >>> lengths_of({"w": torch.tensor([[3.0], [0.0]]), "b": torch.tensor([4.0, 2.0**100])}).log2().tolist()
    [2.321928094887362, 100.0]
    """
    rows = [stack.reshape(len(stack), -1) for stack in stacks.values()]
    total = torch.stack([squares_of(row) for row in rows]).sum(0)
    if not math.isfinite(float(total.sum())):
        total = torch.stack([row.double().square().sum(1) for row in rows]).sum(0)
    return total.sqrt()


def squares_of(rows: Tensor) -> Tensor:
    """The sum of each row's squares, in double precision but for stretches of BLOCK: a thirtieth of the time.

    >>> squares_of(torch.ones(1, 3 * BLOCK + 1)).tolist()
    [769.0]
    """
    whole = rows.shape[1] // BLOCK * BLOCK
    found = rows[:, whole:].square().sum(1, dtype=torch.float64)
    if whole:
        found += rows[:, :whole].unflatten(1, (-1, BLOCK)).norm(dim=2).square().sum(1, dtype=torch.float64)
    return found


def ask_for_help(model: Tensors, buffers: Tensors, updates: Sequence[Update]) -> TestRequest:
    """The model, and each update at length one, stacked name by name in the clients' order."""
    stacks = {name: torch.stack([update.delta[name] for update in updates]) for name in updates[0].delta}
    lengths = lengths_of(stacks).clamp_min(1e-30).float()
    for stack in stacks.values():
        stack /= lengths.view(-1, *[1] * (stack.dim() - 1))
    order = torch.tensor([update.client for update in updates])
    return TestRequest(model, buffers, units=stacks, order=order, length=lengths.quantile(0.5))


def help_of(model: nn.Module, samples: Samples, asked: TestRequest, clients: Sequence[int]) -> dict[str, float]:
    """How far each client's update helps the witness's samples at the sent model, from 0 (harm) to 1 (help).

        help_i = (1 + cos(g, delta_i)) / 2,    g = gradient of the mean over held classes c of log(P_c),
        P_c = mean over the records of c of p(c | held ones);    among fewer than ENOUGH members of the mean of P_c

    g is taken at the model that was sent, half way from the old one to the aggregate in question. There
    <g, a_i delta_i> is i's share of what the score gains on the whole way, and all shares sum to it, up to the third
    order (Aumann and Shapley's, by the midpoint rule). At the aggregate it would be what a little more of update i
    gave: less than nothing of whoever has a large part in an average that goes a little too far. One gradient tests
    all updates. P_c is bounded: a few mislabelled records cannot outweigh the rest, as they do in the cross-entropy.
    Its logarithm keeps a class in g that the model hardly knows: in the gradient of the mean of P_c that is next to
    nothing, and who keeps it from being learnt does no harm. Few members trade classes for each other, and by
    logarithms hardly anybody helps. Classes that the witness
    does not hold are left out of p: it has no quarrel with a client that learns them.
    """
    values = helps_of(model, [samples], asked)[0]
    return {str(client): values[client] for client in clients}


def helps_of(model: nn.Module, witnesses: Sequence[Samples], asked: TestRequest) -> list[dict[int, float]]:
    """As help_of, of all updates, for each of several witnesses: the model is filled once."""
    value = mean_of_logs if len(asked.clients) >= ENOUGH else mean_of_chances
    fill(model, asked.model, asked.buffers)
    found = (0.5 + 0.5 * all_cosines(each_gradient(model, witnesses, value), asked.units)).clamp(0, 1)
    return [dict(zip(asked.clients, row, strict=True)) for row in found.tolist()]


def all_cosines(gradients: Tensors, units: Tensors) -> Tensor:
    """The cosines of gradients with vectors of length one, both stacked name by name, (gradients, vectors); 0 for all
    where there is no gradient."""
    lengths = lengths_of(gradients).float()[:, None]
    inner = torch.zeros(len(lengths), len(next(iter(units.values()))))
    for name, stack in units.items():
        inner += gradients[name].reshape(len(lengths), -1) @ stack.reshape(len(stack), -1).T
    return torch.where(lengths > 0, inner / lengths, 0.0)


def mean_of_chances(output: Tensor, labels: Tensor, sizes: Sequence[int]) -> Tensor:
    """The mean of P_c over the classes that are there, of each part; their sum."""
    logs, part, classes = logs_of_classes(output, labels, sizes)
    return (logs.exp() / classes[part]).sum()


def mean_of_logs(output: Tensor, labels: Tensor, sizes: Sequence[int]) -> Tensor:
    """The mean of log(P_c) over the classes that are there, of each part; their sum."""
    logs, part, classes = logs_of_classes(output, labels, sizes)
    return (logs / classes[part]).sum()


def logs_of_classes(output: Tensor, labels: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """log(P_c) of each class of each part, whose part it is, and how many classes each part has.

    By logarithms all the way: p that single precision has no number for still has a gradient.
    """
    true, width = classes_of(labels).long(), output.shape[1]
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    counts = torch.bincount(owner * width + true, minlength=len(sizes) * width).view(-1, width)
    pairs, place = torch.unique(owner * width + true, return_inverse=True)
    said = output.masked_fill(counts[owner] == 0, -torch.inf).log_softmax(1).gather(1, true[:, None]).squeeze(1)
    most = said.detach().new_full((len(pairs),), -torch.inf).scatter_reduce(0, place, said.detach(), "amax")
    sums = said.new_zeros(len(pairs)).index_add(0, place, (said - most[place]).exp())
    part = pairs // width
    return most + (sums / counts.view(-1)[pairs]).log(), part, (counts > 0).sum(1)


def each_gradient(model: nn.Module, parts: Sequence[Samples], values: SumOfValues) -> Tensors:
    """The gradient of each part's value over all weights, stacked name by name."""
    model.eval()
    if len(parts) > 1 and only_linear(model):
        return each_gradient_at_once(model, parts, values)
    names, weights = zip(*model.named_parameters(), strict=True)
    found = []
    for part in parts:
        inputs, labels = part.batch(torch.arange(len(part)))
        with torch.enable_grad():
            found.append(gradients_over(weights, values(outputs(model, *inputs), labels, [len(part)])))
    if len(parts) == 1:  # no need for a copy
        return {name: own[None].cpu() for name, own in zip(names, found[0], strict=True)}
    return {name: torch.stack(each).cpu() for name, each in zip(names, zip(*found, strict=True), strict=True)}


def only_linear(model: nn.Module) -> bool:
    """Whether a network is linear layers one after the other, with functions in between that know one row at a time."""
    return layered(model, BY_ROWS)


def layered(model: nn.Module, kinds: Sequence[type[nn.Module]]) -> bool:
    """Whether a network is layers of these kinds one after the other.

    Nothing may stand between a layer's weights and what it says: no hooks, no weights that layers share or that are
    made of others, nothing that overwrites what a layer said. Nor may one layer be there twice: its name is told once.
    """
    if type(model) is not nn.Sequential or any(has_hooks(one) for one in (model, *model)):
        return False
    plain = all(type(layer) in kinds and not getattr(layer, "inplace", False) for layer in model)
    names = {name.split(".", 1)[-1] for name, _ in model.named_parameters()}
    own = {id(weight) for weight in model.parameters()}
    count = sum(len(list(layer.parameters())) for layer in model)
    learn = all(weight.requires_grad for weight in model.parameters())
    once = len(own) == count and len(set(model)) == len(model)
    return plain and learn and names <= {"weight", "bias"} and once


def has_hooks(layer: nn.Module) -> bool:
    """Whether something is done before or after a layer: older ways of norming weights work so."""
    return bool(layer._forward_pre_hooks or layer._forward_hooks)


def each_gradient_at_once(model: nn.Module, parts: Sequence[Samples], values: SumOfValues) -> Tensors:
    """As each_gradient, where all weights are those of linear layers: all parts go through the network together.

    With x what a layer reads and s the gradient over what it says, row by row, the gradient over its weights is s' x.
    """
    inputs, labels = joined(parts)
    sizes, read, said = [len(part) for part in parts], dict[str, Tensor](), dict[str, Tensor]()
    with torch.enable_grad():
        x = inputs[0].to(device_of(model))
        for name, layer in model.named_children():
            before, x = x, layer(x)
            if isinstance(layer, nn.Linear):
                read[name], said[name] = before.detach(), x
        signals = torch.autograd.grad(values(x.cpu(), labels, sizes), list(said.values()))
    found = {}
    for (name, x), s in zip(read.items(), signals, strict=True):
        rows = list(zip(x.split(sizes), s.split(sizes), strict=True))
        found[f"{name}.weight"] = torch.stack([s.flatten(0, -2).T @ x.flatten(0, -2) for x, s in rows]).cpu()
        found[f"{name}.bias"] = torch.stack([s.flatten(0, -2).sum(0) for _, s in rows]).cpu()
    return {name: found[name] for name, _ in model.named_parameters()}


@torch.no_grad()
def each_output(model: nn.Module, weights: Tensors, samples: Samples) -> Tensor:
    """What the network says of the samples with each of these weights, stacked name by name, (n, samples, outputs).

    Linear layers go through all of them at once. Convolutions do not: stacked ones are grouped, which is slower.
    """
    model.eval()
    inputs, _ = samples.batch(torch.arange(len(samples)))
    if only_linear(model):
        moved = {name: stack.to(device_of(model)) for name, stack in weights.items()}
        x = inputs[0].to(device_of(model))
        output: Tensor = torch.vmap(lambda own: torch.func.functional_call(model, own, (x,)))(moved)
        return output.cpu()
    own, found = dict(model.named_parameters()), []
    for place in range(len(next(iter(weights.values())))):
        for name, stack in weights.items():
            own[name].copy_(stack[place])
        found.append(outputs(model, *inputs))
    return torch.stack(found)


def gradients_over(weights: Sequence[Tensor], value: Tensor) -> list[Tensor]:
    """The gradient of a value over each of these; zeros for weights that do not learn, as of a scaling or a backbone.

    >>> learns, stays = torch.ones(1, requires_grad=True), torch.ones(1)
    >>> gradients_over([stays, learns], (3 * stays * learns).sum())
    [tensor([0.]), tensor([3.])]
    """
    found = iter(torch.autograd.grad(value, [w for w in weights if w.requires_grad], materialize_grads=True))
    return [next(found) if weight.requires_grad else torch.zeros_like(weight) for weight in weights]


MEASURES = {"accuracy": accuracies, "help": help_of}
