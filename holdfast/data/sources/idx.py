"""The idx format of MNIST and its relatives: a header of big-endian sizes, then the bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.core.files import grows_too_much

UNSIGNED_BYTES = 0x08  # the only kind of number that the image sets use


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in an idx file of bytes, gzip-compressed or not.

    The header is 0, 0, the kind of number, the count of axes, and one 32-bit size for each axis.
    """
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"  # seen from the content: downloads often lose the right ending
        with cast(IO[bytes], gzip.open(path) if packed else open(path, "rb")) as file:
            return _read(file, path)
    except (OSError, EOFError, zlib.error) as error:
        raise HoldfastError(f"{path} cannot be read ({error}); download it again.") from None


def _read(file: IO[bytes], path: Path) -> NDArray[np.uint8]:
    """What the header says, and not a byte more: a small file may unpack without end."""
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0":
        raise HoldfastError(f"{path} is not an idx file (it does not begin with two zero bytes); download it again.")
    kind, axes = head[2], head[3]
    if kind != UNSIGNED_BYTES or not 0 < axes <= 4:
        raise HoldfastError(f"{path} holds idx numbers of kind {kind:#04x} on {axes} axes; expected bytes, kind 0x08.")
    lengths = file.read(4 * axes)
    if len(lengths) < 4 * axes:
        raise HoldfastError(f"{path} ends inside its header ({4 + len(lengths)} bytes); download it again.")
    shape = struct.unpack(f">{axes}I", lengths)
    said = f"its header says {' x '.join(map(str, shape))} = {math.prod(shape)} bytes"
    if grows_too_much(path.stat().st_size, math.prod(shape)):
        raise HoldfastError(f"{path} is damaged: {said}, far more than the file explains; download it again.")
    data = file.read(math.prod(shape) + 1)
    if len(data) != math.prod(shape):
        found = f"{len(data)}" if len(data) < math.prod(shape) else "more"
        raise HoldfastError(f"{path} is damaged: {said}, but {found} follow; download it again.")
    return np.frombuffer(data, np.uint8).reshape(shape)
