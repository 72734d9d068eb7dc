"""Files that survive anything: written to a temporary name, fsynced, renamed, and checked by SHA-256 when read."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import safetensors
import safetensors.torch
import torch

from holdfast.core.errors import HoldfastError, brief
from holdfast.core.types import Tensors

log = logging.getLogger("holdfast")
MANIFEST = "manifest.jsonl"
DTYPES = {  # safetensors' names, in the order in which its files have them
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
Piece = bytes | memoryview
ROOM, GROWTH = 1 << 26, 100  # bytes that anything may unpack to, and how many times its size if that is more


class Damaged(HoldfastError):
    """A file whose content is not what was written."""


class Unwritable(HoldfastError):
    """The disk is full or refuses: whoever keeps a run must stop, or what it goes on with cannot be resumed."""

    code = "disk"


class Store:
    """A folder whose files are all named in a manifest with their SHA-256.

    The manifest's line is written before the file takes its name, so a file is either whole and listed, or not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)

    def path_of(self, name: str) -> Path:
        """Where a file of this name lies: inside the folder, or it is refused."""
        path = self.folder / name
        if not path.parent.resolve().is_relative_to(self.folder.resolve()) or path.name in ("", ".", ".."):
            raise HoldfastError(f"{self.folder}: {brief(name)} names a file outside this folder, which is left alone.")
        return path

    def write(self, name: str, data: bytes | Sequence[Piece]) -> None:
        """Write a file, given whole or in pieces."""
        pieces = [data] if isinstance(data, bytes) else data
        path = self.path_of(name)
        make_folder(path.parent)
        sha256 = hashlib.sha256()
        for piece in pieces:
            sha256.update(piece)
        line = {"file": name, "sha256": sha256.hexdigest(), "bytes": sum(map(len, pieces))}
        append_line(self.folder / MANIFEST, line)
        write_file(path, *pieces)

    def read(self, name: str) -> bytes:
        """The content of a file, or Damaged if it is not what was written under this name."""
        data = self.path_of(name).read_bytes()
        if hashlib.sha256(data).hexdigest() not in self._hashes(name):
            raise Damaged(f"{self.folder / name} is damaged: its SHA-256 is not in {MANIFEST}.")
        return data

    def set_aside(self, name: str) -> Path:
        """Rename a damaged file so that it is never used again, and say where it is."""
        path = self.path_of(name)
        aside = path.with_name(path.name + ".damaged")
        os.replace(path, aside)
        return aside

    def _hashes(self, name: str) -> set[str]:
        return {str(line["sha256"]) for line in read_lines(self.folder / MANIFEST) if line.get("file") == name}


def grows_too_much(packed: int, unpacked: int) -> bool:
    """Whether so many bytes are more than honest content of this size unpacks to; asked before anything is allocated.

    >>> grows_too_much(1000, 50_000_000), grows_too_much(160_000, 3_900_000_000)
    (False, True)
    """
    return unpacked > ROOM + GROWTH * packed


def write_file(path: Path, *pieces: Piece) -> None:
    """Replace a file at once: readers see the old content or the new, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise _unwritable(path, error) from error


def append_line(path: Path, line: object) -> None:
    """Add one JSON line and see it to the disk."""
    data = (json.dumps(line, allow_nan=False) + "\n").encode()
    try:
        with open(path, "a+b", buffering=0) as file:
            if _is_torn(file):
                data = b"\n" + data  # else this line would be glued to what a kill left of the last one, and lost
            if file.write(data) != len(data):  # what was written of it stays as a torn line: it does not count
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(path, error) from error


def _is_torn(file: IO[bytes]) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def read_lines(path: Path) -> list[dict[str, object]]:
    """The JSON lines of a file; one that is torn (the writer was killed) or damaged does not count."""
    if not path.exists():
        return []
    lines: list[dict[str, object]] = []
    for raw in path.read_bytes().split(b"\n"):
        with suppress(ValueError, RecursionError):
            line = json.loads(raw)
            if isinstance(line, dict):
                lines.append(line)
    return lines


def make_folder(path: Path) -> None:
    """Make a folder and those above it, and see their names to the disk."""
    if path.is_dir():
        return
    try:
        if not path.parent.exists():
            make_folder(path.parent)
        path.mkdir(exist_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error


def cache_folder(kind: str) -> Path | None:
    """The folder for things of this kind that can be computed again, readable by the user alone; none if it is off."""
    told = os.environ.get("HOLDFAST_CACHE", "")
    if told == "off":
        return None
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"
    folder = (Path(told).expanduser() if told else usual) / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        log.warning("%s cannot be used as a cache (%s); set HOLDFAST_CACHE to a folder, or to off.", folder, error)
        return None
    return folder


def drop_unfinished(folder: Path) -> None:
    """Remove what writers that were killed left under temporary names; only for who holds the folder alone."""
    for path in folder.rglob(".*.tmp"):
        with suppress(OSError):
            path.unlink()


def save_tensors(tensors: Tensors, about: Mapping[str, str]) -> bytes:
    """A safetensors file with metadata, the same bytes each time: the library itself writes metadata in any order.

    >>> read_metadata(save_tensors({"w": torch.ones(2)}, {"task": "mine", "round": "3"}))
    {'round': '3', 'task': 'mine'}
    """
    return b"".join(pieces_of(tensors, about))


def pieces_of(tensors: Tensors, about: Mapping[str, str]) -> list[Piece]:
    """The same file in pieces that share the tensors' memory, for one that is too large to be copied."""
    head: dict[str, object] = {"__metadata__": dict(sorted(about.items()))}
    pieces: list[Piece] = []
    place = 0
    if odd := next((name for name, tensor in tensors.items() if tensor.dtype not in DTYPES), None):
        raise HoldfastError(f"{odd} is a tensor of {tensors[odd].dtype}, which a safetensors file cannot hold.")
    order = list(DTYPES)
    for name in sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name)):
        tensor = tensors[name].detach().cpu().contiguous()
        piece = tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b""
        end = place + len(piece)
        head[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        pieces.append(piece)
        place = end
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return [len(text).to_bytes(8, "little"), text, *pieces]


def read_metadata(data: bytes) -> dict[str, str]:
    """The metadata in the head of a safetensors file: texts under names, or Damaged."""
    length = int.from_bytes(data[:8], "little")
    try:
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        if all(isinstance(text, str) for text in metadata.values()):
            return dict(metadata)
    except (ValueError, AttributeError, RecursionError):
        pass
    raise Damaged("Its head is no head of a safetensors file.")


def load_tensors(data: bytes, where: object = "It") -> Tensors:
    """The tensors in a safetensors file's content, or Damaged."""
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError, OverflowError, MemoryError):
        raise Damaged(f"{where} is not a whole safetensors file.") from None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unwritable(path: Path, error: OSError) -> Unwritable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unwritable(f"The disk is full: cannot write {path}. What was saved before is intact.")
    return Unwritable(f"Cannot write {path}: {error.strerror}. What was saved before is intact.")
