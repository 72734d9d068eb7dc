"""Server optimisers: numbers by hand through the real round, a plain oracle, every algorithm, kill and resume."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from algorithms_bench import Bench, plain
from engine_helpers import assert_same_run, experiment, interrupted
from round_bench import first_state, make_clients, make_method, same_bits

from holdfast.algorithms import ALGORITHMS
from holdfast.algorithms.adabest import AdaBest
from holdfast.algorithms.fedavg import FedAvg
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.engines.inline import Inline
from holdfast.learning.server_optimizers import SERVER_OPTIMIZERS, Adam, Momentum, ServerOptimizer
from holdfast.learning.settings import Learning
from holdfast.play import resume, run
from holdfast.round import play_round
from holdfast.runs.build import make_plan
from holdfast.runs.store import Run

NAMES = [name for name in SERVER_OPTIMIZERS if name != "none"]


@dataclass(frozen=True)
class Halfway(ServerOptimizer):
    """A user's own: half of the way to the aggregated model."""

    def step(self, model, aggregated, memory):  # type: ignore[no-untyped-def]
        return {name: (weight + aggregated[name]) / 2 for name, weight in model.items()}, memory


@dataclass(frozen=True)
class Squashed(ServerOptimizer):
    def step(self, model, aggregated, memory):  # type: ignore[no-untyped-def]
        return {name: weight.sum() for name, weight in model.items()}, memory


def bench(optimizer: ServerOptimizer, algorithm: FedAvg | None = None, **changes: object) -> Bench:
    """Two clients, m = 8 and 16, one step of lr 0.5 each: the aggregated model is half of the way to 12."""
    usual = {"targets": [8.0, 16.0], "samples": [1, 1], "learning": plain(0.5)}
    made = Bench(algorithm or FedAvg(), **{**usual, **changes})  # type: ignore[arg-type]
    made.method = replace(made.method, server_optimizer=optimizer)
    made.state = replace(made.state, server_optimizer=optimizer.begin(made.state.model))
    return made


def test_momentum_by_hand() -> None:
    # Round 1: D = 6, v = 6, w = 6. Round 2: D = 3, v = 0.5 x 6 + 3 = 6, w = 12. Round 3: D = 0, v = 3, w = 15.
    played = bench(Momentum(beta=0.5))
    assert [played.play() for _ in range(3)] == [6.0, 12.0, 15.0]


def test_adam_by_hand() -> None:
    # tau = 1, so v starts at 1. D = 6: m = 3, v = 0.5 + 18 = 18.5, w = 2 x 3 / (sqrt(18.5) + 1) = 1.1318.
    played = bench(Adam(lr=2.0, beta1=0.5, beta2=0.5, tau=1.0))
    first = 6 / (math.sqrt(18.5) + 1)
    assert played.play() == pytest.approx(first, rel=1e-6)
    d = (12 - first) / 2
    m, v = 0.5 * 3 + 0.5 * d, 0.5 * 18.5 + 0.5 * d**2
    assert played.play() == pytest.approx(first + 2 * m / (math.sqrt(v) + 1), rel=1e-6)


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad"])
def test_reddis_algorithm_2_in_plain_numbers(name: str) -> None:
    optimizer = choose(SERVER_OPTIMIZERS, Choice(name, {"lr": 0.3, "beta1": 0.6, "tau": 0.1}), "server_optimizer")
    w, m, v, memory = 1.0, 0.0, 0.1**2, optimizer.begin({"w": torch.tensor([1.0], dtype=torch.float64)})
    for d in (2.0, -0.5, 0.0, 1e-3, -4.0):
        m = 0.6 * m + 0.4 * d
        if name == "adagrad":
            v = v + d * d
        elif name == "yogi":
            v = v - 0.01 * d * d * ((v > d * d) - (v < d * d))
        else:
            v = 0.99 * v + 0.01 * d * d
        model = {"w": torch.tensor([w], dtype=torch.float64)}
        new, memory = optimizer.step(model, {"w": model["w"] + d}, memory)
        w = w + 0.3 * m / (math.sqrt(v) + 0.1)
        assert float(new["w"]) == pytest.approx(w, rel=1e-12)
        w = float(new["w"])


def test_without_updates_nothing_changes_and_a_diverged_round_does_not_count() -> None:
    played = bench(Momentum(beta=0.5), away=((0, 2, 3), (1, 2, 3)))
    played.play()
    before = played.state
    assert played.play() == 6.0
    assert torch.equal(played.state.server_optimizer["w"], before.server_optimizer["w"])
    played.method = replace(played.method, server_optimizer=Momentum(beta=0.5, lr=1e38))  # w = 6 x 1e38 overflows
    played.state = replace(played.state, server_optimizer={"w": torch.tensor([1e38])})
    kept = played.state
    assert played.play() == 6.0
    assert any("diverged" in note for note in played.record.notes)
    assert played.state.server_optimizer is kept.server_optimizer


def test_adabests_momentum_does_not_see_the_server_optimisers_step_twice() -> None:
    """Where clients do not move, AdaBest alone stays; so it must after a server optimiser has moved the model."""
    played = bench(Halfway(), AdaBest(mu=0.0, beta=0.5))
    w = played.play()  # aggregated: 6 + 0.5 x 6 = 9; half of the way: 4.5, and m moves by -4.5: 6 - 4.5
    assert (w, played.server) == (4.5, 1.5)


def test_every_algorithm_composes() -> None:
    for algorithm in sorted({*ALGORITHMS} - {"fedbn", "oneshot"}):  # fedbn: test_shares.py; oneshot plays no rounds
        plan = {"algorithm": algorithm, "lr": 0.01, "server_optimizer": "yogi", "rounds": 2, "workers": 0}
        state = run(experiment(**plan)).state
        assert state is not None
        assert all(tensor.isfinite().all() for tensor in {**state.model, **state.server_optimizer}.values())
        none = run(experiment(**{**plan, "server_optimizer": "none"})).state
        assert none is not None
        assert not any(torch.equal(state.model[name], none.model[name]) for name in state.model)


def test_buffers_are_averaged_as_ever() -> None:
    learning, states = Learning(batch_size=4, lr=0.1), []
    for optimizer in (ServerOptimizer(), Adam()):
        method = replace(make_method(FedAvg(), learning, 3), server_optimizer=optimizer)
        first = first_state(method)
        first = replace(first, server_optimizer=optimizer.begin(first.model))
        states.append(play_round(first, Inline(make_clients(FedAvg(), learning)), method)[0])
    assert states[0].buffers
    assert same_bits(states[0].buffers, states[1].buffers)
    assert not same_bits(states[0].model, states[1].model)


@pytest.mark.parametrize("trust", ["median", "fedtest", "krum:f=1"])
def test_every_trust_rule_composes(trust: str) -> None:
    history = run(experiment(trust=trust, server_optimizer="momentum:beta=0.5", partition="iid", clients=6))
    assert history.final_accuracy > 0.3


@pytest.mark.parametrize("name", [*NAMES, "test_server_optimizers:Halfway"])
def test_the_same_bits_with_workers_and_after_a_resume(name: str, tmp_path: Path) -> None:
    keys = {"server_optimizer": name, "algorithm": "adabest", "scenario": "dropout:0.3"}
    reference = run(experiment(workers=0, **keys))
    if name in ("adam", "test_server_optimizers:Halfway"):
        assert_same_run(run(experiment(workers=2, **keys)), reference)
    interrupted(experiment(workers=0, **keys), tmp_path / "run", after=2)
    assert_same_run(resume(tmp_path / "run"), reference)


def test_the_digests_step_comes_after_it() -> None:
    from feddig_helpers import experiment as with_digests

    keys = {"scenario": {"name": "intervals", "away": [[1, 2, 4]]}, "rounds": 3, "server_optimizer": "adam"}
    history = run(with_digests(**keys))
    assert [record.stand_ins for record in history.records] == [[], [1], [1]]
    assert history.state is not None
    before_digests = run(with_digests(**keys, absence="feddig:server_epochs=0")).state
    assert before_digests is not None
    assert not all(torch.equal(history.state.model[n], t) for n, t in before_digests.model.items())


def test_a_checkpoint_without_the_group_opens(tmp_path: Path) -> None:
    interrupted(experiment(workers=0), tmp_path / "run", after=2)
    state = Run.open(tmp_path / "run").last_state()
    assert state is not None
    assert state.server_optimizer == {}


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("adma", "server_optimizer: 'adma' is not known; did you mean 'adam'?"),
        ("none:1", "'none' takes no option"),
        ("adagrad:beta2=0.5", "'adagrad' has no option 'beta2'"),
        ("adam:beta2=1", "beta2 must be in [0, 1)"),
        ("yogi:tau=0", "lr and tau must be positive"),
        ("momentum:beta=1", "beta must be in [0, 1)"),
        ("test_server_optimizers:Squashed", "does not work here (ValueError: in its model"),
        ("holdfast.algorithms:FedAvg", "derive a class from holdfast.learning.server_optimizers.ServerOptimizer"),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_round_1(choice: str, says: str) -> None:
    with pytest.raises(HoldfastError) as error:
        make_plan(experiment(server_optimizer=choice))
    assert says in str(error.value)
    assert "\n" not in str(error.value)
