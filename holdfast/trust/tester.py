"""What a tester does: it measures other clients' models, or the help of their updates, on its own held-out samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from holdfast.core import Tensors, Update, pack, unpack
from holdfast.models import fill
from holdfast.tasks import Metric, Samples


def test_tensors(model: Tensors, buffers: Tensors, updates: Sequence[Update]) -> Tensors:
    """What testers are sent: the model, and the change that each client made to it."""
    tensors = pack(model=model, buffers=buffers)
    for update in updates:
        tensors |= pack(**{f"delta/{update.client}": update.delta, f"changed/{update.client}": update.buffers})
    return tensors


test_tensors.__test__ = False  # type: ignore[attr-defined]  # its name is no call for pytest


@torch.inference_mode()
def accuracies(
    model: nn.Module, samples: Samples, metric: Metric, tensors: Tensors, clients: Sequence[int]
) -> dict[str, float]:
    """The accuracy of each client's model, sent model + its delta, on the tester's samples: one batch for each.

    One model after the other: stacking their weights (vmap) turns convolutions into grouped ones, which are slower.
    """
    sent, buffers = unpack(tensors, "model"), unpack(tensors, "buffers")
    inputs, labels = samples.batch(torch.arange(len(samples)))
    found = {}
    model.eval()
    for client in clients:
        delta = unpack(tensors, f"delta/{client}")
        own = unpack(tensors, f"changed/{client}")
        fill(model, {name: weight + delta[name] for name, weight in sent.items()}, own or buffers)
        found[str(client)] = float(metric(model(*inputs), labels).mean())
    return found


def held_out(validation: Samples, train: Samples, most: int) -> Samples:
    """The samples that a tester tests on: those it does not train on, if it keeps any; at most so many."""
    samples = validation if len(validation) else train
    return samples if len(samples) <= most else samples.take(torch.arange(most))


def classes_of(labels: Tensor) -> Tensor:
    """Whole-number classes, also of soft labels."""
    return labels if labels.dim() == 1 else labels.argmax(1)


def help_of(
    model: nn.Module, samples: Samples, metric: Metric, tensors: Tensors, clients: Sequence[int]
) -> dict[str, float]:
    """How far each client's update helps the tester's samples at the sent model, from 0 (harm) to 1 (help).

        help_i = (1 + cos(g, delta_i)) / 2,    g = gradient of the mean over classes of p(true class)

    g is taken at the model that was sent, the aggregate in question: <g, a_i delta_i> is what the score would lose
    without update i (leave-one-out, to first order). One gradient tests all updates. p(true class) is bounded: a few
    mislabelled samples cannot outweigh the rest, as they do in the cross-entropy.
    """
    fill(model, unpack(tensors, "model"), unpack(tensors, "buffers"))
    gradient = score_gradient(model, samples)
    length = norm_of(gradient)
    found = {}
    for client in clients:
        delta = unpack(tensors, f"delta/{client}")
        product = length * norm_of(delta)
        inner = sum(float(torch.dot(gradient[name].flatten(), delta[name].flatten())) for name in delta)
        found[str(client)] = min(1.0, max(0.0, 0.5 + 0.5 * inner / product)) if product > 0 else 0.5
    return found


def score_gradient(model: nn.Module, samples: Samples) -> Tensors:
    """The gradient of the class-balanced mean of p(true class) at the model as it is."""
    model.eval()
    model.zero_grad()
    inputs, labels = samples.batch(torch.arange(len(samples)))
    classes = classes_of(labels)
    with torch.enable_grad():
        chance = model(*inputs).softmax(1).gather(1, classes[:, None].long()).squeeze(1)
        weights = 1 / torch.bincount(classes.long())[classes.long()].float()
        ((chance * weights).sum() / weights.sum()).backward()
    gradient = {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad.detach().clone()
        for name, weight in model.named_parameters()
    }
    model.zero_grad()
    return gradient


def norm_of(tensors: Tensors) -> float:
    """The length of all the tensors as one vector."""
    return math.sqrt(sum(float(tensor.square().sum(dtype=torch.float64)) for tensor in tensors.values()))


MEASURES = {"accuracy": accuracies, "help": help_of}
