"""The moderator's memory with a large model: its peak over a short run, in units of the model.

    python benchmarks/large_model.py [--side 10000] [--clients 4] [--set KEY=VALUE ...]

A network with side x side weights in the middle (10,000: 100 million, 400 MB), a few samples for each client, two
rounds in one worker process, whose own memory comes on top. What Python and torch need themselves is left out.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import holdfast
from holdfast.core.types import size
from holdfast.data.task import Samples, Task
from holdfast.runs.experiment import from_table

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--side", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], help="another key of the experiment, KEY=VALUE")
    given = parser.parse_args()
    os.environ[SIDE] = str(given.side)
    keys = {
        "task": "large_model:task",
        "model": "large_model:Large",
        "modules": str(Path(__file__).parent),
        "partition": "iid",
        "clients": given.clients,
        "rounds": 2,
        "batch_size": 8,
        "workers": 1,
        **dict(one.split("=", 1) for one in given.set),
    }
    before, start = peak(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        state = holdfast.run(from_table(keys), out=Path(folder) / "run").state
    assert state is not None
    model, most = size(state.model), peak()
    print(f"model {model / 1e6:.0f} MB, {given.clients} clients, {time.perf_counter() - start:.0f} s")
    print(f"moderator's peak {most / 1e6:.0f} MB, of it before the run {before / 1e6:.0f} MB")
    print(f"beyond that {(most - before) / model:.1f} times the model")


if __name__ == "__main__":
    main()
