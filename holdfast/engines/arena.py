"""Tensors between processes through shared memory: one mapped region, and a plan of where each tensor lies in it."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable
from typing import Any

import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.types import Tensors

ALIGN = 64  # as torch allocates: kernels then give the same bits wherever a tensor lies
VIEWS = 1000  # that an arena keeps
Layout = list[list[Any]]  # [name, dtype, shape, offset] of each tensor: what JSON can say
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
OTHERS = (torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64)
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*FLOATS, *WHOLE, *OTHERS)}


class Arena:
    """A region of shared memory without a name: it is gone when the last process that maps it is gone."""

    def __init__(self, handle: int, size: int) -> None:
        self.handle = handle
        self.size = size
        self._map = mmap.mmap(handle, size)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._views: dict[tuple[torch.dtype, tuple[int, ...], int], torch.Tensor] = {}

    @classmethod
    def create(cls, size: int) -> Arena:
        size = max(mmap.PAGESIZE, size)
        if hasattr(os, "memfd_create"):
            handle = os.memfd_create("holdfast")
        else:
            with tempfile.TemporaryFile() as file:
                handle = os.dup(file.fileno())
        os.ftruncate(handle, size)
        return cls(handle, size)

    def view(self, dtype: torch.dtype, shape: Iterable[int], offset: int) -> torch.Tensor:
        """The tensor that lies there; most are looked at again and again, the model by each client in turn."""
        place = (dtype, tuple(shape), offset)
        if place not in self._views:
            if len(self._views) >= VIEWS:
                self._views.clear()
            end = offset + torch.Size(place[1]).numel() * dtype.itemsize
            self._views[place] = self._bytes[offset:end].view(dtype).reshape(place[1])
        return self._views[place]

    def put(self, tensor: torch.Tensor, offset: int) -> None:
        self.view(tensor.dtype, tensor.shape, offset).copy_(tensor.detach())

    def get(self, layout: Layout, copy: bool, begin: int = 0) -> Tensors:
        """The tensors of a layout that begins there: as they lie here, or as copies that outlive the next message."""
        views = {name: self.view(DTYPES[dtype], shape, begin + offset) for name, dtype, shape, offset in layout}
        return {name: view.clone() for name, view in views.items()} if copy else views

    def let_go(self) -> None:
        """Keep what lies here out of this process's own memory, until it looks at it again; others still have it."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self._views.clear()
        os.close(self.handle)


class Packer:
    """Finds each tensor a place; one that is sent to many (the model) gets one place."""

    def __init__(self) -> None:
        self.size = 0
        self._places: dict[int, tuple[torch.Tensor, int]] = {}

    def lay(self, tensors: Tensors) -> Layout:
        layout = []
        for name, tensor in tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype not in DTYPES or tensor.layout != torch.strided:
                raise HoldfastError(f"{name} is a {tensor.layout} tensor of {dtype}, which cannot travel; convert it.")
            layout.append([name, dtype, list(tensor.shape), self._place(tensor)])
        return layout

    def write(self, arena: Arena, begin: int = 0) -> None:
        for tensor, offset in self._places.values():
            arena.put(tensor, begin + offset)

    def _place(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self._places:
            self._places[id(tensor)] = (tensor, self.size)
            self.size += -(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN
        return self._places[id(tensor)][1]
