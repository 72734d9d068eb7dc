"""Work by speed: numbers by hand, everybody done at the same time, what bounds it, and whose clock counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from algorithms_bench import Bench, plain
from engine_helpers import experiment, interrupted
from flower_helpers import play
from hypothesis import given
from hypothesis import strategies as st

from holdfast.algorithms import FedNova
from holdfast.client import TRAIN
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import Refusal
from holdfast.core.types import Absent, Around, Federation, Message, Reply
from holdfast.learning.workload import BySpeed
from holdfast.play import resume, run
from holdfast.round import train_messages
from holdfast.runs.build import make_plan
from holdfast.runs.store import Run


class Clocked(Around):
    """A federation whose clients take so many seconds a step by the moderator's clock, and say that they took none."""

    def __init__(self, federation: Federation, pace: Mapping[int, float]) -> None:
        super().__init__(federation)
        self._pace = pace

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        return [
            replace(one, seconds=0.0, took=self._pace[one.client] * one.scalars["steps"])
            if isinstance(one, Reply)
            else one
            for one in self._federation.ask(messages)
        ]


def test_two_rounds_by_hand() -> None:
    # One and three steps at 6 and 1 seconds: 6 and 3 seconds, so both are to take 4.5: 0.75 and 4.5 steps, rounded and
    # at least one: 1 and 4. lr = 1/2, no momentum: k steps go 1 - 2^-k of the way.
    # Round 1 from 0: 8/2 = 4 and -16 * 7/8 = -14; tau = 1/4 + 9/4 = 2.5: w = 2.5 (4/4 + -14/3 * 3/4) = -6.25
    # Round 2: 14.25/2 and -9.75 * 15/16; tau = 1/4 + 12/4 = 3.25: w += 3.25 (7.125/4 + -9.140625/4 * 3/4)
    bench = Bench(FedNova(), [8.0, -16.0], [1, 3], plain(0.5))
    bench.method = replace(bench.method, workload=BySpeed())
    bench.federation = Clocked(bench.federation, {0: 6.0, 1: 1.0})  # type: ignore[assignment]
    assert bench.play() == pytest.approx(-6.25)
    assert bench.record.client_steps == {}
    assert bench.state.pace == {0: 6.0, 1: 1.0}
    assert bench.play() == pytest.approx(-6.25 + 3.25 * (7.125 / 4 - 9.140625 / 4 * 0.75))
    assert bench.record.client_steps == {0: 1, 1: 4}
    assert bench.state.without([0]).pace == {1: 1.0}


@given(
    st.lists(st.floats(0.01, 1.0), min_size=3, max_size=8),
    st.floats(0.0, 5.0),
)
def test_all_finish_together_whatever_messages_cost(pace: list[float], overhead: float) -> None:
    """Each client has 1000 usual steps, and the bound is wide: after some rounds all take the time that was said."""
    rule, known = BySpeed(seconds=50.0, most=100.0), dict[int, float]()
    usual = dict.fromkeys(range(len(pace)), 1000)
    for _ in range(30):
        steps = {**usual, **rule.assign(usual, known)}
        took = {client: overhead + steps[client] * pace[client] for client in usual}
        known = rule.measured(known, took, steps)
    assert all(abs(seconds - 50.0) <= 1.0 + pace[client] for client, seconds in took.items())


@given(st.dictionaries(st.integers(0, 9), st.integers(1, 10**6), min_size=1), st.data())
def test_nobody_gets_more_or_fewer_steps_than_the_bound(usual: dict[int, int], data: st.DataObject) -> None:
    pace = {client: data.draw(st.floats(1e-300, 1e300)) for client in usual}
    rule = BySpeed(most=data.draw(st.floats(1.0, 10.0)))
    for client, steps in rule.assign(usual, pace).items():
        assert steps >= 1
        assert usual[client] / rule.most <= steps <= usual[client] * rule.most
        assert rule.allows(steps, usual[client])


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, "more say"),
        ({"algorithm": "fednova", "late": "fedbuff"}, "steps asked for earlier"),
        ({"algorithm": "lac", "optimizer": "adam", "protect": "dp-sgd:epsilon=3"}, "counts on the usual steps"),
        ({"algorithm": "fednova", "workload": "by-speed:most=0.5"}, "most at least 1"),
    ],
)
def test_what_does_not_go_together_is_a_sentence(keys: dict[str, object], why: str) -> None:
    with pytest.raises(HoldfastError, match=why):
        make_plan(experiment(**{"workload": "by-speed", **keys}))


def test_each_engine_measures_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    keys = experiment(algorithm="fednova", workload="by-speed:seconds=0.001,most=2", rounds=3)
    for history in (run(keys), run(replace(keys, workers=2)), play(tmp_path / "flower", keys)):
        assert history.state is not None
        assert set(history.state.pace) == {0, 1, 2, 3}
        assert all(seconds > 0 for seconds in history.state.pace.values())
        assert [len(record.client_steps) for record in history.records] == [0, 4, 4]
    interrupted(keys, tmp_path / "run", after=2)
    before = Run.open(tmp_path / "run").last_state()
    assert before is not None
    assert set(before.pace) == {0, 1, 2, 3}
    after = resume(tmp_path / "run")
    assert set(after.records[-1].client_steps) == {0, 1, 2, 3}
    assert [record.client_steps for record in Run.open(tmp_path / "run").records()] == [
        record.client_steps for record in after.records
    ]


def test_a_site_takes_no_more_steps_than_the_experiment_allows() -> None:
    plan = make_plan(experiment(algorithm="fednova", workload="by-speed:most=2"))
    client = plan.client(0, plan.model(), None)
    usual = plan.method.steps(len(client.train))
    [message] = train_messages(plan.start(), [0], plan.method)
    asked = TRAIN.asked(message)
    TRAIN.check(replace(asked, steps=2 * usual), 0, client, plan.method)
    assert TRAIN.perform(client, replace(asked, steps=2 * usual), 0).steps == 2 * usual
    other = make_plan(experiment(algorithm="fednova"))
    for steps, context in ((2 * usual + 1, plan.method), (0, plan.method), (usual, other.method)):
        with pytest.raises(Refusal, match="does not allow"):
            TRAIN.check(replace(asked, steps=steps), 0, client, context)
