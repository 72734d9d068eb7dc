"""What one client may assert about itself: nothing counts further than what the moderator knows publicly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from holdfast.core import Absent, Federation, Message, Reply, Tensors, unpack
from holdfast.digests import Digest, open_digest, seal_digest
from holdfast.engines.inline import Inline
from holdfast.experiment import from_table
from holdfast.plan import Plan
from holdfast.play import run
from holdfast.runs import History

SMALL = {
    "samples": 1000, "model": "features:32", "encoder": "scattering:32", "clients": 10, "partition": "iid",
    "rounds": 4, "lr": 0.05, "trust": "jury", "workers": 0,
}  # fmt: skip
Lie = Callable[[Reply], Reply]


class Liar(Federation):
    """A federation in which some clients rewrite what they send."""

    def __init__(self, inner: Federation, lie: Lie, liars: Sequence[int]) -> None:
        self._inner, self._lie, self._liars = inner, lie, liars

    @property
    def clients(self) -> Sequence[int]:
        return self._inner.clients

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        replies = self._inner.ask(messages)
        train = {message.client for message in messages if message.job == "train"}
        return [
            self._lie(reply)
            if isinstance(reply, Reply) and reply.client in self._liars and reply.client in train
            else reply
            for reply in replies
        ]

    def close(self) -> None:
        self._inner.close()


def play(lie: Lie | None = None, liars: Sequence[int] = (3,), **changes: object) -> History:
    def engine(plan: Plan, folder: Path | None) -> Federation:
        model = plan.model()
        inner = Inline({id: plan.client(id, model, folder) for id in range(plan.experiment.clients)})
        return inner if lie is None else Liar(inner, lie, liars)

    return run(from_table({**SMALL, **changes}), engine=engine)


def says(**claims: object) -> Lie:
    return lambda reply: dataclasses.replace(reply, scalars={**reply.scalars, **claims})


@pytest.mark.parametrize("algorithm", ["fednova", "scaffold"])
@pytest.mark.parametrize("steps", [1, 100_000, 2**40])
def test_claimed_steps_change_nothing(algorithm: str, steps: int) -> None:
    """Steps follow from public facts. A high claim scaled the whole aggregate, a low one the liar's own part."""
    honest, lied = (play(lie, algorithm=algorithm, trust="samples", rounds=2) for lie in (None, says(steps=steps)))
    assert lied.state
    assert honest.state
    assert all(torch.equal(lied.state.model[name], weight) for name, weight in honest.state.model.items())


def normed() -> nn.Module:
    """A small network with batch norm, whose running statistics travel."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def with_buffers(change: Callable[[str, Tensor], Tensor]) -> Lie:
    def lie(reply: Reply) -> Reply:
        found = {n: change(n, t) if n.startswith("buffers/") else t for n, t in reply.tensors.items()}
        return dataclasses.replace(reply, tensors=found)

    return lie


@pytest.mark.parametrize("value", [1e-6, 100.0, 1e30])
@pytest.mark.parametrize("trust", ["jury", "fedtest", "krum", "median"])
def test_running_statistics_of_one_client_do_not_ruin_the_model(trust: str, value: float) -> None:
    def loud(name: str, tensor: Tensor) -> Tensor:
        return torch.full_like(tensor, value) if "running" in name else tensor

    changes = {"model": "test_one_hostile_client:normed", "trust": trust, "samples": 2000}
    honest, lied = play(**changes), play(with_buffers(loud), **changes)
    assert honest.accuracy[-1] > 0.6
    assert lied.accuracy[-1] > honest.accuracy[-1] - 0.06
    assert lied.state
    for name, var in lied.state.buffers.items():
        if name.endswith("running_var"):
            assert float((var / honest.state.buffers[name]).log().abs().max()) < 1.0  # type: ignore[union-attr]


def test_counters_take_the_median_not_the_largest() -> None:
    def late(name: str, tensor: Tensor) -> Tensor:
        return torch.full_like(tensor, 10**12) if "tracked" in name else tensor

    lied = play(with_buffers(late), model="test_one_hostile_client:normed", rounds=2)
    honest = play(model="test_one_hostile_client:normed", rounds=2)
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

    run(from_table({**SMALL, "model": "test_one_hostile_client:normed", "rounds": 1}), engine=engine)
    assert seen
    assert all(float(tensors["2.running_mean"].abs().max()) > 0 for tensors in seen)  # at first they are 0


FEDDIG = {"absence": {"name": "feddig", "settle": "always"}, "scenario": "sequential", "rounds": 6}


def with_digest(change: Callable[[Digest], Digest]) -> Lie:
    def lie(reply: Reply) -> Reply:
        sealed = unpack(reply.tensors, "digest")
        if not sealed:
            return reply
        changed = {f"digest/{n}": t for n, t in seal_digest(change(open_digest(sealed))).items()}
        rest = {name: tensor for name, tensor in reply.tensors.items() if not name.startswith("digest/")}
        return dataclasses.replace(reply, tensors={**rest, **changed})

    return lie


@pytest.mark.parametrize("far", [1.5, 100.0, 1e6])
def test_a_digest_with_rows_beyond_the_encoders_bound_is_refused(far: float) -> None:
    def pushed(digest: Digest) -> Digest:
        shift = torch.zeros(digest.feature_shape)
        shift[0] = far
        return dataclasses.replace(digest, features=digest.features + shift)

    honest, lied = play(**FEDDIG), play(with_digest(pushed), **FEDDIG)
    assert any("digest is refused" in note and "client 3" in note for note in lied.records[0].notes)
    assert lied.state
    assert 3 not in lied.state.digests
    assert lied.accuracy[-1] > honest.accuracy[-1] - 0.05


def many(digest: Digest, times: int, spd: int | None = None) -> Digest:
    rows = len(digest) * times
    spd = digest.spd if spd is None else spd
    return dataclasses.replace(
        digest, features=digest.features.repeat(times, 1), labels=digest.labels.roll(1, 1).repeat(times, 1), spd=spd,
        samples=rows * spd, used=rows * spd,
    )  # fmt: skip


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
