"""What a tester does: it measures other clients' models, or the help of their updates, on its own held-out samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from holdfast.core.tensors import norm_of
from holdfast.core.types import Tensors, Update, pack, unpack
from holdfast.data.task import Samples, right_or_wrong
from holdfast.learning.device import batch_on, outputs
from holdfast.models.networks import fill


def test_tensors(model: Tensors, buffers: Tensors, updates: Sequence[Update]) -> Tensors:
    """What testers are sent: the model, and the change that each client made to it."""
    tensors = pack(model=model, buffers=buffers)
    for update in updates:
        tensors |= pack(**{f"delta/{update.client}": update.delta, f"changed/{update.client}": update.buffers})
    return tensors


test_tensors.__test__ = False  # type: ignore[attr-defined]  # its name is no call for pytest


def tested_in(tensors: Tensors, own: int) -> list[int]:
    """The clients whose updates a question to testers holds, but for one's own.

    >>> tested_in({"model/w": torch.ones(1), "delta/2/w": torch.ones(1), "delta/0/w": torch.ones(1)}, own=0)
    [2]
    """
    if "order" in tensors:
        found = [int(client) for client in tensors["order"].tolist()]
    else:
        found = sorted({int(name.split("/")[1]) for name in tensors if name.startswith("delta/")})
    return [client for client in found if client != own]


@torch.inference_mode()
def accuracies(model: nn.Module, samples: Samples, tensors: Tensors, clients: Sequence[int]) -> dict[str, float]:
    """The accuracy of each client's model, sent model + its delta, on the tester's samples: one batch for each.

    One model after the other: stacking their weights (vmap) turns convolutions into grouped ones, which are slower.
    """
    sent, buffers = unpack(tensors, "model"), unpack(tensors, "buffers")
    inputs, labels = batch_on(model, samples, torch.arange(len(samples)))
    found = {}
    model.eval()
    for client in clients:
        delta = unpack(tensors, f"delta/{client}")
        own = unpack(tensors, f"changed/{client}")
        changed = {name: sent[name] + change for name, change in delta.items()}
        fill(model, {**sent, **changed}, {**buffers, **own})
        found[str(client)] = float(right_or_wrong(model(*inputs), labels).mean())
    return found


def held_out(validation: Samples, train: Samples, most: int | None = None) -> Samples:
    """The samples that a tester tests on: those it does not train on, if it keeps any; at most so many."""
    samples = validation if len(validation) else train
    return samples if most is None or len(samples) <= most else samples.take(torch.arange(most))


def classes_of(labels: Tensor) -> Tensor:
    """Whole-number classes, also of soft labels."""
    return labels if labels.dim() == 1 else labels.argmax(1)


def help_tensors(model: Tensors, buffers: Tensors, updates: Sequence[Update]) -> Tensors:
    """What witnesses are sent: the model, and each update at length one, stacked name by name in the clients' order."""
    lengths = torch.tensor([max(norm_of(update.delta), 1e-30) for update in updates])
    stacks = {
        name: torch.stack([update.delta[name] for update in updates]) / lengths.view(-1, *[1] * tensor.dim())
        for name, tensor in updates[0].delta.items()
    }
    order = torch.tensor([update.client for update in updates])
    return {**pack(model=model, buffers=buffers, units=stacks), "order": order}


def help_of(model: nn.Module, samples: Samples, tensors: Tensors, clients: Sequence[int]) -> dict[str, float]:
    """How far each client's update helps the witness's samples at the sent model, from 0 (harm) to 1 (help).

        help_i = (1 + cos(g, delta_i)) / 2,    g = gradient of the mean over held classes of p(true class | held ones)

    g is taken at the model that was sent, the aggregate in question: <g, a_i delta_i> is what the score would lose
    without update i (leave-one-out, to first order). One gradient tests all updates. p is bounded: a few mislabelled
    samples cannot outweigh the rest, as they do in the cross-entropy. Classes that the witness does not hold are left
    out of p: it has no quarrel with a client that learns them.
    """
    fill(model, unpack(tensors, "model"), unpack(tensors, "buffers"))
    found = cosines(score_gradient(model, samples), tensors)
    values = dict(zip(tensors["order"].tolist(), (0.5 + 0.5 * found).clamp(0, 1).tolist(), strict=True))
    return {str(client): values[client] for client in clients}


def cosines(gradient: Tensors, tensors: Tensors) -> Tensor:
    """The cosine of a gradient with each update that was sent (see help_tensors); 0 for all if there is no gradient."""
    length = norm_of(gradient)
    inner = torch.zeros(len(tensors["order"]))
    for name, stack in unpack(tensors, "units").items():
        inner += stack.flatten(1) @ gradient[name].flatten()
    return inner / length if length > 0 else torch.zeros_like(inner)


def score_gradient(model: nn.Module, samples: Samples) -> Tensors:
    """The gradient of the class-balanced mean of p(true class) at the model as it is."""
    model.eval()
    model.zero_grad()
    inputs, labels = samples.batch(torch.arange(len(samples)))
    classes = classes_of(labels).long()
    with torch.enable_grad():
        output = outputs(model, *inputs)
        counts = torch.bincount(classes, minlength=output.shape[1])
        chance = output.masked_fill(counts == 0, -torch.inf).softmax(1).gather(1, classes[:, None]).squeeze(1)
        weights = 1 / counts[classes].float()
        ((chance * weights).sum() / weights.sum()).backward()
    gradient = {
        name: torch.zeros_like(weight, device="cpu") if weight.grad is None else weight.grad.detach().cpu().clone()
        for name, weight in model.named_parameters()
    }
    model.zero_grad()
    return gradient


MEASURES = {"accuracy": accuracies, "help": help_of}
