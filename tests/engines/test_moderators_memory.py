"""How many copies of the model the moderator holds between rounds: its state's, and the network it tests with."""

from __future__ import annotations

import gc

import torch
from engine_helpers import experiment

from holdfast.play import run
from holdfast.record import Record

HIDDEN = 61  # no other test's networks have weights of this shape


def test_no_model_is_held_twice() -> None:
    held = []

    def count(record: Record) -> None:
        gc.collect()
        tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]
        alike = [one for one in tensors if one.shape == (HIDDEN, 6)]
        held.append(len({one.data_ptr() for one in alike if one.untyped_storage().nbytes() == one.nbytes}))  # no views

    run(experiment(model=f"mlp:{HIDDEN}", workers=1, rounds=3), watch=count)
    assert held == [2, 2, 2]
