"""Mime: numbers by hand, the paper's pseudocode as oracle, who is asked, and what digests give to c."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from algorithms_bench import Bench, plain
from engine_helpers import experiment, tiny
from feddig_helpers import Script
from release_helpers import experiment as with_digests
from torch import Tensor, nn

from holdfast.algorithms import Mime
from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import rng
from holdfast.core.types import Absent, Message, Reply, State, pack, unpack
from holdfast.data.task import Task
from holdfast.engines.checked import Checked
from holdfast.first_gradients import open_round
from holdfast.models.networks import weights_of
from holdfast.play import federation_of, run
from holdfast.round import play_round
from holdfast.runs.build import make_plan


def test_two_rounds_by_hand() -> None:
    # grad f_i(y) - grad f_i(w) + c = y - w + c, and c = w - mu with mu = 8/4 - 16 * 3/4 = -10: all go towards mu - m.
    # beta = lr = 1/2: a step goes a quarter of the way, three go 37/64.
    # Round 1, w = m = 0: -10/4 and -10 * 37/64, w = -2.5/4 - 5.78125 * 3/4; c = 10, m = 5
    # Round 2, towards -15 from w: c = w + 10, m = (c + 5)/2
    bench = Bench(Mime(), [8.0, -16.0], [1, 3], plain(0.5, momentum=0.5))
    assert bench.play() == pytest.approx(-4.9609375)
    assert float(bench.state.algorithm["m/w"]) == pytest.approx(5.0)
    assert bench.play() == pytest.approx(-9.941253662109375)
    assert float(bench.state.algorithm["m/w"]) == pytest.approx(5.01953125)


def test_who_gives_no_gradient_is_not_asked_to_train() -> None:
    """Client 1 is away in round 1: c = 0 - 8, and one step of lr goes all the way to 8 * lr; then both are there."""
    bench = Bench(Mime(), [8.0, -16.0], [1, 1], plain(0.5), away=((1, 1, 2),))
    assert bench.play() == pytest.approx(4.0)
    assert bench.record.absent == {1: "away (away)"}
    assert bench.record.bytes_up == 4 + 4  # a gradient and an update
    assert bench.play() == pytest.approx(4.0 - 0.5 * (4.0 + 4.0))  # c = 4 - mean(8, -16)


class Regression:
    """What the oracle needs of one client: its samples, in the order of its batches."""

    def __init__(self, x: Tensor, y: Tensor, batches: Sequence[Tensor]) -> None:
        self.x, self.y, self.batches = x, y, batches

    def gradient(self, w: Tensor, index: Tensor | None = None) -> Tensor:
        x, y = (self.x, self.y) if index is None else (self.x[index], self.y[index])
        return (torch.softmax(x @ w.T, 1) - y).T @ x / len(x)


class Softmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w.T


def test_the_papers_pseudocode() -> None:
    """Algorithm 1 with U and V of SGD with momentum, for softmax regression with gradients written out."""
    wanted = experiment(model="test_mime:Softmax", algorithm="mime", partition="dirichlet:0.5", clients=3, rounds=3)
    plan, beta, lr = make_plan(wanted), wanted.momentum, wanted.lr
    model = plan.model()
    data = {i: plan.client(i, model, None).train for i in range(3)}
    total = sum(len(one) for one in data.values())
    x, s = torch.zeros(4, 6), torch.zeros(4, 6)
    for round in range(3):
        clients = []
        for i, one in data.items():
            order = torch.randperm(len(one), generator=rng(wanted.seed, round, i, "batches"))
            cut = list(order.split(wanted.batch_size))
            if len(cut[-1]) == 1:
                cut[-2:] = [torch.cat(cut[-2:])]
            clients.append(Regression(one.inputs[0], nn.functional.one_hot(one.labels, 4).float(), cut))
        share = [len(one.x) / total for one in clients]
        c = sum((p * one.gradient(x) for p, one in zip(share, clients, strict=True)), torch.zeros(4, 6))
        new = torch.zeros(4, 6)
        for p, client in zip(share, clients, strict=True):
            y = x.clone()
            for batch in client.batches:
                g = client.gradient(y, batch) - client.gradient(x, batch) + c
                y -= lr * ((1 - beta) * g + beta * s)
            new += p * y
        x, s = new, (1 - beta) * c + beta * s
    found = run(wanted).state
    assert found is not None
    torch.testing.assert_close(found.model["w"], x, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.algorithm["m/w"], s, rtol=1e-4, atol=1e-6)


def chancy() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))


def test_the_first_step_is_the_federations_at_every_client_whatever_its_batch_and_its_dropout() -> None:
    plan = make_plan(experiment(model="test_mime:chancy", algorithm="mime", local_steps=1, partition="iid"))
    state = plan.start()
    with federation_of(plan, None) as federation:
        state = open_round(state, federation, range(4), plan.method).state
        after, _ = play_round(state, federation, plan.method)
    c = unpack(state.algorithm, "c")
    assert max(float(one.abs().max()) for one in c.values()) > 0.01
    for name, weight in after.model.items():
        torch.testing.assert_close(
            weight - state.model[name],
            -plan.experiment.lr * (1 - plan.experiment.momentum) * c[name],
            atol=1e-6,
            rtol=1e-4,
        )


def test_a_digest_gives_its_gradient_while_its_client_is_away() -> None:
    plan = make_plan(with_digests(algorithm="mime"))
    with federation_of(plan, None) as federation:
        state, _ = play_round(plan.start(), federation, plan.method)
    assert set(state.digests) == {0, 1, 2}
    nobody = Script(3, lambda message: Absent(message.client, "away (x)"))
    opening = open_round(state, nobody, range(3), plan.method)
    assert set(opening.absent) == {0, 1, 2}
    parts = [plan.method.absence.recall_samples(state, plan.method, client) for client in range(3)]
    model, total = plan.model(), 0.0
    state_of(model, state)
    for part in parts:
        assert part is not None
        said, count = part
        logits = nn.functional.log_softmax(model(*said.inputs), 1)
        total = total - count * (logits * said.labels).sum(1).mean()  # type: ignore[assignment]
    (total / sum(part[1] for part in parts if part)).backward()  # type: ignore[attr-defined]
    for name, weight in model.named_parameters():
        torch.testing.assert_close(opening.state.algorithm[f"c/{name}"], weight.grad, rtol=1e-3, atol=1e-6)


def state_of(model: nn.Module, state: State) -> None:
    model.load_state_dict({**state.model, **state.buffers})
    model.eval()


def test_a_gradient_that_does_not_fit_is_an_absence() -> None:
    plan = make_plan(experiment(algorithm="mime"))
    model = weights_of(plan.model())

    def answer(message: Message) -> Reply:
        size = torch.nan if message.client == 1 else 1.0
        return Reply(
            message.client, pack(gradient={n: torch.full_like(w, size) for n, w in model.items()}), {"samples": 9}
        )

    opening = open_round(plan.start(), Checked(Script(4, answer), plan.method), range(4), plan.method)
    assert list(opening.absent) == [1]
    assert "is not finite" in opening.absent[1]
    assert all(bool((one == 1).all()) for one in unpack(opening.state.algorithm, "c").values())
    assert opening.bytes_up == 3 * sum(4 * weight.numel() for weight in model.values())


def test_a_gradient_whose_step_is_longer_than_any_update_may_be_is_an_absence() -> None:
    plan = make_plan(experiment(algorithm="mime", max_norm=1.0, lr=0.1))
    model = weights_of(plan.model())
    values = sum(weight.numel() for weight in model.values())

    def answer(message: Message) -> Reply:
        length = 11.0 if message.client == 1 else 9.0  # steps of 1.1 and 0.9
        gradient = {name: torch.full_like(weight, length / values**0.5) for name, weight in model.items()}
        return Reply(message.client, pack(gradient=gradient), {"samples": 9})

    opening = open_round(plan.start(), Checked(Script(4, answer), plan.method), range(4), plan.method)
    assert list(opening.absent) == [1]
    assert "as a step its norm 1.1 is above the bound 1" in opening.absent[1]


def test_weights_of_records_are_refused() -> None:
    with pytest.raises(HoldfastError, match="the mean of a batch"):
        make_plan(experiment(algorithm="mime", task="test_mime:weighted"))


def weighted() -> Task:
    task = tiny()
    return replace(task, train=replace(task.train, weights=torch.ones(160)))
