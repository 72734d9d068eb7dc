"""Augmentation: images changed by chance in each batch that a client trains on; digests and tests see them as they are.

`augment = "flip,crop:4"` mirrors half of the images and moves each by up to 4 pixels (the border is repeated). A
function of one's own, by import path, takes images (n, C, H, W) and a torch.Generator, and gives images of the same
shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.core.errors import HoldfastError, brief
from holdfast.core.modules import import_path

Augment = Callable[[Tensor, torch.Generator], Tensor]


def choose_augment(said: str) -> Augment | None:
    """What an experiment's key says: none, steps in turn, or a user's own function."""
    if said == "none":
        return None
    steps = [step.strip().partition(":") for step in said.split(",")]
    if len(steps) == 1 and steps[0][0] not in ("flip", "crop") and steps[0][2]:
        own = import_path(said, "augment")
        if not callable(own):
            raise HoldfastError(f"augment: {said} is not a function of images and a generator.")
        return partial(checked, own, said)
    chosen: list[Augment] = []
    for name, _, number in steps:
        if name == "flip" and not number:
            chosen.append(flip)
        elif name == "crop" and number.isdecimal() and 0 < int(number) <= 1024:
            chosen.append(partial(crop, int(number)))
        else:
            raise HoldfastError(f"augment: expected 'flip', 'crop:4', both, or module:function, got {brief(said)}.")
    return partial(in_turn, chosen)


def in_turn(steps: list[Augment], images: Tensor, generator: torch.Generator) -> Tensor:
    for step in steps:
        images = step(images, generator)
    return images


def flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Half of the images mirrored, left to right."""
    turned = (torch.rand(len(images), generator=generator) < 0.5).to(images.device)
    return torch.where(turned.view(-1, 1, 1, 1), images.flip(3), images)


def crop(most: int, images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to `most` pixels; the border is repeated."""
    count, channels, height, width = images.shape
    down, across = torch.randint(0, 2 * most + 1, (2, count), generator=generator).to(images.device)
    rows = (down[:, None] + torch.arange(height, device=images.device))[:, None, :, None]
    columns = (across[:, None] + torch.arange(width, device=images.device))[:, None, None, :]
    framed = functional.pad(images, (most,) * 4, mode="replicate")
    places = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    planes = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    return framed[places, planes, rows, columns]


def checked(own: Augment, said: str, images: Tensor, generator: torch.Generator) -> Tensor:
    """A user's own function, whose answer must be images like those it was given."""
    found = own(images, generator)
    if not isinstance(found, Tensor) or found.shape != images.shape or not found.is_floating_point():
        raise HoldfastError(f"augment: {said} must give floats of the shape it was given, {tuple(images.shape)}.")
    return found
