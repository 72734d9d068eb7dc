"""A large model's updates are summed up as they arrive: the same mean, one update in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from algorithms_bench import Bench
from engine_helpers import experiment
from torch import nn

import holdfast
from holdfast.algorithms import ALGORITHMS
from holdfast.algorithms.fedavg import FedAvg
from holdfast.core import types
from holdfast.core.types import Absent, Around, Message, Reply, Update
from holdfast.core.validate import Sizes
from holdfast.learning.settings import Learning
from holdfast.models.networks import fill, hollow, laid_out, lent, weights_from, weights_of
from holdfast.play import run
from holdfast.round import play_round
from holdfast.running_sum import RunningSum, sums_up
from holdfast.trust import TRUSTS


@pytest.fixture(autouse=True)
def every_model_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "LARGE", 1)


class Fleeting(Around):
    """A federation in which the tensors of a reply are worthless once the next one is taken."""

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        raise AssertionError("all at once")

    def each(self, messages: Sequence[Message]) -> Iterator[Reply | Absent]:
        for answer in self._federation.ask(messages):
            yield answer
            for tensor in answer.tensors.values() if isinstance(answer, Reply) else ():
                tensor.fill_(torch.nan)


def bench() -> Bench:
    return Bench(FedAvg(), (1.0, 2.0, 4.0), (10, 20, 30), Learning(batch_size=1, lr=0.01))


def test_the_mean_by_hand_with_one_update_at_a_time() -> None:
    played = bench()
    deltas = [float(client_delta(played, client)) for client in range(3)]
    assert sums_up(played.state, played.method)
    state, record = play_round(played.state, Fleeting(played.federation), played.method)
    by_hand = (10 * deltas[0] + 20 * deltas[1] + 30 * deltas[2]) / 60
    assert float(state.model["w"]) == pytest.approx(by_hand, rel=1e-6)
    assert record.weights == {0: 10 / 60, 1: 20 / 60, 2: 30 / 60}
    assert record.bytes_up == 12


def client_delta(played: Bench, client: int) -> torch.Tensor:
    """What one client alone would change."""
    alone = replace(played.method, selection=lambda clients, state, generator: [client])
    return play_round(played.state, played.federation, alone)[0].model["w"]


def test_an_update_that_is_not_finite_is_refused_and_the_mean_is_that_of_the_others() -> None:
    state, method = bench().state, bench().method
    running = RunningSum(state, [0, 1], method)
    told = {"samples": 10, "steps": 1}
    bad, good = Reply(0, {"delta/w": torch.tensor([torch.inf])}, told), Reply(1, {"delta/w": torch.tensor([3.0])}, told)
    assert not any(one.tensors for one in (running.take(bad), running.take(good)) if isinstance(one, Reply))
    assert running.faults == {0: "delta/w is not finite", 1: None}
    assert running.mean([Update(1, {}, 10, 1)]) == {"w": torch.tensor([3.0])}


def test_a_claim_that_others_may_bound_is_kept_until_they_have_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    played = bench()
    method = replace(played.method, sizes=Sizes())  # nobody knows beforehand what clients hold
    running = RunningSum(played.state, [0, 1], method)
    kept = running.take(Reply(0, {"delta/w": torch.tensor([1.0])}, {"samples": 10**9, "steps": 1}))
    assert isinstance(kept, Reply)
    assert kept.tensors == {"delta/w": torch.tensor([1.0])}
    late = play_round(played.state, played.federation, method)[0].model["w"]
    monkeypatch.setattr(types, "LARGE", 2**40)
    assert torch.allclose(late, play_round(played.state, played.federation, method)[0].model["w"])


def test_rules_and_algorithms_that_look_at_each_update_keep_them_all() -> None:
    state, method = bench().state, bench().method
    for other in ({"trust": TRUSTS["median"]()}, {"trust": TRUSTS["jury"]()}, {"algorithm": ALGORITHMS["fednova"]()}):
        assert not sums_up(state, replace(method, **other))
    assert sums_up(state, replace(method, trust=TRUSTS["uniform"]()))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_bits_for_any_number_of_workers_and_across_a_resume(tmp_path: Path, workers: int) -> None:
    held = experiment(workers=workers, rounds=2)

    class Stop(Exception):
        pass

    def stop(_: object) -> None:
        raise Stop

    with pytest.raises(Stop):
        run(held, tmp_path / "run", stop)
    went_on, whole = holdfast.resume(tmp_path / "run"), run(replace(held, workers=0))
    assert went_on.state is not None
    assert whole.state is not None
    assert all(torch.equal(weight, whole.state.model[name]) for name, weight in went_on.state.model.items())
    assert [record.metrics for record in went_on.records] == [record.metrics for record in whole.records]


def test_testing_a_large_model_takes_no_copy_of_it_and_the_network_holds_none() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    laid_out(network, "channels-last")
    weights, x = weights_of(network), torch.randn(5, 1, 4, 4)
    before = network(x)
    hollow(network)
    assert network[2].weight.untyped_storage().nbytes() == 4
    with torch.no_grad(), lent(network, weights, {}):
        assert network[2].weight.data_ptr() == weights["2.weight"].data_ptr()
        assert network[0].weight.stride(1) == 1  # of another layout: this one is a copy
        assert torch.equal(network(x), before)
    assert network[2].weight.untyped_storage().nbytes() == 4
    fill(network, weights, {})
    assert torch.equal(network(x), before)
    network[2].weight.data.add_(1.0)
    assert not torch.equal(network[2].weight, weights["2.weight"])  # what is filled is the network's own


def test_first_weights_are_the_networks_own_where_they_lie_plainly() -> None:
    network = laid_out(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)), "channels-last")
    taken, copied = weights_from(network), weights_of(network)
    assert taken["2.weight"].data_ptr() == network[2].weight.data_ptr()
    assert [tensor.stride() for tensor in taken.values()] == [tensor.stride() for tensor in copied.values()]
    assert all(torch.equal(tensor, copied[name]) for name, tensor in taken.items())
