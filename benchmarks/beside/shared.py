"""What each adapter of benchmarks/peers.py shares: the same data, network and settings, and whose turn it is.

An adapter, `with_NAME.py`, reads its work from the environment: BESIDE = "turns clients samples kind". It plays one
round for each line on its standard input and answers with a line `TURN processor-seconds clock-seconds`.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

*numbers, WORK = os.environ.get("BESIDE", "3 4 600 pictures").split()  # processes of a peer's inherit it
TURNS, CLIENTS, IMAGES = map(int, numbers)
BATCH, LR, MOMENTUM = 64 if WORK == "pictures" else 30, 0.01, 0.9
SHAPE = (1, 28, 28) if WORK == "pictures" else (784,)


class ForPictures(nn.Module):
    """A network as users bring it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = nn.Linear(64 * 5 * 5, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        output: Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        return output


class ForVectors(nn.Module):
    """784-64-10."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(784, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.fc2(torch.relu(self.fc1(x)))
        return output


OwnNet = ForPictures if WORK == "pictures" else ForVectors


def images(client: int) -> tuple[Tensor, Tensor]:
    """A client's samples and labels; speed does not depend on what is in them."""
    generator = torch.Generator().manual_seed(client)
    return torch.rand(IMAGES, *SHAPE, generator=generator), torch.arange(IMAGES) % 10


class Turns:
    """Waits for its turn before each round, and tells what the round before took."""

    def __init__(self) -> None:
        self._begun: tuple[float, float] | None = None

    def wait(self) -> None:
        self.tell()
        sys.stdin.readline()
        self._begun = processor_seconds(), time.perf_counter()

    def tell(self) -> None:
        if self._begun is not None:
            taken = processor_seconds() - self._begun[0], time.perf_counter() - self._begun[1]
            print("\nTURN", *taken, flush=True)
        self._begun = None


def processor_seconds() -> float:
    """What this process and all that descend from it have taken so far, on Linux."""
    pending, ticks = [os.getpid()], 0
    while pending:
        process = Path("/proc", str(pending.pop()))
        try:
            ticks += sum(map(int, (process / "stat").read_text().rsplit(")", 1)[1].split()[11:15]))
            for thread in (process / "task").iterdir():
                pending += map(int, (thread / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):  # it has just ended, and counts with its parent
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


class Stub(ModuleType):
    """Stands for a library that a peer imports and does not need for a round."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a stub for each of these libraries and all within them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        known = any(name == one or name.startswith(f"{one}.") for one in self._names)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def without(*names: str) -> None:
    """Import stubs for these libraries from now on."""
    sys.meta_path.insert(0, Stubs(names))
