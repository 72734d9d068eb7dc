"""Holdfast's own engine, two worker processes; its arguments name the precision and the layout."""

from __future__ import annotations

import sys
from contextlib import ExitStack

import torch
from shared import BATCH, CLIENTS, IMAGES, LR, MOMENTUM, SHAPE, TURNS, Turns

from holdfast.data.task import Samples, Task
from holdfast.play import federation_of, one_thread
from holdfast.round import play_round
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import from_table


def pictures() -> Task:
    """As many training samples for each client as the peers have, after a fifth is held out."""
    count = CLIENTS * IMAGES * 5 // 4
    train = Samples((torch.rand(count, *SHAPE),), torch.arange(count) % 10)
    return Task("pictures", train, train.take(torch.arange(10)), tuple("0123456789"))


def main() -> None:
    keys = {"task": "with_holdfast:pictures", "model": "shared:OwnNet", "clients": CLIENTS, "partition": "iid"}
    keys |= {"batch_size": BATCH, "lr": LR, "momentum": MOMENTUM, "rounds": TURNS, "workers": 2}
    keys |= {"precision": sys.argv[1], "layout": sys.argv[2]}
    turns = Turns()
    with one_thread(), ExitStack() as stack:
        plan = make_plan(from_table(keys))
        federation, state = stack.enter_context(federation_of(plan, None)), plan.start()
        for _ in range(TURNS):
            turns.wait()
            state, _ = play_round(state, federation, plan.method)
        turns.tell()


if __name__ == "__main__":
    main()
