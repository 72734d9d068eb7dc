"""The bench itself: it does what other tests take for granted."""

from __future__ import annotations

from algorithms_bench import Bench, plain

from holdfast.algorithms.fedavg import FedAvg
from holdfast.learning.schedules import Cosine


def test_the_bench_takes_the_steps_it_claims() -> None:
    bench = Bench(FedAvg(), targets=[8.0], samples=[3], learning=plain(0.5))
    assert bench.play() == 7.0  # each step halves the distance to 8: 4, 6, 7
    twice = Bench(FedAvg(), targets=[8.0], samples=[1], learning=plain(0.5, epochs=2))
    assert twice.play() == 6.0


def test_momentum_on_the_bench_is_that_of_the_textbook() -> None:
    # v <- 0.9 v + g, w <- w - lr v: from distance e the three steps lead to 0.5 e, -0.2 e, -0.73 e.
    bench = Bench(FedAvg(), targets=[10.0], samples=[3], learning=plain(0.5, momentum=0.9))
    assert abs(bench.play() - 17.3) < 1e-5


def test_the_cosine_schedule_reaches_the_clients() -> None:
    # Half way through the run, the learning rate is half of 0.5: one step goes a quarter of the way.
    bench = Bench(FedAvg(), targets=[8.0], samples=[1], learning=plain(0.5), away=((0, 1, 5),), schedule=Cosine())
    for _ in range(4):
        assert bench.play() == 0.0
    assert abs(bench.play() - 2.0) < 1e-6
