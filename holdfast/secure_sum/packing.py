"""Vectors of whole numbers modulo 2^bits as bytes, each part with as many bits as its total may need."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.core.failures import Refusal
from holdfast.secure_sum.keys import Words

Layout = Sequence[tuple[int, int]]  # parts: how many numbers, of how many bits


def length_of(layout: Layout) -> int:
    return sum(count for count, _ in layout)


def bytes_of(layout: Layout) -> int:
    return sum(-(-count * bits // 8) for count, bits in layout)


def pack(words: Words, layout: Layout) -> bytes:
    """The lowest bits of each number.

    >>> unpack(pack(np.array([5, 2**64 - 1], dtype=np.uint64), [(1, 3), (1, 9)]), [(1, 3), (1, 9)]).tolist()
    [5, 511]
    """
    parts, start = [], 0
    for count, bits in layout:
        part = words[start : start + count]
        octets = part.astype("<u8").view(np.uint8).reshape(count, 8)
        parts.append(
            np.packbits(np.unpackbits(octets, axis=1, bitorder="little")[:, :bits], bitorder="little").tobytes()
        )
        start += count
    return b"".join(parts)


def unpack(content: bytes, layout: Layout) -> Words:
    """The numbers that were packed; content of another length is refused."""
    if len(content) != bytes_of(layout):
        raise Refusal("sum", f"secure sum: a vector has {len(content)} bytes, not {bytes_of(layout)}.")
    parts, start = [], 0
    for count, bits in layout:
        size = -(-count * bits // 8)
        flat = np.unpackbits(np.frombuffer(content[start : start + size], dtype=np.uint8), bitorder="little")
        wide = np.zeros((count, 64), dtype=np.uint8)
        wide[:, :bits] = flat[: count * bits].reshape(count, bits)
        parts.append(np.packbits(wide, axis=1, bitorder="little").reshape(-1).view("<u8").astype(np.uint64))
        start += size
    return np.concatenate(parts)


def signed(words: Words, layout: Layout) -> np.typing.NDArray[np.int64]:
    """The numbers nearest to zero that these are modulo 2^bits.

    >>> signed(np.array([7, 1], dtype=np.uint64), [(2, 3)]).tolist()
    [-1, 1]
    """
    shift = np.repeat([64 - bits for _, bits in layout], [count for count, _ in layout]).astype(np.uint64)
    return (words << shift).view(np.int64) >> shift.astype(np.int64)
