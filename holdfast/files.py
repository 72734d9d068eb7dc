"""Files that survive anything: written to a temporary name, fsynced, renamed, and checked by SHA-256 when read."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path

from holdfast.errors import HoldfastError

MANIFEST = "manifest.jsonl"


class Damaged(HoldfastError):
    """A file whose content is not what was written."""


class Store:
    """A folder whose files are all named in a manifest with their SHA-256.

    The manifest's line is written before the file takes its name, so a file is either whole and listed, or not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)

    def write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        make_folder(path.parent)
        line = {"file": name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        append_line(self.folder / MANIFEST, line)
        write_file(path, data)

    def read(self, name: str) -> bytes:
        """The content of a file, or Damaged if it is not what was written under this name."""
        data = (self.folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() not in self._hashes(name):
            raise Damaged(f"{self.folder / name} is damaged: its SHA-256 is not in {MANIFEST}.")
        return data

    def set_aside(self, name: str) -> Path:
        """Rename a damaged file so that it is never used again, and say where it is."""
        path = self.folder / name
        aside = path.with_name(path.name + ".damaged")
        os.replace(path, aside)
        return aside

    def _hashes(self, name: str) -> set[str]:
        return {str(line["sha256"]) for line in read_lines(self.folder / MANIFEST) if line.get("file") == name}


def write_file(path: Path, data: bytes) -> None:
    """Replace a file at once: readers see the old content or the new, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def append_line(path: Path, line: object) -> None:
    """Add one JSON line and see it to the disk."""
    data = (json.dumps(line, allow_nan=False) + "\n").encode()
    try:
        with open(path, "ab", buffering=0) as file:
            start = file.tell()
            if file.write(data) != len(data):
                file.truncate(start)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(path, error) from error


def read_lines(path: Path) -> list[dict[str, object]]:
    """The JSON lines of a file; a torn last line (the writer was killed) does not count."""
    if not path.exists():
        return []
    lines: list[dict[str, object]] = []
    for raw in path.read_bytes().splitlines():
        try:
            lines.append(json.loads(raw))
        except ValueError:
            continue  # torn by a kill; what follows it was written after a resume
    return lines


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unwritable(path: Path, error: OSError) -> HoldfastError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HoldfastError(f"The disk is full: cannot write {path}. What was saved before is intact.")
    return HoldfastError(f"Cannot write {path}: {error.strerror}. What was saved before is intact.")
