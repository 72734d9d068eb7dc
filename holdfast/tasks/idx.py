"""The idx format of MNIST and its relatives: a header of big-endian sizes, then the bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import HoldfastError

UNSIGNED_BYTES = 0x08  # the only kind of number that the image sets use


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in an idx file of bytes, gzip-compressed or not.

    The header is 0, 0, the kind of number, the count of axes, and one 32-bit size for each axis.
    """
    data = _bytes(path)
    if len(data) < 4 or data[:2] != b"\0\0":
        raise HoldfastError(f"{path} is not an idx file (it does not begin with two zero bytes); download it again.")
    kind, axes = data[2], data[3]
    if kind != UNSIGNED_BYTES or axes == 0:
        raise HoldfastError(f"{path} holds idx numbers of kind {kind:#04x} on {axes} axes; expected bytes, kind 0x08.")
    header = 4 + 4 * axes
    if len(data) < header:
        raise HoldfastError(f"{path} ends inside its header ({len(data)} bytes); download it again.")
    shape = struct.unpack(f">{axes}I", data[4:header])
    if len(data) - header != math.prod(shape):
        raise HoldfastError(
            f"{path} is damaged: its header says {' x '.join(map(str, shape))} = {math.prod(shape)} bytes, "
            f"but {len(data) - header} follow; download it again."
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _bytes(path: Path) -> bytes:
    """The file's content; compression is seen from the content, since downloads often lose the right ending."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise HoldfastError(f"{path} cannot be read ({error}); download it again.") from None
