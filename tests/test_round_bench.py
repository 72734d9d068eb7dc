"""The bench itself: it does what other tests take for granted."""

from __future__ import annotations

from round_bench import (
    Spoiled,
    first_state,
    make_clients,
    make_method,
    play,
    same_bits,
    same_state,
    with_scalar,
)

from holdfast.algorithms.fedavg import FedAvg
from holdfast.core.types import Message, Reply, State, Tensors
from holdfast.engines.inline import Inline
from holdfast.learning.settings import Learning


def test_the_bench_gives_the_same_bits_twice_and_moves() -> None:
    once, twice = play("scaffold", 2), play("scaffold", 2)
    assert same_state(once[-1][0], twice[-1][0])
    assert not same_bits(once[0][0].model, once[1][0].model)
    assert not same_state(once[-1][0], play("feddyn", 2)[-1][0])


def test_a_spoiled_reply_is_the_clients_own_but_for_the_spoil() -> None:
    federation = Spoiled(Inline(make_clients(FedAvg(), Learning())), {(0, 1): with_scalar("samples", 99)})
    state = first_state(make_method(FedAvg(), Learning(), 3))
    from_round = [Message(c, 0, "train", _tensors(state), {"accepted": -1, "lr": 0.1, "digest": False}) for c in (0, 1)]
    fair, spoiled = federation.ask(from_round)
    assert isinstance(fair, Reply)
    assert isinstance(spoiled, Reply)
    assert fair.scalars["samples"] == 6
    assert spoiled.scalars["samples"] == 99


def _tensors(state: State) -> Tensors:
    return {f"model/{n}": t for n, t in state.model.items()} | {f"buffers/{n}": t for n, t in state.buffers.items()}
