"""The encoder for texts: hashed words, pairs of words and groups of characters, with sublinear counts.

Of a text in lower case its words, pairs of neighbouring words, and the groups of 3 to 5 characters of each word (framed
by blanks) are counted. A term that occurs n times adds +-(1 + ln n) at one of `values` places; place and sign are bits
of the term's CRC-32, which is the same on every machine. The three kinds of terms are brought to equal length and put
together, and all is divided by its length: |z| <= 1; an empty text is 0.

Reference: Weinberger et al., "Feature hashing for large scale multitask learning", 2009.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.encoders.contract import JUST_BELOW_ONE, Encoder, fingerprint_of

VERSION = 1  # raise it whenever the same options would give other features
WORD = re.compile(r"\w+")
GROUPS = (3, 4, 5)  # characters


@dataclass(frozen=True)
class Text:
    """Hashed terms at `values` places."""

    values: int = 1024

    def __post_init__(self) -> None:
        if not 16 <= self.values <= 1 << 16:
            raise HoldfastError(f"encoder.values: must be 16 to {1 << 16}, got {self.values}.")

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        """The encoder for texts as bytes of this shape, (longest,)."""
        if len(shape) != 1:
            raise HoldfastError(
                f"encoder 'text': it encodes texts as bytes, but the task's samples have shape {tuple(shape)}; "
                "choose encoder = 'auto'."
            )
        fingerprint = fingerprint_of({"encoder": "text", "version": VERSION, "values": self.values}, {})
        network = Hashed(self.values)
        return Encoder(
            "text", tuple(shape), (self.values,), fingerprint, network, norm_bound=1.0, batch=64, costly=True
        )


class Hashed(nn.Module):
    """Bytes (n, longest), filled up with 0, to z."""

    def __init__(self, values: int) -> None:
        super().__init__()
        self.values = values

    def forward(self, samples: Tensor) -> Tensor:
        if samples.is_floating_point():
            raise HoldfastError("encoder 'text': it reads texts as their bytes, not floats; choose encoder = 'auto'.")
        texts = [bytes(row[row > 0].to(torch.uint8).tolist()).decode(errors="replace") for row in samples]
        return torch.from_numpy(np.stack([hashed(text, self.values) for text in texts])).float()


def hashed(text: str, values: int) -> NDArray[np.float64]:
    """z of one text.

    >>> float(np.linalg.norm(hashed("one word", 64)).round(3)), float(np.abs(hashed("", 64)).sum())
    (1.0, 0.0)
    """
    words = WORD.findall(text.lower())
    pairs = (f"{first} {second}" for first, second in itertools.pairwise(words))
    total = np.zeros(values)
    for terms in (words, pairs, groups(words)):
        part = np.zeros(values)
        for term, count in Counter(terms).items():
            code = zlib.crc32(term.encode())
            part[(code >> 1) % values] += (1 + math.log(count)) * (1 if code & 1 else -1)
        total += part / max(float(np.linalg.norm(part)), 1e-12)
    return total / max(float(np.linalg.norm(total)), 1e-12) * JUST_BELOW_ONE


def groups(words: list[str]) -> Iterator[str]:
    """Groups of characters of each word, framed by blanks.

    >>> list(groups(["no"]))
    [' no', 'no ', ' no ']
    """
    for word in words:
        framed = f" {word} "
        for length in GROUPS:
            for start in range(len(framed) - length + 1):
                yield framed[start : start + length]
