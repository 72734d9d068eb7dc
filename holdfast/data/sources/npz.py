"""The one reader of npz files: never a pickle, and nothing is allocated that the file's own size does not explain."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError, plain
from holdfast.core.files import grows_too_much


def read_arrays(path: Path, keys: Collection[str], expected: str) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file that have one of these keys; `expected` says in a few words which there should be."""
    if not path.is_file():
        raise HoldfastError(f"{path} does not exist; give the path of an npz file with {expected}.")
    try:
        with zipfile.ZipFile(path) as file:
            members = {info.filename.removesuffix(".npy"): info for info in file.infolist()}
            return {key: _read(file, members[key], path, key) for key in keys if key in members}
    except HoldfastError:
        raise
    except MemoryError:
        raise HoldfastError(f"{path} is too large for the memory of this machine.") from None
    except Exception:  # a stranger's bytes: zipfile has many words for what is wrong with them
        with open(path, "rb") as alone:
            if alone.read(6) == np.lib.format.MAGIC_PREFIX:
                raise HoldfastError(
                    f"{path} holds one array only; write it with numpy.savez_compressed and named keys."
                ) from None
        raise HoldfastError(
            f"{path} is not a readable npz file; write it with numpy.savez_compressed and named keys."
        ) from None


def names_in(path: Path) -> list[str]:
    """The keys of an npz file that can be read."""
    with zipfile.ZipFile(path) as file:
        return [name.removesuffix(".npy") for name in file.namelist()]


def _read(file: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, key: str) -> NDArray[Any]:
    where = f"{path}, key {plain(key, 40)}"
    if info.flag_bits & 1:
        raise HoldfastError(f"{where}: it is encrypted; write the file again without a password.")
    try:
        with file.open(info) as member:
            count, kind = _header(member)
        if kind.hasobject:
            raise HoldfastError(f"{where}: holds Python objects, which are not read; save plain numbers or text.")
        size = count * kind.itemsize
        if size > info.file_size or grows_too_much(min(info.compress_size, path.stat().st_size), size):
            raise HoldfastError(
                f"{where}: damaged, or far larger than its file explains ({size} bytes); write it with numpy.savez."
            )
        with file.open(info) as member:
            values: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
    except (HoldfastError, MemoryError):
        raise
    except Exception as error:  # a stranger's bytes: zipfile and numpy have many words for what is wrong with them
        why = plain(str(error), 100)
        raise HoldfastError(f"{where}: damaged ({why}); write or download the file again.") from None
    return values


def _header(member: IO[bytes]) -> tuple[int, np.dtype[Any]]:
    """How many values an array has, and of which kind."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = read(member)
    if any(length < 0 for length in shape):
        raise ValueError("a negative length")
    return math.prod(max(1, length) for length in shape), kind
