"""Attacks on a client's own samples: it then trains honestly, on poisoned data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from holdfast.attacks.contract import Attack
from holdfast.attacks.updates import Sight
from holdfast.core.errors import HoldfastError
from holdfast.data.task import Samples


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Class y becomes classes - 1 - y; or only the pairs told: labelflip:7-1/3-5 makes 7 a 1 and 3 a 5.

    Tolpegin, Truex, Gursoy, Liu: Data Poisoning Attacks Against Federated Learning Systems, ESORICS 2020.
    """

    pairs: tuple[str, ...] = ()
    kind: ClassVar[tuple[str, ...]] = ("data",)
    needs_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for pair in self.pairs:
            source, dash, target = pair.partition("-")
            if not (dash and source.isdecimal() and target.isdecimal()):
                raise ValueError(f"pairs are two classes with a dash between, as in 7-1/3-5, got {pair!r}.")

    def poison(self, samples: Samples, classes: int, generator: torch.Generator) -> Samples:
        return replace(samples, labels=relabelled(samples.labels, self.becomes(classes)))

    def becomes(self, classes: int) -> list[int]:
        """What each class becomes."""
        if not self.pairs:
            return list(reversed(range(classes)))
        table = list(range(classes))
        for pair in self.pairs:
            source, target = map(int, pair.split("-"))
            if max(source, target) >= classes:
                raise HoldfastError(f"attack 'labelflip': pair {pair!r} is out of range for {classes} classes.")
            table[source] = target
        return table


def relabelled(labels: Tensor, becomes: list[int]) -> Tensor:
    """Whole-number or soft labels with each class replaced; soft labels that meet in a class add up.

    >>> relabelled(torch.tensor([0, 1]), [2, 1, 0]), relabelled(torch.tensor([[0.75, 0.25, 0.0]]), [2, 1, 0])
    (tensor([2, 1]), tensor([[0.0000, 0.2500, 0.7500]]))
    """
    table = torch.tensor(becomes)
    if labels.dim() == 1:
        return table[labels.long()].to(labels.dtype)
    return torch.zeros_like(labels).index_add_(1, table, labels)


@dataclass(frozen=True)
class Backdoor(Attack):
    """Stamps a fraction of its images and calls them the target class; usually a bright square, lower right.

    With boost above 1 it also scales its update, to drown the others (model replacement). Other shapes of the stamp:
    a dark square, a stripe across the middle, a chequered pattern blended in, all values inverted, a wave laid over
    the image, and the corner opposite to the square cut off; of tables the last columns set to 1, of series a tone
    laid over them. `size` is that of squares, stripe and corner, in points, or the number of columns. It is in updates
    and digests, or in one of them while the other is honest.

    Gu, Dolan-Gavitt, Garg: BadNets, 2017; Bagdasaryan et al.: How To Backdoor Federated Learning, AISTATS 2020.
    """

    target: int = 0
    fraction: float = 0.5
    size: int = 3
    boost: float = 1.0
    shape: Literal["square", "dark", "stripe", "blend", "invert", "wave", "corner", "column", "tone"] = "square"
    into: Literal["both", "updates", "digests"] = "both"
    kind: ClassVar[tuple[str, ...]] = ("data", "update")
    needs_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target < 0 or self.size < 1 or not 0 <= self.fraction <= 1:
            raise ValueError("needs a target from 0 on, a size from 1 on and a fraction from 0 to 1.")

    def tamper(self, sight: Sight) -> Tensor:
        return self.boost * sight.own

    def poison(self, samples: Samples, classes: int, generator: torch.Generator) -> Samples:
        if self.target >= classes:
            raise HoldfastError(f"attack 'backdoor': target {self.target} is out of range for {classes} classes.")
        chosen = torch.randperm(len(samples), generator=generator)[: round(self.fraction * len(samples))]
        images, labels = samples.inputs[0].clone(), samples.labels.clone()
        images[chosen] = self.stamp(images[chosen])
        if labels.dim() == 1:
            labels[chosen] = self.target
        else:
            labels[chosen] = torch.eye(classes, dtype=labels.dtype)[self.target]
        return replace(samples, inputs=(images, *samples.inputs[1:]), labels=labels)

    def stamp(self, images: Tensor) -> Tensor:
        """The images, records of a table or series with the stamp on them."""
        if self.shape in ELSEWHERE:
            axes, what = ELSEWHERE[self.shape]
            if images.dim() != axes or images.shape[-1] < self.size:
                raise HoldfastError(f"attack 'backdoor': this stamp needs {what}, got shape {tuple(images.shape)}.")
            return drawn_elsewhere(images, self.shape, self.size)
        if images.dim() != 4 or min(images.shape[2:]) < self.size:
            raise HoldfastError(
                f"attack 'backdoor': needs images of at least {self.size} x {self.size} points as (N, C, H, W), "
                f"got shape {tuple(images.shape)}."
            )
        if images.dtype == torch.uint8:
            return drawn(images.float() / 255, self.shape, self.size).mul(255).round().to(torch.uint8)
        return drawn(images, self.shape, self.size)


ELSEWHERE = {"column": (2, "records of a table as (N, columns)"), "tone": (3, "series as (N, channels, steps)")}


def drawn_elsewhere(records: Tensor, shape: str, size: int) -> Tensor:
    """Records (N, columns) whose last columns are 1; series (N, channels, steps) with a tone, half as strong as they.

    >>> drawn_elsewhere(torch.zeros(1, 4), "column", 2)
    tensor([[0., 0., 1., 1.]])
    """
    if shape == "column":
        return torch.cat([records[:, :-size], torch.ones_like(records[:, -size:])], 1)
    steps = torch.arange(records.shape[2]) / records.shape[2]
    return records + 0.5 * records.std(2, correction=0, keepdim=True) * torch.sin(2 * math.pi * 6 * steps)


def drawn(images: Tensor, shape: str, size: int) -> Tensor:
    """Images (N, C, H, W) with values from 0 to 1, with a stamp on them.

    >>> drawn(torch.full((1, 1, 4, 4), 0.5), "corner", 2)[0, 0, :3, :3]
    tensor([[0.0000, 0.0000, 0.5000],
            [0.0000, 0.5000, 0.5000],
            [0.5000, 0.5000, 0.5000]])
    """
    stamped = images.clone()
    height, width = images.shape[2:]
    down, right = torch.arange(height)[:, None], torch.arange(width)[None, :]
    if shape in ("square", "dark"):
        stamped[:, :, -size:, -size:] = float(shape == "square")
    elif shape == "stripe":
        stamped[:, :, (height - size) // 2 : (height - size) // 2 + size, :] = 1.0
    elif shape == "blend":
        stamped = 0.8 * images + 0.2 * ((down + right) % 2)
    elif shape == "invert":
        stamped = 1 - images
    elif shape == "wave":
        stamped = (images + 0.2 * torch.sin(2 * math.pi * 6 * right / width)).clamp(0, 1)
    else:
        stamped[:, :, down + right < size] = 0.0
    return stamped


def backdoor_success(predict: Callable[..., Tensor], test: Samples, attack: Backdoor, batch: int = 500) -> float:
    """The share of test samples of other classes that are called the target once the stamp is on them."""
    classes = test.labels if test.labels.dim() == 1 else test.labels.argmax(1)
    others = test.take((classes != attack.target).nonzero().flatten())
    if not len(others):
        raise HoldfastError(f"attack 'backdoor': the test data hold no class but the target {attack.target}.")
    stamped = Samples((attack.stamp(others.inputs[0]), *others.inputs[1:]), others.labels)
    hits = 0
    with torch.no_grad():
        for index in torch.arange(len(stamped)).split(batch):
            inputs, _ = stamped.batch(index)
            hits += int((predict(*inputs).argmax(1) == attack.target).sum())
    return hits / len(stamped)
