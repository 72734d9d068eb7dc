"""How fast it is, as ratios of things done in turns within one run: a busy machine slows both alike.

    python benchmarks/speed.py [own] [many] [few] [memory] [start] [feddig] [jury] [--save]     or: make bench-speed

step      processor time of a training step on one thread: each layout and precision, against the same network by hand
own       a user's own network (conv 32, conv 64, fc 128, no padding) against a plain loop in as many processes
half      the same in bfloat16, against the same plain loop in float32
many      1,000 clients of 60 samples, 784-64-10, two steps each, against a bare loop in as many processes
few       10,000 clients of 20 samples, 1 % asked: seconds a round and the moderator's memory, and those of 100 clients
memory    how the moderator's memory grows in two rounds of 4 clients, in multiples of a model of 20 M weights
start     seconds from the command until round 1 begins, fashion-mini, 2 workers
feddig    a round of FedDig with `features`, nobody away, against FedAvg
jury      a round of the jury, CNN, against FedAvg

Each prints the median of the ratios of neighbouring turns, the least and the largest, first of processor time (of this
process and all those it started: what counts on a busy machine), then of the clock, and the machine's load. `--save`
writes docs/results/speed.json; parts that are not measured keep what it says of them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import get_args

import torch
from beside.shared import OwnNet, processor_seconds
from saved import DOCS, save, table
from torch import nn

from holdfast.core.types import State, size
from holdfast.data.task import Samples, Task
from holdfast.engines.worker import keep_freed_memory
from holdfast.learning.device import Precision
from holdfast.learning.loop import train
from holdfast.learning.objective import TaskLoss
from holdfast.learning.settings import Learning
from holdfast.models.networks import Cnn, Layout, laid_out
from holdfast.play import federation_of, one_thread
from holdfast.round import play_round
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment, from_table

TURNS = 5
FIGURES = {  # part -> what it is called in the table, and the aim
    "own": ("a user's own network, 4 x 1,200 pictures, two workers, against a loop by hand in two processes", "0.85"),
    "half": ("the same in bfloat16, against float32 by hand", "0.50"),
    "many": ("1,000 clients of 60 samples, 784-64-10, two steps each, against a bare loop in two processes", "1.5"),
    "feddig": ("FedDig with `features`, nobody away, against FedAvg", "1.15"),
    "jury": ("the jury with `cnn`, search for backdoors included, against FedAvg", "1.15"),
}
found: dict[tuple[str, str], str] = {}  # what is saved


def drawn(count: int, *shape: int) -> Samples:
    generator = torch.Generator().manual_seed(0)
    return Samples((torch.rand(count, *shape, generator=generator),), torch.arange(count) % 10)


def pictures() -> Task:
    return Task("pictures", drawn(4 * 1500, 1, 28, 28), drawn(10, 1, 28, 28), tuple("0123456789"))


def vectors() -> Task:
    return Task("vectors", drawn(75_000, 784), drawn(10, 784), tuple("0123456789"))


def tiny() -> Task:
    return Task("tiny", drawn(250_000, 16), drawn(10, 16), tuple("0123456789"))


def hundred() -> Task:
    return Task("hundred", drawn(100, 784), drawn(10, 784), tuple("0123456789"))


def few_tiny() -> Task:
    return Task("tiny", drawn(2_500, 16), drawn(10, 16), tuple("0123456789"))


def rounds_of(experiment: Experiment, stack: ExitStack) -> Callable[[], None]:
    """Something that plays one more round of an experiment, each time it is called."""
    plan = make_plan(experiment)
    federation = stack.enter_context(federation_of(plan, None))
    states: list[State] = [plan.start()]

    def play() -> None:
        states[0], _ = play_round(states[0], federation, plan.method)

    return play


def ten_times(play: Callable[[], None]) -> Callable[[], None]:
    """Ten rounds in one turn, where a single one is too short to be timed."""

    def plays() -> None:
        for _ in range(10):
            play()

    return plays


def compare(name: str, ours: Callable[[], None], theirs: Callable[[], None]) -> None:
    """Both in turns; the first turn warms up."""
    turns = [(measure(ours), measure(theirs)) for _ in range(TURNS + 1)][1:]
    words = []
    for which, clock in enumerate(("processor", "clock")):
        ratios = [mine[which] / other[which] for mine, other in turns]
        text = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        words.append(f"{clock} {text}")
        found[FIGURES[name][0], "by the clock" if which else "processor time"] = text
    seconds = statistics.median(mine[1] for mine, _ in turns)
    found[FIGURES[name][0], "seconds"] = f"{seconds:.2f}"
    found[FIGURES[name][0], "aim"] = FIGURES[name][1]
    show(name, ", ".join(words), seconds)


def measure(play: Callable[[], None]) -> tuple[float, float]:
    """Seconds of processor time, and by the clock."""
    processor, clock = processor_seconds(), time.perf_counter()
    play()
    return processor_seconds() - processor, time.perf_counter() - clock


def show(name: str, value: str, seconds: float | None = None) -> None:
    taken = "" if seconds is None else f", {seconds:.2f} s a round"
    print(f"{name:8} {value}{taken}; load {os.getloadavg()[0]:.1f}", flush=True)


def steps_of(model: nn.Module, samples: Samples, batch: int, lr: float) -> None:
    """What one would write by hand: one client's epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    x, y = samples.inputs[0], samples.labels
    for index in torch.randperm(len(y)).split(batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()


def bare_round(model: nn.Module, clients: list[Samples], batch: int) -> None:
    """A round by hand: each client from the same weights, and their mean."""
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    total = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    for samples in clients:
        model.load_state_dict(start)
        steps_of(model, samples, batch, 0.01)
        for name, tensor in model.state_dict().items():
            total[name].add_(tensor, alpha=1 / len(clients))
    model.load_state_dict(total)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def serve_bare(pipe: Connection, build: Callable[[], nn.Module], clients: list[Samples], batch: int) -> None:
    torch.set_num_threads(1)
    model = build()
    while pipe.recv():
        bare_round(model, clients, batch)
        pipe.send(True)


def bare_rounds(
    stack: ExitStack, build: Callable[[], nn.Module], samples: Samples, clients: int, batch: int
) -> Callable[[], None]:
    """Something that plays one more round by hand, in two processes, each time it is called."""
    context = multiprocessing.get_context("forkserver")
    pipes = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        arguments = (theirs, build, [samples] * (clients // 2), batch)
        context.Process(target=serve_bare, args=arguments, daemon=True).start()
        stack.callback(ours.send, False)
        pipes.append(ours)

    def play() -> None:
        for pipe in pipes:
            pipe.send(True)
        for pipe in pipes:
            pipe.recv()

    return play


def small_cnn() -> nn.Module:
    return Cnn("none").build((1, 28, 28), 10, ())


def step() -> None:
    """First as torch comes, then with memory kept between batches, as in a worker process."""
    samples, usual = drawn(320, 1, 28, 28), Learning(batch_size=64, lr=0.01)
    networks: dict[str, Callable[[], nn.Module]] = {"own": OwnNet, "cnn": small_cnn}

    def by_hand(build: Callable[[], nn.Module]) -> Callable[[], None]:
        return partial(steps_of, build(), samples, 64, 0.01)

    def ours(build: Callable[[], nn.Module], layout: Layout, precision: Precision) -> Callable[[], None]:
        learning = replace(usual, precision=precision)
        model = laid_out(build(), layout)
        return lambda: void(train(model, samples, learning, torch.Generator(), TaskLoss()))

    with one_thread():
        first = {name: alone(by_hand(build)) for name, build in networks.items()}
        keep_freed_memory()
        for name, build in networks.items():
            plays = {"by hand": by_hand(build)}
            for precision in get_args(Precision):
                plays |= {f"{precision}, {layout}": ours(build, layout, precision) for layout in get_args(Layout)}
            turns = [{way: process_seconds(play) for way, play in plays.items()} for _ in range(TURNS + 1)][1:]
            show("step", f"{name}, by hand, as torch comes: {1000 * first[name] / 5:.1f} ms")
            for way in plays:
                middle = statistics.median(turn[way] for turn in turns)
                show("step", f"{name}, {way}: {1000 * middle / 5:.1f} ms, {middle / first[name]:.2f}")


def void(_: object) -> None:
    """Nobody looks at what came of it."""


def alone(play: Callable[[], None]) -> float:
    return statistics.median([process_seconds(play) for _ in range(TURNS + 1)][1:])


def process_seconds(play: Callable[[], None]) -> float:
    begun = time.process_time()
    play()
    return time.process_time() - begun


def own(precision: str = "float32") -> None:
    keys = {"task": "speed:pictures", "model": "speed:OwnNet", "clients": 4, "partition": "iid", "batch_size": 64}
    with one_thread(), ExitStack() as stack:
        play = rounds_of(from_table({**keys, "lr": 0.01, "workers": 2, "rounds": 99, "precision": precision}), stack)
        bare = bare_rounds(stack, OwnNet, drawn(1200, 1, 28, 28), 4, 64)
        compare("own" if precision == "float32" else "half", play, bare)


def many() -> None:
    keys = {"task": "speed:vectors", "model": "mlp:64", "clients": 1000, "partition": "iid", "batch_size": 30}
    with one_thread(), ExitStack() as stack:
        play = rounds_of(from_table({**keys, "lr": 0.01, "workers": 2, "rounds": 99}), stack)
        compare("many", play, bare_rounds(stack, perceptron, drawn(60, 784), 1000, 30))


def peak_kilobytes() -> int:
    """What this process needed at most, on Linux; ru_maxrss would hold what its parent needed, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def few() -> None:
    """In processes of their own: what a process needed at most says nothing of what came later."""
    code = "import sys; sys.path.insert(0, 'benchmarks'); import speed; speed.few_here({})"
    for all in (False, True):
        print(subprocess.check_output([sys.executable, "-c", code.format(all)], text=True).strip(), flush=True)


def few_here(all: bool) -> None:
    task, clients = ("speed:tiny", 10_000) if all else ("speed:few_tiny", 100)
    keys = {"task": task, "clients": clients, "partition": "iid", "model": "mlp:32", "selection": "uniform:100"}
    with one_thread(), ExitStack() as stack:
        play = rounds_of(from_table({**keys, "workers": 1, "rounds": 99}), stack)
        taken = []
        for _ in range(TURNS + 1):
            start = time.perf_counter()
            play()
            taken.append(time.perf_counter() - start)
    peak = peak_kilobytes() // 1024
    show("few", f"{clients} clients, 100 asked: the moderator's peak {peak} MB", statistics.median(taken[1:]))


def memory() -> None:
    code = "import sys; sys.path.insert(0, 'benchmarks'); import speed; speed.memory_here()"
    print(subprocess.check_output([sys.executable, "-c", code], text=True).strip(), flush=True)


def memory_here() -> None:
    """Beyond what the process had once all was loaded: the first model is in that already."""
    keys = {"task": "speed:hundred", "model": "mlp:25000", "clients": 4, "partition": "iid", "workers": 2, "rounds": 9}
    with one_thread(), ExitStack() as stack:
        plan = make_plan(from_table(keys))
        federation, state = stack.enter_context(federation_of(plan, None)), plan.start()
        before = peak_kilobytes()
        for _ in range(2):
            state, _ = play_round(state, federation, plan.method)
        growth = 1024 * (peak_kilobytes() - before)
    show("memory", f"{growth / size(state.model):.1f} x the model of {size(state.model) / 1e6:.0f} MB")


def start() -> None:
    code = (
        "import time; t = time.perf_counter()\n"
        "from holdfast.engines.forking import begin_ahead; begin_ahead(None)\n"  # as the commands do
        "from holdfast.play import *\nfrom holdfast.runs.experiment import *\n"
        "plan = make_plan(Experiment(workers=2))\n"
        "with federation_of(plan, None): print(time.perf_counter() - t)"
    )
    taken = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3)]
    show("start", f"{statistics.median(taken):.1f} s ({min(taken):.1f} to {max(taken):.1f})")


def feddig() -> None:
    keys = {"task": "fashion-mini", "model": "features", "workers": 0, "rounds": 99}
    with one_thread(), ExitStack() as stack:
        ours = rounds_of(from_table({**keys, "absence": "feddig"}), stack)
        compare("feddig", ten_times(ours), ten_times(rounds_of(from_table(keys), stack)))


def jury() -> None:
    keys = {"task": "fashion-mini", "model": "cnn", "workers": 0, "rounds": 99}
    with one_thread(), ExitStack() as stack:
        ours = rounds_of(from_table({**keys, "trust": "jury"}), stack)
        compare("jury", ours, rounds_of(from_table(keys), stack))


PARTS: dict[str, Callable[[], None]] = {
    "step": step,
    "own": own,
    "half": partial(own, "bfloat16"),
    "many": many,
    "few": few,
    "memory": memory,
    "start": start,
    "feddig": feddig,
    "jury": jury,
}


def kept() -> dict[tuple[str, str], str]:
    """What was saved before."""
    path = DOCS / "results" / "speed.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else {}
    return {(row, column): value for row, cells in rows.items() for column, value in cells.items()}


if __name__ == "__main__":
    wanted = [word for word in sys.argv[1:] if word != "--save"]
    for part in wanted or PARTS:
        PARTS[part]()
    if "--save" in sys.argv:
        path = save("speed", {**kept(), **found}, (), corner="figure", command="python benchmarks/speed.py --save")
        print(table(json.loads(path.read_text()), f"results/{path.name}"))
