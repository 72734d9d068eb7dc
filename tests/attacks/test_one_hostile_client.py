"""What one client may assert about itself: nothing counts further than what the moderator knows publicly."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import one_hostile
import pytest
import torch
from one_hostile import Liar, Lie, many, pushed, says, with_buffers, with_digest
from torch import Tensor

from holdfast.core.types import Absent, Federation, Message, Reply, Tensors, unpack
from holdfast.engines.inline import Inline
from holdfast.play import run
from holdfast.runs.experiment import from_table
from holdfast.runs.history import History
from holdfast.runs.plan import Plan

SMALL: dict[str, Any] = {
    "samples": 1000, "model": "features:32", "encoder": "scattering:32", "clients": 10, "partition": "iid",
    "rounds": 4, "lr": 0.05, "trust": "jury", "workers": 0,
}  # fmt: skip
NORMED = "one_hostile:normed"


def play(lie: Lie | None = None, liars: Sequence[int] = (3,), **changes: object) -> History:
    return one_hostile.play({**SMALL, **changes}, lie, liars)


@pytest.mark.parametrize("algorithm", ["fednova", "scaffold"])
def test_claimed_steps_change_nothing(algorithm: str) -> None:
    """Steps follow from public facts. A high claim scaled the whole aggregate, a low one the liar's own part."""
    lies = [None, *(says(steps=steps) for steps in (1, 100_000, 2**40))]
    honest, *lied = [play(lie, algorithm=algorithm, trust="samples", rounds=2).state for lie in lies]
    assert honest
    for state in lied:
        assert state
        assert all(torch.equal(state.model[name], weight) for name, weight in honest.model.items())


def loud(value: float, name: str, tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, value) if "running" in name else tensor


@pytest.mark.parametrize("trust", ["jury", "fedtest", "krum", "median"])
def test_running_statistics_of_one_client_do_not_ruin_the_model(trust: str) -> None:
    changes = {"model": NORMED, "trust": trust, "samples": 2000}
    honest = play(**changes)
    assert honest.accuracy[-1] > 0.6
    for value in (1e-6, 100.0, 1e30):
        lied = play(with_buffers(partial(loud, value)), **changes)
        assert lied.accuracy[-1] > honest.accuracy[-1] - 0.06, value
        assert lied.state
        for name, var in lied.state.buffers.items():
            if name.endswith("running_var"):
                assert float((var / honest.state.buffers[name]).log().abs().max()) < 1.0, value


def test_counters_take_the_median_not_the_largest() -> None:
    def late(name: str, tensor: Tensor) -> Tensor:
        return torch.full_like(tensor, 10**12) if "tracked" in name else tensor

    lied = play(with_buffers(late), model=NORMED, rounds=2)
    honest = play(model=NORMED, rounds=2)
    assert lied.state
    assert honest.state
    name = next(name for name in honest.state.buffers if "tracked" in name)
    assert torch.equal(lied.state.buffers[name], honest.state.buffers[name])


def test_testers_judge_with_the_new_running_statistics() -> None:
    """The aggregate in question has new buffers as well as new weights."""
    seen: list[Tensors] = []

    class Spy(Liar):
        def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
            seen.extend(unpack(message.tensors, "buffers") for message in messages if message.job == "test")
            return super().ask(messages)

    def engine(plan: Plan, folder: Path | None) -> Federation:
        model = plan.model()
        return Spy(Inline({id: plan.client(id, model, folder) for id in range(10)}), lambda reply: reply, ())

    run(from_table({**SMALL, "model": NORMED, "rounds": 1}), engine=engine)
    assert seen
    assert all(float(tensors["2.running_mean"].abs().max()) > 0 for tensors in seen)  # at first they are 0


FEDDIG = {"absence": "feddig", "scenario": "sequential", "rounds": 6}


def test_a_digest_with_rows_beyond_the_encoders_bound_is_refused() -> None:
    honest = play(**FEDDIG)
    for far in (1.5, 100.0, 1e6):
        lied = play(with_digest(partial(pushed, far=far)), **FEDDIG)
        assert any("digest is refused" in note and "client 3" in note for note in lied.records[0].notes), far
        assert lied.state
        assert 3 not in lied.state.digests
        assert lied.accuracy[-1] > honest.accuracy[-1] - 0.05


@pytest.mark.parametrize("spd", [None, 1])
def test_a_digest_with_more_rows_than_its_samples_allow_is_refused(spd: int | None) -> None:
    """Neither more samples than it claimed nor fewer samples per digest than agreed buy more rows."""
    lied = play(with_digest(lambda digest: many(digest, 100 if spd is None else 4, spd)), **FEDDIG)
    assert any("digest is refused" in note and "client 3" in note for note in lied.records[0].notes)


def test_a_large_claim_does_not_buy_weight_in_the_server_step() -> None:
    """Whoever also claims the samples for its rows still teaches no more than its share."""

    def both(reply: Reply) -> Reply:
        lied = with_digest(lambda digest: many(digest, 100))(reply)
        return says(samples=100 * int(reply.scalars["samples"]))(lied)

    honest, lied = play(**FEDDIG), play(both, **FEDDIG)
    assert lied.accuracy[-1] > honest.accuracy[-1] - 0.05


def test_claimed_samples_count_at_most_twice_the_median() -> None:
    liars = (0, 1, 2, 3)
    history = play(says(samples=10**12), liars, clients=20, rounds=3, trust="samples")
    for record in history.records:
        assert sum(record.weights[client] for client in liars) == pytest.approx(8 / 24, abs=0.02)


def test_a_claim_is_fixed_when_a_client_joins() -> None:
    """Growing later on buys nothing."""
    rounds: list[int] = []

    def grow(reply: Reply) -> Reply:
        rounds.append(1)
        return says(samples=int(reply.scalars["samples"]) * len(rounds))(reply)

    history = play(grow, trust="samples")
    assert history.records[-1].weights[3] == pytest.approx(history.records[0].weights[3])


def test_the_agreed_file_says_how_many_samples_count() -> None:
    agreed = [30, *[80] * 9]
    history = play(says(samples=10**6), trust="samples", agreed_samples=agreed, rounds=2)
    weights = history.records[-1].weights
    assert weights[0] == pytest.approx(30 / 750)
    assert weights[3] == pytest.approx(80 / 750)


def test_unequal_shares_that_the_experiment_deals_out_count_in_full() -> None:
    """The moderator dealt them out, so it knows them: FedAvg's weights are those of the paper."""
    history = play(trust="samples", partition="dirichlet:0.1", rounds=1, clients=4)
    sizes = history.records[0].weights
    assert max(sizes.values()) > 2.5 * sorted(sizes.values())[1]
