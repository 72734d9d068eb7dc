"""Answers with a large model's updates wait in unnamed files on disk, and come into memory one at a time.

They arrive in any order, and who is absent is known when the round closes; only then can they be summed up in the order
of clients, which gives the bits of the embedded engine. A file without a name is gone with the process.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.types import Absent, Reply, Tensors
from holdfast.engines.arena import Arena, Layout, Packer

MMAP_THRESHOLD, BLOCK = -3, 1 << 20  # glibc's name, and bytes: larger blocks go back to the system when they are freed


class Spool:
    """The tensors of replies, each reply's in a file of its own."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder  # of the run: where files for the time being lie is often memory
        self._kept: dict[int, tuple[Arena, Layout]] = {}  # by client
        if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
            library.mallopt(MMAP_THRESHOLD, BLOCK)  # else what Flower's threads free, in parts of 5 MB, stays with them

    def put(self, answers: dict[int, Reply | Absent], client: int) -> None:
        """Take the tensors out of a client's reply; what Flower has left of it is freed first."""
        answer = answers.get(client)
        if isinstance(answer, Reply):
            gc.collect()  # Flower's objects refer to each other
            packer = Packer()
            layout = packer.lay(answer.tensors)
            self._kept[client] = self._write(answer.tensors, layout, max(mmap.PAGESIZE, packer.size)), layout
            answers[client] = replace(answer, tensors={})

    def _write(self, tensors: Tensors, layout: Layout, size: int) -> Arena:
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                for tensor, (_, _, _, offset) in zip(tensors.values(), layout, strict=True):
                    file.seek(offset)
                    file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
                file.truncate(size)
                return Arena(os.dup(file.fileno()), size)
        except OSError as error:
            raise HoldfastError(f"An update of {size} bytes cannot be kept on disk until its turn: {error}.") from None

    def each(self, answers: Sequence[Reply | Absent]) -> Iterator[Reply | Absent]:
        """The answers in this order, whole again; a file is gone once the next one is asked for."""
        try:
            for answer in answers:
                if isinstance(answer, Reply) and answer.client in self._kept:
                    arena, layout = self._kept.pop(answer.client)
                    yield replace(answer, tensors=arena.get(layout, copy=False))
                    arena.close()
                else:
                    yield answer
        finally:
            for arena, _ in self._kept.values():
                arena.close()
