"""Answers with a large model's updates wait in unnamed files on disk, and come into memory one at a time.

They arrive in any order, and who is absent is known when the round closes; only then can they be summed up in the order
of clients, which gives the bits of the embedded engine. A file without a name is gone with the process.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.core.types import Absent, Reply
from holdfast.engines.arena import Arena, Layout, Packer


class Spool:
    """The tensors of replies, each reply's in a file of its own."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder  # of the run: where files for the time being lie is often memory
        self._kept: dict[int, tuple[Arena, Layout]] = {}  # by client

    def put(self, reply: Reply) -> Reply:
        """The reply without its tensors, which are on disk now."""
        packer = Packer()
        layout = packer.lay(reply.tensors)
        with tempfile.TemporaryFile(dir=self._folder) as file:
            size = max(mmap.PAGESIZE, packer.size)
            try:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is found here, and not while it is written to
            except OSError as error:
                raise HoldfastError(
                    f"An update of {size} bytes cannot be kept on disk until its turn: {error}."
                ) from None
            arena = Arena(os.dup(file.fileno()), size)
        packer.write(arena)
        arena.let_go()
        self._kept[reply.client] = arena, layout
        return replace(reply, tensors={})

    def each(self, answers: Sequence[Reply | Absent]) -> Iterator[Reply | Absent]:
        """The answers in this order, whole again; a file is gone once the next one is asked for."""
        try:
            for answer in answers:
                arena, layout = self._kept.pop(answer.client, (None, []))
                if arena is None or not isinstance(answer, Reply):
                    yield answer
                else:
                    yield replace(answer, tensors=arena.get(layout, copy=False))
                    arena.close()
        finally:
            for arena, _ in self._kept.values():
                arena.close()
