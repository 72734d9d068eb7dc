"""The steps of DP-SGD: batches drawn by chance, each record's gradient shortened, their sum noised.

    gradient = (sum_i min(1, C / |g_i|) g_i + s C N(0, 1)) / batch_size

The batches come from the operating system's entropy too: the moderator knows the experiment's seed, and who knows which
records are in a batch undoes what sampling saves. The noise has 64 random bits a number. It is floating point, not the
exact discrete noise of digests; so that its low bits tell nothing, the noised sum is rounded to a public grid before
anything else is done with it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.data.task import Samples
from holdfast.learning.device import batch_on
from holdfast.learning.objective import Objective, is_separable
from holdfast.privacy.noise import Source

GRID = 2.0**-20  # of the noise's scale: what the noised sum is rounded to
ROUNDING = 1e-4  # gradients are shortened by so much more, relatively, for the rounding of 32-bit sums
MOST_NUMBERS = 1 << 25  # of per-record gradients at a time: 128 MB
ALIKE = 1e-3  # how near, relative to its length, a record's gradient must come to what it is alone


# Chance ---------------------------------------------------------------------------------------------------------


def normals(count: int, source: Source) -> NDArray[np.float64]:
    """Standard normal numbers by Box and Muller, 64 random bits each, none beyond 9.5.

    >>> from holdfast.privacy.noise import seeded
    >>> normals(3, seeded(0)).shape
    (3,)
    """
    pairs = -(-count // 2)
    words = source.words(2 * pairs).astype(np.float64)
    radius = np.sqrt(-2.0 * np.log((words[:pairs] + 1.0) * 2.0**-64))
    angle = words[pairs:] * (2.0 * math.pi * 2.0**-64)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def poisson_batch(records: int, rate: float, source: Source) -> NDArray[np.int64]:
    """Each record with chance `rate`, rounded down to 64 bits: a smaller chance costs less."""
    if rate >= 1.0:
        return np.arange(records)
    return np.flatnonzero(source.words(records) < np.uint64(int(rate * 2.0**64)))


# Gradients ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noisy:
    """Where the epoch loop gets its batches and gradients from when they are protected."""

    clip: float
    multiplier: float  # of the clip bound: the noise's scale
    rate: float
    expected: int  # records in a batch on average: what the noised sum is divided by
    source: Source
    whose: Tensor | None = None  # the patient of each record: chance draws patients, whose mean gradients are shortened

    def batches(self, records: int) -> Iterator[Tensor]:
        """An epoch's batches; one may be empty, and its step is made all the same."""
        units = records if self.whose is None else int(self.whose.max()) + 1
        for _ in range(math.ceil(units / self.expected)):
            drawn = torch.from_numpy(poisson_batch(units, self.rate, self.source))
            yield drawn if self.whose is None else torch.isin(self.whose, drawn).nonzero().flatten()

    def fill_gradients(self, model: nn.Module, samples: Samples, index: Tensor, objective: Objective) -> Tensor:
        """Put the noised mean of these records' shortened gradients into weight.grad; of the loss nothing is told."""
        weights = learning_weights(model)
        sums = [torch.zeros_like(weight, dtype=torch.float64, device="cpu") for weight in weights]
        at_once = max(1, MOST_NUMBERS // sum(weight.numel() for weight in weights))
        for part in self.pieces(index, at_once):
            each = record_gradients(model, *batch_on(model, samples, part), objective)
            if self.whose is not None:
                each = patient_gradients(each, self.whose[part])
            factors = shorten(each, self.clip)
            for total, gradients in zip(sums, each, strict=True):
                total += (factors @ in_rows(gradients)).cpu().view_as(total)
        for weight, total in zip(weights, sums, strict=True):
            weight.grad = self.noised(total).div_(self.expected).to(weight.dtype).to(weight.device)
        return torch.zeros((), device=weights[0].device)

    def pieces(self, index: Tensor, at_once: int) -> Iterator[Tensor]:
        """The batch in pieces of about so many records; no patient is in two of them."""
        if not len(index):
            return
        if self.whose is None:
            yield from index.split(at_once)
            return
        order = index[self.whose[index].argsort(stable=True)]
        sizes = torch.unique_consecutive(self.whose[order], return_counts=True)[1].tolist()
        piece: list[Tensor] = []
        for own in order.split(sizes):
            if piece and sum(map(len, piece)) + len(own) > at_once:
                yield torch.cat(piece)
                piece = []
            piece.append(own)
        yield torch.cat(piece)

    def noised(self, total: Tensor) -> Tensor:
        """The sum with noise, on the grid; in place."""
        if not self.multiplier:
            return total
        scale = self.multiplier * self.clip
        noise = torch.from_numpy(normals(total.numel(), self.source)).view_as(total)
        return total.add_(noise, alpha=scale).div_(GRID * scale).round_().mul_(GRID * scale)


def learning_weights(model: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def shorten(each: Sequence[Tensor], clip: float) -> Tensor:
    """The factor of each record with which its gradient, over all weights, is at most `clip` long.

    A gradient that is not finite counts nothing: it is set to zero, in place.
    """
    parts = torch.stack([torch.linalg.vector_norm(in_rows(gradients), dim=1) for gradients in each])
    length = torch.linalg.vector_norm(parts, dim=0)
    good = length.isfinite()
    if not good.all():
        for gradients in each:
            gradients[~good] = 0.0
    factors: Tensor = (clip * (1 - ROUNDING) / length).clamp_(max=1.0)
    return torch.where(good, factors, 0.0)


def in_rows(gradients: Tensor) -> Tensor:
    """A row for each record, also of a weight that is one number."""
    return gradients[..., None].flatten(1)


def patient_gradients(each: Sequence[Tensor], whose: Tensor) -> list[Tensor]:
    """The mean of the gradients of each patient's records, which lie side by side."""
    _, patient, counts = torch.unique_consecutive(whose, return_inverse=True, return_counts=True)
    found = []
    for gradients in each:
        sums = gradients.new_zeros(len(counts), *gradients.shape[1:])
        sums.index_add_(0, patient.to(gradients.device), gradients)
        found.append(sums / counts.to(gradients.device).view(-1, *[1] * (gradients.ndim - 1)))
    return found


def record_gradients(
    model: nn.Module, inputs: tuple[Tensor, ...], labels: Tensor, objective: Objective
) -> list[Tensor]:
    """The gradient of each record alone, (records, *weight.shape) for each weight that learns, by Opacus' hooks."""
    weights = learning_weights(model)
    with record_hooks(model):
        objective(model, inputs, labels).mean().backward()
        found = [getattr(weight, "grad_sample", None) for weight in weights]
    model.zero_grad()
    return [
        torch.zeros(len(labels), *weight.shape, device=weight.device) if each is None else each.detach()
        for weight, each in zip(weights, found, strict=True)
    ]


@contextmanager
def record_hooks(model: nn.Module) -> Iterator[None]:
    """The model with hooks that leave each record's gradient in weight.grad_sample."""
    try:
        from opacus.grad_sample.grad_sample_module import GradSampleHooks  # slow: only when it is needed
    except ImportError:
        raise HoldfastError(
            "protect: 'dp-sgd' needs Opacus and dp-accounting; install them with pip install 'holdfast[dp]'."
        ) from None
    hooks = GradSampleHooks(model, loss_reduction="mean", strict=False)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")  # the inputs need no gradients
            yield
    finally:
        hooks.cleanup()


# Is this model fit for it? --------------------------------------------------------------------------------------


def check_fit(model: nn.Module, few: Samples, objective: Objective) -> None:
    """Refuse a model or loss that mixes the records of a batch: then no record has a gradient of its own."""
    if not is_separable(objective):
        raise HoldfastError(
            "protect: the objective has no loss of each record alone, so noise cannot hide one; leave out protect."
        )
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            kind = type(module).__name__
            raise HoldfastError(
                f"protect: layer {name!r} is a {kind}, which mixes the records of a batch; choose a GroupNorm or no "
                "norm, as in model = 'cnn:norm=group'."
            )
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()  # its chance would hide what is compared here
    before = [buffer.clone() for buffer in model.buffers()]
    everything = torch.arange(len(few))
    try:
        together = record_gradients(model, *batch_on(model, few, everything), objective)
        alone = [own_gradient(model, few, one, objective) for one in everything.split(1)]
    except (RuntimeError, ValueError, NotImplementedError, TypeError, IndexError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise HoldfastError(f"protect: this model's records have no gradients of their own ({reason}).") from error
    if not all(map(torch.equal, before, model.buffers())):
        raise HoldfastError(
            "protect: this model keeps statistics of its records in buffers, which would leave without noise; choose a "
            "model that keeps none."
        )
    for position, own in enumerate(alone):
        found = torch.cat([gradients[position].flatten() for gradients in together])
        if not (found - own).norm() <= ALIKE * own.norm() + 1e-6:
            raise HoldfastError(
                "protect: this model or its loss mixes the records of a batch: the gradient of a record depends on who "
                "else is there, so noise cannot hide it. The loss must be a plain mean over the batch."
            )


def own_gradient(model: nn.Module, samples: Samples, one: Tensor, objective: Objective) -> Tensor:
    """The gradient of one record, computed alone: slow, and certainly its own."""
    inputs, labels = batch_on(model, samples, one)
    weights = learning_weights(model)
    found = torch.autograd.grad(objective(model, inputs, labels).mean(), weights, allow_unused=True)
    parts = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, found, strict=True)]
    return torch.cat([part.flatten() for part in parts])
