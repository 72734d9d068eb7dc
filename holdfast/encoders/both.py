"""Two public encoders side by side, for small pictures whose digests are noised: scattering and the pretrained network.

    z = (a, b) / sqrt(2),    a of scattering with equal variances over drawn shapes,    b of the pretrained network

Each has length one, so |z| <= 1. They see different things of a picture: classes lie further apart in both together
than in either, and that is what noise leaves to be seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.encoders.contract import Encoder, fingerprint_of
from holdfast.encoders.pretrained import Pretrained
from holdfast.encoders.scattering import Scattering


@dataclass(frozen=True)
class Both:
    """`directions` of scattering re-weighted with `power`, in turns with `others` of the pretrained network's."""

    directions: int = 192
    others: int = 128
    power: float = 0.5
    size: int = 128
    weights: str = ""

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        """The encoder for grey or colour images of this shape."""
        parts = (
            Scattering(self.directions, self.power).fit_shape(shape),
            Pretrained(self.others, self.size, self.weights).fit_shape(shape),
        )
        return Encoder(
            "both",
            tuple(shape),
            (self.directions + self.others,),
            fingerprint_of({"encoder": "both", "order": "in turns", "parts": [part.fingerprint for part in parts]}, {}),
            SideBySide(*(part.network for part in parts)),
            norm_bound=1.0,
            batch=parts[1].batch,
            costly=True,
        )


class SideBySide(nn.Module):
    """Features of several networks, each of length one, as one vector of length one, in turns."""

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, images: Tensor) -> Tensor:
        parts = [network(images) for network in self.networks]
        return torch.cat(parts, dim=1)[:, in_turns([part.shape[1] for part in parts])] / math.sqrt(len(parts))


def in_turns(lengths: Sequence[int]) -> list[int]:
    """Places among sequences that stand one after the other such that each advances by the same share of its length.

    Encoders have their strongest directions first, and so do both together: what takes the first has those of each.

    >>> in_turns([4, 2])
    [0, 4, 1, 2, 5, 3]
    """
    places = [(i / length, sum(lengths[:part]) + i) for part, length in enumerate(lengths) for i in range(length)]
    return [place for _, place in sorted(places)]
