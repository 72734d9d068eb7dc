"""What a choice of model offers."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

Shape = tuple[int, ...]


class Model:
    """What a choice of model offers: which inputs it reads, and how it is built for a task."""

    inputs: ClassVar[tuple[str, ...]] = ("image",)  # or "features": what the public encoder makes of the image

    def build(self, shape: Shape, outputs: int, features: Shape) -> nn.Module:
        """The network for samples of this shape, with so many outputs: one for each class, or as the kind says."""
        raise NotImplementedError
