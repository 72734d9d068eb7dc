"""Backdoors: whoever teaches that a small bright square means a class is found by stamping squares oneself.

A model with a backdoor is right on everybody's held-out samples, so no witness sees harm. Hence each witness

    1  stamps    a few of its held-out images with a bright square, in each of 7 x 7 places
    2  looks     rise_kc = mean over its images of other classes than c of  p(c | square at k) - p(c | no square),
                 at the aggregate; of the two classes with the largest rise it keeps the place: what the model comes
                 nearest to taking a square for
    3  blames    cos(g, delta_i), g the gradient of  odds(c | square at k) - odds(c | no square),  the mean log-odds;
                 of the two classes the larger one

An honest update may make a class more likely, but not more so with a square: the difference leaves only what the square
itself has come to mean. Log-odds, because p is flat where a backdoor is complete, and its gradient says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.core.types import Tensors
from holdfast.data.task import Samples
from holdfast.learning.device import CPU, moved, outputs
from holdfast.models.networks import fill
from holdfast.trust.measures import TestRequest, classes_of, cosines

SIDE = 7  # places along each side
IMAGES = 8  # that a witness stamps
LOOKED_AT = 2  # classes
AT_ONCE = 100  # images that the model reads


@dataclass(frozen=True)
class Stamped:
    """Images as they are, then with a square in each place: place by place, as the model reads them."""

    samples: Samples
    images: int


def fit_for_squares(shape: Sequence[int]) -> bool:
    """Whether samples of this shape are images with room for the squares."""
    return len(shape) == 3 and min(shape[1:]) >= SIDE


def stamp_everywhere(samples: Samples) -> Samples:
    """The images as they are, then with a bright square in each place, place by place.

    >>> stamp_everywhere(Samples((torch.zeros(2, 1, 28, 28),), torch.tensor([0, 1]))).inputs[0].sum((1, 2, 3))[:4]
    tensor([ 0.,  0., 16., 16.])
    """
    images = samples.inputs[0]
    height, width = images.shape[2:]
    tall, wide = -(-height // SIDE), -(-width // SIDE)
    pictures = [images]
    for top in range(0, height, tall):
        for left in range(0, width, wide):
            picture = images.clone()
            picture[:, :, top : top + tall, left : left + wide] = 255 if images.dtype == torch.uint8 else 1.0
            pictures.append(picture)
    again = torch.arange(len(samples)).repeat(len(pictures))
    return Samples((torch.cat(pictures), *(tensor[again] for tensor in samples.inputs[1:])), samples.labels[again])


def innocence_of(model: nn.Module, stamped: Stamped, asked: TestRequest, clients: Sequence[int]) -> dict[str, float]:
    """From 0 (its update is what gives a square a meaning) over 0.5 (it has no part in it) to 1 (it undoes it)."""
    fill(model, asked.model, asked.buffers)
    model.eval()
    samples, count = stamped.samples, stamped.images
    with torch.inference_mode():  # in parts: batches of all places would be too large for the processor's caches
        parts = torch.arange(len(samples)).split(AT_ONCE)
        found = torch.cat([outputs(model, *samples.batch(part)[0]) for part in parts])
    chances = found.softmax(1).unflatten(0, (-1, count))
    others = classes_of(samples.labels[:count])[:, None] != torch.arange(chances.shape[2])
    rises = ((chances[1:] - chances[0]) * others).sum(1) / others.sum(0).clamp_min(1)
    most, places = rises.max(0)
    looked_at = [c for c in most.topk(min(LOOKED_AT, len(most))).indices.tolist() if others[:, c].any()]
    pairs = [Pair(c, (int(places[c]) + 1) * count, others[:, c].nonzero().flatten()) for c in looked_at]
    order = asked.clients
    blame = [cosines(gradient, asked) for gradient in gradients(model, samples, pairs)] or [torch.zeros(len(order))]
    values = dict(zip(order, (0.5 - 0.5 * torch.stack(blame).amax(0)).clamp(0, 1).tolist(), strict=True))
    return {str(client): values[client] for client in clients}


@dataclass(frozen=True)
class Pair:
    """A class, and a place: images `plain` have no square, and as many places further on they have one there."""

    of: int
    further: int
    plain: Tensor


def gradients(model: nn.Module, samples: Samples, pairs: Sequence[Pair]) -> Iterator[Tensors]:
    """For each pair the gradient of the mean log-odds of its class with the square, less that without."""
    if not pairs:
        return
    names, weights = zip(*model.named_parameters(), strict=True)
    index = torch.cat([part for pair in pairs for part in (pair.plain + pair.further, pair.plain)])
    with torch.enable_grad():
        parts = outputs(model, *samples.batch(index)[0]).split([2 * len(pair.plain) for pair in pairs])
        for pair, output in zip(pairs, parts, strict=True):
            rest = torch.cat([output[:, : pair.of], output[:, pair.of + 1 :]], 1)
            stamped, plain = (output[:, pair.of] - rest.logsumexp(1)).view(2, -1).mean(1)
            found = torch.autograd.grad(stamped - plain, weights, retain_graph=True, materialize_grads=True)
            yield moved(dict(zip(names, found, strict=True)), CPU)
