"""The product's only epoch loop, and its only evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor, nn

from holdfast.data.task import Samples
from holdfast.learning.augment import Augment
from holdfast.learning.device import Precision, autocast, batch_on, device_of, widened
from holdfast.learning.objective import Objective
from holdfast.learning.optimizers import States, begin_states, descend
from holdfast.learning.settings import Learning

Correction = Callable[[str, Tensor], Tensor]  # (name of a weight, its value now) -> what to add to its gradient


class Gradients(Protocol):
    """Where the epoch loop gets its batches and gradients from; it clears weight.grad itself before each batch."""

    def batches(self, samples: int) -> Iterable[Tensor]: ...

    def fill_gradients(self, model: nn.Module, samples: Samples, index: Tensor, objective: Objective) -> Tensor: ...


def train(
    model: nn.Module,
    samples: Samples,
    learning: Learning,
    generator: torch.Generator,
    objective: Objective,
    correction: Correction | None = None,
    gradients: Gradients | None = None,
    states: States | None = None,
    falling: bool = False,
) -> tuple[int, float]:
    """The epoch loop: the optimiser's steps on shuffled batches, with an algorithm's correction added to each gradient.

    Where updates are protected, `gradients` draws the batches and adds noise to the gradients. `states` are the
    optimiser's, changed in place; none: it starts anew. If `falling`, the learning rate falls in a straight line to
    none. Returns the number of steps and the mean loss of the last epoch (0 with noise: a loss tells of records too).
    """
    model.train()
    gradients = gradients or plain_gradients(generator, learning)
    states = begin_states(learning.optimizer, dict(model.named_parameters()), {}) if states is None else states
    steps, seen, total = 0, 0, torch.zeros((), device=device_of(model))
    now, last = learning, learning.steps(len(samples))
    course = (lambda done: 1 - done) if falling else learning.within
    with unfrozen(model, learning) as weights:
        for epoch in epochs_of(gradients, len(samples), learning):
            seen = 0
            total.zero_()
            for index in epoch:
                for weight in weights.values():  # as zero_grad, which walks through the network each time
                    weight.grad = None
                total += gradients.fill_gradients(model, samples, index, objective)
                if learning.clip_norm is not None:  # before the correction, which is no gradient of a record's loss
                    nn.utils.clip_grad_norm_(weights.values(), learning.clip_norm, foreach=False)
                if correction is not None:
                    correct(weights, correction)
                if course is not None:
                    now = learning.at(learning.lr * course(steps / last))
                descend(weights, states, now)
                seen += len(index)
                steps += 1
    return steps, float(total) / max(seen, 1)


def epochs_of(gradients: Gradients, samples: int, learning: Learning) -> Iterator[Iterable[Tensor]]:
    """The batches of each epoch; a number of local steps ends the last one early."""
    if learning.local_steps is None:
        for _ in range(learning.epochs):
            yield gradients.batches(samples)
        return
    left = learning.local_steps
    while left > 0:
        epoch = list(islice(gradients.batches(samples), left))
        left -= len(epoch)
        yield epoch


@contextmanager
def unfrozen(model: nn.Module, learning: Learning) -> Iterator[dict[str, nn.Parameter]]:
    """The weights that learn; meanwhile the others need no gradients, and norms whose weights are frozen stay still."""
    weights = dict(model.named_parameters())
    frozen = [weight for name, weight in weights.items() if weight.requires_grad and not learning.factor(name)]
    for weight in frozen:
        weight.requires_grad_(False)
    for module in model.modules() if frozen else ():
        own = list(module.parameters(recurse=False))
        if own and not any(weight.requires_grad for weight in own):
            module.eval()
    try:
        yield {name: weight for name, weight in weights.items() if learning.factor(name)}
    finally:
        for weight in frozen:
            weight.requires_grad_(True)


@dataclass(frozen=True)
class Shuffled:
    """Every sample once, in an order by chance, and plain gradients."""

    generator: torch.Generator
    size: int
    precision: Precision = "float32"
    augment: Augment | None = None  # of images
    parts: int = 1  # in which the gradient of a batch is computed

    def batches(self, samples: int) -> Sequence[Tensor]:
        return batches(torch.randperm(samples, generator=self.generator), self.size)

    def fill_gradients(self, model: nn.Module, samples: Samples, index: Tensor, objective: Objective) -> Tensor:
        """Add the gradient of the batch's mean loss to weight.grad; answer with the sum of its losses."""
        if self.parts == 1:
            return self.add_gradients(model, samples, index, objective, 1.0) * len(index)
        parts = batches(index, self.size // self.parts)
        return sum(
            (self.add_gradients(model, samples, part, objective, len(part) / len(index)) * len(part) for part in parts),
            start=torch.zeros((), device=device_of(model)),
        )

    def add_gradients(
        self, model: nn.Module, samples: Samples, index: Tensor, objective: Objective, share: float
    ) -> Tensor:
        """Add `share` of the gradient of these samples' mean loss to weight.grad; answer with that loss."""
        inputs, labels = batch_on(model, samples, index)
        if self.augment is not None:
            inputs = tuple(self.augment(one, self.generator) if one.ndim == 4 else one for one in inputs)
        with autocast(self.precision, labels.device):
            losses = objective(model, inputs, labels)
        if samples.weights is not None and losses.ndim:
            losses = losses * samples.weights[index].to(losses.device)
        value = widened(losses)
        if value.ndim:  # else it is the mean already
            value = value.mean()
        (value if share == 1.0 else value * share).backward()
        return value.detach()


def plain_gradients(generator: torch.Generator, learning: Learning, augment: Augment | None = None) -> Shuffled:
    """Where an unprotected client's batches and gradients come from."""
    return Shuffled(generator, learning.batch_size, learning.precision, augment, learning.accumulate)


def full_gradient(model: nn.Module, samples: Samples, learning: Learning, objective: Objective) -> dict[str, Tensor]:
    """The gradient of the mean loss over all samples, in evaluation mode."""
    model.eval()
    model.zero_grad()
    plain = plain_gradients(torch.Generator(), learning)
    for index in torch.arange(len(samples)).split(learning.batch_size):
        plain.add_gradients(model, samples, index, objective, len(index) / len(samples))
    found = {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad.detach()
        for name, weight in model.named_parameters()
    }
    return {name: gradient.to("cpu", copy=True).contiguous() for name, gradient in found.items()}


def batches(order: Tensor, size: int) -> Sequence[Tensor]:
    """Batches of this size; a last sample all alone joins the batch before it, since batch norms cannot take one.

    >>> [len(batch) for batch in batches(torch.arange(9), 4)]
    [4, 5]
    """
    cut = list(order.split(size))
    if 1 < size < len(order) and len(cut[-1]) == 1:
        cut[-2:] = [torch.cat(cut[-2:])]
    return cut


@torch.no_grad()
def correct(weights: Mapping[str, nn.Parameter], correction: Correction) -> None:
    """Add the algorithm's correction to the gradients, in place."""
    for name, weight in weights.items():
        added = correction(name, weight)
        weight.grad = added.clone() if weight.grad is None else weight.grad.add_(added)


@torch.inference_mode()
def outputs_of(model: nn.Module, samples: Samples, batch_size: int = 500) -> Tensor:
    """The model's output for each sample, in order and in float32: what metrics are made of."""
    model.eval()
    batches = (batch_on(model, samples, index) for index in torch.arange(len(samples)).split(batch_size))
    return torch.cat([model(*inputs).cpu() for inputs, _ in batches])
