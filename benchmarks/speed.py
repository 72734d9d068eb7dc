"""How fast it is, as ratios of things done in turns within one run: a busy machine slows both alike.

    python benchmarks/speed.py [own] [half] [many] [feddig] [testing] [jury] [--save]     or: make bench-speed

own       a user's own network (conv 32, conv 64, fc 128, no padding) against a plain loop in as many processes
half      the same in bfloat16, against the same plain loop in float32
many      1,000 clients of 60 samples, 784-64-10, two steps each, against a bare loop in as many processes
feddig    a round of FedDig with `features`, nobody away, against FedAvg
testing   a round of the jury without its search for backdoors, CNN, against FedAvg
jury      the same with 8 clients and the search, which is every second round; fewer than seven do not search

Each prints the median of the ratios of neighbouring turns, the least and the largest, first of processor time (of this
process and all those it started: what counts on a busy machine), then of the clock, and the machine's load. `--save`
writes docs/results/speed.json; parts that are not measured keep what it says of them.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection

import torch
from beside.shared import OwnNet, processor_seconds
from saved import save_parts
from torch import nn

from holdfast.core.types import State
from holdfast.data.task import Samples, Task
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
    "testing": ("the jury with `cnn`, without the search for backdoors, against FedAvg", "1.15"),
    "jury": ("the same with the search, 8 members: fewer than seven do not search", "1.5"),
}
found: dict[tuple[str, str], str] = {}  # what is saved


def drawn(count: int, *shape: int) -> Samples:
    generator = torch.Generator().manual_seed(0)
    return Samples((torch.rand(count, *shape, generator=generator),), torch.arange(count) % 10)


def pictures() -> Task:
    return Task("pictures", drawn(4 * 1500, 1, 28, 28), drawn(10, 1, 28, 28), tuple("0123456789"))


def vectors() -> Task:
    return Task("vectors", drawn(75_000, 784), drawn(10, 784), tuple("0123456789"))


def rounds_of(experiment: Experiment, stack: ExitStack) -> Callable[[], None]:
    """Something that plays one more round of an experiment, each time it is called."""
    plan = make_plan(experiment)
    federation = stack.enter_context(federation_of(plan, None))
    states: list[State] = [plan.start()]

    def play() -> None:
        states[0], _ = play_round(states[0], federation, plan.method)

    return play


def times(number: int, play: Callable[[], None]) -> Callable[[], None]:
    """Several rounds in one turn, where a single one is too short to be timed, or not like the next."""

    def plays() -> None:
        for _ in range(number):
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
    found[FIGURES[name][0], "seconds a turn"] = f"{seconds:.2f}"
    found[FIGURES[name][0], "aim"] = FIGURES[name][1]
    show(name, f"{', '.join(words)}, {seconds:.2f} s a turn")


def measure(play: Callable[[], None]) -> tuple[float, float]:
    """Seconds of processor time, and by the clock."""
    processor, clock = processor_seconds(), time.perf_counter()
    play()
    return processor_seconds() - processor, time.perf_counter() - clock


def show(name: str, value: str) -> None:
    print(f"{name:8} {value}; load {os.getloadavg()[0]:.1f}", flush=True)


def steps_of(model: nn.Module, samples: Samples, batch: int, lr: float) -> None:
    """What one would write by hand: one client's epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    x, y = samples.inputs[0], samples.labels
    for index in torch.randperm(len(y)).split(batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.index_select(0, index)), y.index_select(0, index)).backward()
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


def serve_bare(pipe: Connection, build: Callable[[], nn.Module], shape: Sequence[int], number: int, batch: int) -> None:
    torch.set_num_threads(1)
    model, clients = build(), [drawn(*shape) for _ in range(number)]  # each with samples of its own
    while pipe.recv():
        bare_round(model, clients, batch)
        pipe.send(True)


def bare_rounds(
    stack: ExitStack, build: Callable[[], nn.Module], shape: Sequence[int], clients: int, batch: int
) -> Callable[[], None]:
    """Something that plays one more round by hand, in two processes, each time it is called."""
    context = multiprocessing.get_context("forkserver")
    pipes = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        arguments = (theirs, build, shape, clients // 2, batch)
        context.Process(target=serve_bare, args=arguments, daemon=True).start()
        stack.callback(ours.send, False)
        pipes.append(ours)

    def play() -> None:
        for pipe in pipes:
            pipe.send(True)
        for pipe in pipes:
            pipe.recv()

    return play


def own(precision: str = "float32") -> None:
    keys = {"task": "speed:pictures", "model": "speed:OwnNet", "clients": 4, "partition": "iid", "batch_size": 64}
    with one_thread(), ExitStack() as stack:
        play = rounds_of(from_table({**keys, "lr": 0.01, "workers": 2, "rounds": 99, "precision": precision}), stack)
        bare = bare_rounds(stack, OwnNet, (1200, 1, 28, 28), 4, 64)
        compare("own" if precision == "float32" else "half", play, bare)


def many() -> None:
    keys = {"task": "speed:vectors", "model": "mlp:64", "clients": 1000, "partition": "iid", "batch_size": 30}
    with one_thread(), ExitStack() as stack:
        play = rounds_of(from_table({**keys, "lr": 0.01, "workers": 2, "rounds": 99}), stack)
        compare("many", play, bare_rounds(stack, perceptron, (60, 784), 1000, 30))


def feddig() -> None:
    keys = {"task": "fashion-mini", "model": "features", "workers": 0, "rounds": 99}
    with one_thread(), ExitStack() as stack:
        ours = rounds_of(from_table({**keys, "absence": "feddig"}), stack)
        compare("feddig", times(10, ours), times(10, rounds_of(from_table(keys), stack)))


def jury(name: str, rule: str, clients: int) -> None:
    keys = {"task": "fashion-mini", "model": "cnn", "workers": 0, "rounds": 99, "clients": clients}
    with one_thread(), ExitStack() as stack:
        ours = rounds_of(from_table({**keys, "trust": rule}), stack)
        compare(name, times(2, ours), times(2, rounds_of(from_table(keys), stack)))


PARTS: dict[str, Callable[[], None]] = {
    "own": own,
    "half": partial(own, "bfloat16"),
    "many": many,
    "feddig": feddig,
    "testing": partial(jury, "testing", "jury:patches=0", 4),
    "jury": partial(jury, "jury", "jury", 8),
}


if __name__ == "__main__":
    wanted = [word for word in sys.argv[1:] if word != "--save"]
    for part in wanted or PARTS:
        PARTS[part]()
    if "--save" in sys.argv:
        save_parts("speed", found, "python benchmarks/speed.py --save")
