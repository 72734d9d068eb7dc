"""What holds for any round: weights, order, absence, divergence, buffers, and clients that go on being refused."""

from __future__ import annotations

import math

import pytest
import torch
from algorithms_bench import Bench, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from round_bench import ALGORITHM_NAMES, Away, Spoiled, play, same_bits, same_state, with_scalar, with_tensor

from holdfast.algorithms import AdaBest, FedAvg, FedDyn, FedNova
from holdfast.core.types import State, Update
from holdfast.core.validate import all_finite
from holdfast.learning.settings import Learning
from holdfast.trust import BySamples, Uniform
from holdfast.trust.robust.merging import average_buffers

EVERY = settings(max_examples=50, deadline=None, derandomize=True)
counts = st.lists(st.integers(1, 10**6), min_size=1, max_size=12)


def updates_of(samples: list[int], value: float = 1.0) -> list[Update]:
    return [Update(c, {"w": torch.full((3,), value)}, n, steps=1 + c % 3) for c, n in enumerate(samples)]


@given(samples=counts, uniform=st.booleans())
@EVERY
def test_weights_sum_to_one(samples: list[int], uniform: bool) -> None:
    rule = Uniform() if uniform else BySamples()
    judged = rule.judge(updates_of(samples), None, State(0, {}, {}, {}, {}, {}))  # type: ignore[arg-type]
    assert math.fsum(judged.weights) == pytest.approx(1.0, abs=1e-12)
    assert min(judged.weights) > 0
    expected = [1 / len(samples) if uniform else n / sum(samples) for n in samples]
    assert list(judged.say.values()) == pytest.approx(expected, rel=1e-12)


@given(samples=counts, value=st.floats(-100, 100, width=32))
@EVERY
def test_equal_deltas_average_to_that_delta(samples: list[int], value: float) -> None:
    updates, weights = updates_of(samples, value), [n / sum(samples) for n in samples]
    model, memory = FedAvg().aggregate({"w": torch.zeros(3)}, updates, weights, {}, 12, Learning())
    torch.testing.assert_close(model["w"], torch.full((3,), value), rtol=1e-5, atol=1e-6)
    assert memory == {}


@given(samples=counts, steps=st.integers(1, 50), rho=st.sampled_from([0.0, 0.9]))
@EVERY
def test_fednova_with_equal_steps_is_fedavg(samples: list[int], steps: int, rho: float) -> None:
    updates = [Update(c, {"w": torch.tensor([float(c)])}, n, steps) for c, n in enumerate(samples)]
    weights = [n / sum(samples) for n in samples]
    start, learning = {"w": torch.zeros(1)}, Learning(momentum=rho)
    nova, _ = FedNova().aggregate(start, updates, weights, {}, 12, learning)
    plain_average, _ = FedAvg().aggregate(start, updates, weights, {}, 12, learning)
    torch.testing.assert_close(nova, plain_average, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ALGORITHM_NAMES)
@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0)])
def test_the_order_of_clients_changes_no_bit(name: str, order: tuple[int, ...]) -> None:
    told = play(name, 3, lambda federation: Away(federation, {(1, 2)}, order))
    usual = play(name, 3, lambda federation: Away(federation, {(1, 2)}))
    assert same_state(told[-1][0], usual[-1][0])
    assert told[-1][1].weights == usual[-1][1].weights


@pytest.mark.parametrize("name", ALGORITHM_NAMES)
def test_nobody_there_changes_nothing_and_the_run_goes_on(name: str) -> None:
    everyone = {(1, client) for client in range(3)}
    (first, _), (second, record), (third, after) = play(name, 3, lambda f: Away(f, everyone))
    assert same_bits(first.model, second.model)
    assert same_bits(first.buffers, second.buffers)
    assert same_bits(first.algorithm, second.algorithm)
    assert (second.round, second.accepted, second.absent) == (2, first.accepted, (0, 1, 2))
    assert (record.absent, record.loss, record.weights) == (dict.fromkeys(range(3), "away"), None, {})
    assert not same_bits(second.model, third.model)
    assert (third.absent, after.absent) == ((), {})


@pytest.mark.parametrize("name", ALGORITHM_NAMES)
def test_a_fair_run_has_nothing_to_note(name: str) -> None:
    for _, record in play(name, 3):
        assert list(record.notes) == []
        assert record.refused == record.absent == {}
        assert record.loss is not None


@pytest.mark.parametrize("algorithm", [FedDyn(alpha=1e6), FedAvg(), AdaBest(mu=1e30)], ids=repr)
def test_a_run_that_diverges_says_so_and_its_model_stays_finite(algorithm: FedAvg) -> None:
    bench = Bench(algorithm, [8.0, -16.0], [1, 3], plain(1e6, momentum=0.9), rounds=12)
    said = []
    for _ in range(12):
        bench.play()
        assert all_finite(bench.state.model)
        assert all_finite(bench.state.algorithm)
        said += [*bench.record.notes, *bench.record.refused.values()]
    assert any("diverged" in word or "not finite" in word for word in said)
    assert bench.state.round == 12


def test_a_diverged_round_does_not_count() -> None:
    # Two finite deltas whose FedDyn step is not: the mean 2e38 doubled by -h/alpha is beyond float32.
    far = with_tensor("delta/w", lambda tensor: torch.full((1,), 2e38))

    bench = Bench(FedDyn(alpha=3.0), [8.0, -16.0], [1, 3], plain(0.125))
    bench.play()
    before = bench.state
    bench.federation = Spoiled(bench.federation, dict.fromkeys([(1, 0), (1, 1)], far))  # type: ignore[assignment]
    bench.play()
    assert bench.record.notes == ["diverged: the averaged model is not finite, so the last one was kept"]
    assert same_bits(bench.state.model, before.model)
    assert same_bits(bench.state.algorithm, before.algorithm)
    assert (bench.state.accepted, bench.state.round) == (before.accepted, 2)


def test_buffers_are_averaged_by_weight_and_counters_take_the_lower_median() -> None:
    def update(client: int, mean: float, tracked: int) -> Update:
        buffers = {"mean": torch.tensor([mean]), "tracked": torch.tensor(tracked)}
        return Update(client, {}, 1, 1, buffers)

    stand_in = Update(2, {}, 1, 1, synthetic=True)  # has no buffers: the others share its weight
    updates = [update(0, 4.0, 3), update(1, 8.0, 7), stand_in]
    after = average_buffers(updates, [0.125, 0.375, 0.5], {"mean": torch.zeros(1), "tracked": torch.tensor(0)})
    assert after["mean"].item() == 7.0  # (1 * 4 + 3 * 8) / 4
    assert after["tracked"].item() == 3
    assert after["tracked"].dtype == torch.int64
    assert average_buffers([stand_in], [1.0], {"mean": torch.ones(1)})["mean"].item() == 1.0


def test_batchnorm_statistics_of_a_round() -> None:
    (state, record), *_ = play("fedavg", 1)
    assert record.weights == {0: 6 / 25, 1: 8 / 25, 2: 11 / 25}
    assert state.buffers["1.num_batches_tracked"].item() == 2  # 2, 2 and 3 steps
    assert state.buffers["1.running_mean"].abs().sum() > 0
    assert not any("running" in name for name in state.model)


def test_a_memory_survives_as_many_refusals_as_there_are() -> None:
    """Refused for six rounds in a row, a client goes on from the memory of the last round that counted."""
    refused = {(round, 1): with_scalar("samples", 0) for round in range(1, 7)}
    away = {(round, 1) for round in range(1, 7)}
    told = play("scaffold", 8, lambda f: Spoiled(f, refused))
    expected = play("scaffold", 8, lambda f: Away(f, away))
    assert told[-1][1].notes == []
    assert same_state(told[-1][0], expected[-1][0])
