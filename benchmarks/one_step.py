"""Processor time of one training step: each layout and precision, against the same network in a loop by hand.

    python benchmarks/one_step.py [--save]

A batch of 64 pictures of 28 x 28 on one thread; medians of five times five steps, as parts of what the loop by hand
takes as torch comes. `--save` writes docs/results/step.json.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import get_args

import torch
from beside.shared import OwnNet
from saved import save_parts
from speed import TURNS, drawn, show, steps_of
from torch import nn

from holdfast.engines.worker import keep_freed_memory
from holdfast.learning.device import Precision
from holdfast.learning.loop import train
from holdfast.learning.objective import TaskLoss
from holdfast.learning.settings import Learning
from holdfast.models.networks import Cnn, Layout, laid_out
from holdfast.play import one_thread


def small_cnn() -> nn.Module:
    return Cnn("none").build((1, 28, 28), 10, ())


def step() -> dict[tuple[str, str], str]:
    """First as torch comes, then with memory kept between batches, as in a worker process."""
    found = {}
    samples, usual = drawn(320, 1, 28, 28), Learning(batch_size=64, lr=0.01)
    networks: dict[str, Callable[[], nn.Module]] = {
        "`cnn:norm=none`": small_cnn,
        "a user's own, ReLU before pooling": OwnNet,
    }

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
            plays = {"by hand, memory kept": by_hand(build)}
            for precision in get_args(Precision):
                plays |= {f"{precision}, {layout}": ours(build, layout, precision) for layout in get_args(Layout)}
            turns = [{way: process_seconds(play) for way, play in plays.items()} for _ in range(TURNS + 1)][1:]
            found[name, "by hand, as torch comes"] = f"{1000 * first[name] / 5:.1f} ms"
            for way in plays:
                middle = statistics.median(turn[way] for turn in turns)
                found[name, way] = f"{middle / first[name]:.2f}"
    return found


def void(_: object) -> None:
    """Nobody looks at what came of it."""


def alone(play: Callable[[], None]) -> float:
    return statistics.median([process_seconds(play) for _ in range(TURNS + 1)][1:])


def process_seconds(play: Callable[[], None]) -> float:
    begun = time.process_time()
    play()
    return time.process_time() - begun


if __name__ == "__main__":
    cells = step()
    for (network, way), value in cells.items():
        show("step", f"{network}, {way}: {value}")
    if "--save" in sys.argv:
        save_parts("step", cells, "python benchmarks/one_step.py --save", corner="network")
