"""The moderator's memory with a large model: its peak over a short run, in units of the model.

    python benchmarks/large_model.py [--side 10000] [--clients 4] [--flower] [--set KEY=VALUE ...] [--save NAME]

A network with side x side weights in the middle (10,000: 100 million, 400 MB), a few samples for each client, two
rounds in one worker process, whose own memory comes on top; or with --flower at sites of their own on this machine.
What Python, torch and Flower need themselves, with a tiny network, is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from saved import save, table
from torch import Tensor, nn

import holdfast
from holdfast.core.types import size
from holdfast.data.task import Samples, Task
from holdfast.flower.deploy.app import write_app
from holdfast.flower.deploy.local import local
from holdfast.flower.engine.sites import usual_names
from holdfast.models.networks import weights_of
from holdfast.runs.experiment import Experiment, from_table

SIDE = "HOLDFAST_SIDE"  # of the network, also for the worker


class Large(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        side = int(os.environ[SIDE])
        self.first, self.middle, self.last = nn.Linear(64, side), nn.Linear(side, side), nn.Linear(side, 4)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(torch.relu(self.middle(torch.relu(self.first(x)))))
        return output


def task() -> Task:
    def samples(count: int, seed: int) -> Samples:
        points = torch.randn(count, 64, generator=torch.Generator().manual_seed(seed))
        return Samples((points,), torch.arange(count) % 4)

    return Task("few", samples(48, 1), samples(16, 2), tuple("abcd"))


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def experiment(clients: int, more: dict[str, str]) -> Experiment:
    keys = {
        "task": "large_model:task",
        "model": "large_model:Large",
        "modules": str(Path(__file__).parent),
        "partition": "iid",
        "clients": clients,
        "rounds": 2,
        "batch_size": 8,
        "workers": 1,
    }
    return from_table({**keys, **more})


def embedded(wanted: Experiment, folder: Path) -> int:
    """The peak of this process."""
    holdfast.run(wanted, out=folder / "run")
    return peak()


def flower(wanted: Experiment, folder: Path) -> int:
    """The peak of the moderator's process, with a SuperLink and sites beside it."""
    names, most = usual_names(wanted.clients), 0
    with local(folder, names, secure=False) as here:
        home = f"FLWR_HOME={here.environment['FLWR_HOME']}".encode()
        here.begin(write_app(folder / "app", wanted), out=str(folder / "run"), **{"deadline-least": 300.0})
        while here.goes_on(folder / "run"):
            most = max(most, *(highest(pid) for pid in moderators(home)), 0)
            time.sleep(0.05)
        if not (folder / "run" / "model.safetensors").exists():
            sys.exit(here.log("moderator").read_text()[-3000:])
    return most


def moderators(home: bytes) -> Iterator[Path]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"flwr-serverapp" in (process / "cmdline").read_bytes() and home in (process / "environ").read_bytes():
                yield process


def highest(process: Path) -> int:
    """The most memory that a process has had so far, in bytes."""
    with suppress(OSError):
        for line in (process / "status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return 0


def measured(side: int, given: argparse.Namespace) -> int:
    os.environ[SIDE] = str(side)
    wanted = experiment(given.clients, dict(one.split("=", 1) for one in given.set))
    with tempfile.TemporaryDirectory() as folder:
        return (flower if given.flower else embedded)(wanted, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--side", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--flower", action="store_true")
    parser.add_argument("--set", action="append", default=[], help="another key of the experiment, KEY=VALUE")
    parser.add_argument("--save", metavar="NAME", help="as docs/results/NAME.json")
    given = parser.parse_args()
    before, start = measured(4, given), time.perf_counter()
    most, seconds = measured(given.side, given), time.perf_counter() - start
    model = size(weights_of(Large()))
    cells = {
        "model": f"{model / 1e6:.0f} MB",
        "clients": str(given.clients),
        "moderator's peak": f"{most / 1e6:.0f} MB",
        "with a tiny model": f"{before / 1e6:.0f} MB",
        "the difference, in models": f"{(most - before) / model:.1f}",
    }
    print(*(f"{name} {value}" for name, value in cells.items()), f"{seconds:.0f} s", sep=", ")
    if given.save:
        row = "Flower, processes on one machine" if given.flower else "worker processes"
        path = save(given.save, {(row, column): value for column, value in cells.items()}, (), corner="engine")
        print(table(json.loads(path.read_text()), f"results/{path.name}"))


if __name__ == "__main__":
    main()
