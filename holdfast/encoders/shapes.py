"""Pictures drawn by rule: what public encoders may learn from, because nobody's data is in them.

A picture is a background and a few elements on top of each other. An element is a mask (an ellipse, a polygon, a wavy
blob, a straight or bent stroke; filled or only its outline; half of the time mirrored left to right) and a paint (flat,
a gradient, stripes, or cloudy noise). Coordinates run from -1 to 1 whatever the size of the picture.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import rng

BLOCK = 500  # drawn together from one generator, so the first pictures do not depend on how many follow
ELEMENTS = 5


def draw_shapes(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Draw `count` pictures of shape (channels, height, width) as uint8; the same seed gives the same pictures.

    >>> pictures = draw_shapes(3, (1, 28, 28))
    >>> pictures.shape, pictures.dtype
    (torch.Size([3, 1, 28, 28]), torch.uint8)
    >>> torch.equal(pictures[:2], draw_shapes(2, (1, 28, 28)))
    True
    """
    if len(shape) != 3 or min(shape) < 1:
        raise HoldfastError(f"shapes: a picture has shape (channels, height, width), got {tuple(shape)}.")
    if count < 0:
        raise HoldfastError(f"shapes: cannot draw {count} pictures; ask for 0 or more.")
    blocks = [_draw_block(shape, rng(seed, block, -1, "shapes")) for block in range(math.ceil(count / BLOCK))]
    return torch.cat(blocks)[:count] if blocks else torch.empty(0, *shape, dtype=torch.uint8)


def _draw_block(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """One block of pictures, painted element by element."""
    channels, height, width = shape
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    soft = 2.0 / min(height, width)  # an edge is about one pixel wide
    picture = _paint(BLOCK, channels, x, y, generator)
    picture *= (_uniform((BLOCK, 1, 1, 1), generator) < 0.5) * _uniform((BLOCK, 1, 1, 1), generator)
    for layer in range(ELEMENTS):
        mask = _mask(x, y, soft, generator)
        if layer > 0:  # every picture has one element, half of the pictures have a second, and so on
            mask *= _uniform((BLOCK, 1, 1), generator) < 1.0 - layer / ELEMENTS
        paint = _paint(BLOCK, channels, x, y, generator)
        picture += mask[:, None] * (paint - picture)
    return picture.mul_(255.0).round_().clamp_(0, 255).to(torch.uint8)


def _uniform(size: tuple[int, ...], generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    return torch.rand(size, generator=generator) * (high - low) + low


def _mask(x: Tensor, y: Tensor, soft: float, generator: torch.Generator) -> Tensor:
    """Masks in [0, 1], (BLOCK, H, W): each picture gets one of five kinds at a place, angle and size of its own."""
    place = _uniform((2, BLOCK, 1, 1), generator, -0.6, 0.6)
    angle = _uniform((BLOCK, 1, 1), generator, 0, math.pi)
    mirrored = _uniform((BLOCK, 1, 1), generator) < 0.5
    across = torch.where(mirrored, x.abs(), x) - place[0]
    down = y - place[1]
    u = across * angle.cos() + down * angle.sin()
    v = down * angle.cos() - across * angle.sin()
    kind = torch.randint(0, 5, (BLOCK,), generator=generator)
    distance = torch.empty_like(u)
    for number, draw in enumerate((_ellipse, _polygon, _blob, _straight_stroke, _bent_stroke)):
        chosen = kind == number
        distance[chosen] = draw(u[chosen], v[chosen], generator)
    rim = _uniform((BLOCK, 1, 1), generator, 0.03, 0.2)
    outlined = (_uniform((BLOCK, 1, 1), generator) < 0.3) & (kind < 3)[:, None, None]
    distance = torch.where(outlined, distance.abs() - rim, distance)
    return (0.5 - distance / soft).clamp_(0, 1)


# Each of these gives the signed distance to an outline, negative inside; u and v are (n, H, W).


def _ellipse(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    radii = _uniform((2, len(u), 1, 1), generator, 0.1, 0.9)
    return (torch.sqrt((u / radii[0]) ** 2 + (v / radii[1]) ** 2) - 1) * radii.amin(0)


def _polygon(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    """The common part of four half-planes that face four rough directions: quadrilaterals of all sorts."""
    distance = torch.full_like(u, -math.inf)
    for side in range(4):
        facing = _uniform((len(u), 1, 1), generator, -0.5, 0.5) + side * math.pi / 2
        reach = _uniform((len(u), 1, 1), generator, 0.05, 0.9)
        distance = torch.maximum(distance, u * facing.cos() + v * facing.sin() - reach)
    return distance


def _blob(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    """A circle whose radius waves two to six times around."""
    radius = _uniform((len(u), 1, 1), generator, 0.15, 0.7)
    depth = _uniform((len(u), 1, 1), generator, 0.1, 0.5)
    waves = torch.randint(2, 7, (len(u), 1, 1), generator=generator)
    return torch.sqrt(u * u + v * v) - radius * (1 + depth * torch.cos(waves * torch.atan2(v, u)))


def _straight_stroke(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    half_length = _uniform((len(u), 1, 1), generator, 0.1, 1.2)
    half_width = _uniform((len(u), 1, 1), generator, 0.03, 0.25)
    return torch.sqrt((u.abs() - half_length).clamp_(min=0) ** 2 + v * v) - half_width


def _bent_stroke(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    """Part of a circle's rim: a stroke from nearly straight to nearly closed."""
    radius = _uniform((len(u), 1, 1), generator, 0.2, 1.5)
    reach = _uniform((len(u), 1, 1), generator, 0.3, 1.2).div(radius).clamp_(max=3.0)
    half_width = _uniform((len(u), 1, 1), generator, 0.03, 0.2)
    centre = v + radius
    turn = torch.atan2(u, centre)
    rim = (torch.sqrt(u * u + centre * centre) - radius).abs()
    end_u, end_v = radius * reach.sin(), radius * reach.cos()
    past = torch.sqrt((u.abs() - end_u) ** 2 + (centre - end_v) ** 2)
    return torch.where(turn.abs() <= reach, rim, past) - half_width


def _paint(count: int, channels: int, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """Paints in [0, 1], (count, C, H, W): from one colour to another along a pattern; flat if the two are the same."""
    first = _uniform((count, channels, 1, 1), generator)
    second = torch.where(
        _uniform((count, 1, 1, 1), generator) < 0.4, first, _uniform((count, channels, 1, 1), generator)
    )
    angle = _uniform((count, 1, 1), generator, 0, math.pi)
    along = x * angle.cos() + y * angle.sin()
    kind = torch.randint(0, 3, (count,), generator=generator)
    pattern = along * 0.35 + 0.5
    striped = kind == 1
    frequency = _uniform((int(striped.sum()), 1, 1), generator, 3, 25)
    pattern[striped] = 0.5 + 0.5 * torch.sin(along[striped] * frequency)
    pattern[kind == 2] = _clouds(int((kind == 2).sum()), x.shape[0], x.shape[1], generator)
    return first + (second - first) * pattern[:, None]


def _clouds(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Smooth noise in [0, 1]: three octaves of random grids, the coarsest the strongest."""
    total = torch.zeros(count, 1, height, width)
    for cells, strength in ((3, 0.5), (6, 0.3), (12, 0.2)):
        grid = _uniform((count, 1, cells, cells), generator)
        total += strength * torch.nn.functional.interpolate(grid, (height, width), mode="bilinear", align_corners=True)
    return total[:, 0]
