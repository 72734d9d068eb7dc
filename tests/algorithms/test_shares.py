"""What travels is the algorithm's to say: some weights stay at home, and an update may carry more."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flower_helpers import play
from torch import Tensor, nn

import holdfast
from holdfast import Experiment, HoldfastError
from holdfast.algorithms.fedavg import FedAvg, Work
from holdfast.algorithms.local_training import Sent, learn
from holdfast.core.memory import Memory
from holdfast.core.types import State, Tensors, Update, unpack
from holdfast.data.task import Samples
from holdfast.learning.device import batch_on
from holdfast.learning.settings import Learning
from holdfast.play import federation_of
from holdfast.round import play_round, train_messages
from holdfast.runs.build import make_plan
from holdfast.runs.plan import Plan

CNN = {"name": "cnn", "width": 4, "hidden": 8, "norm": "batch"}
TINY: dict[str, Any] = {
    "samples": 120, "clients": 3, "partition": "iid", "model": CNN, "rounds": 3, "batch_size": 16, "workers": 0,
    "algorithm": "fedbn",
}  # fmt: skip
STAND_INS: dict[str, Any] = {
    "absence": "feddig", "scenario": "sequential", "model": {**CNN, "name": "full"}, "encoder": "random",
}  # fmt: skip
NORM_LAYERS = ("2.", "6.")


def is_norm(name: str) -> bool:
    return name.startswith(NORM_LAYERS)


def same(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def played(plan: Plan, rounds: int) -> tuple[State, Any]:
    """So many rounds; the state after them, and what a training message would hold next."""
    state = plan.start()
    with federation_of(plan, None) as federation:
        for _ in range(rounds):
            state, _ = play_round(state, federation, plan.method)
        [reply] = federation.ask(train_messages(state, [0], plan.method))
    return state, reply


def test_norms_never_travel_and_the_moderator_keeps_its_first_copy() -> None:
    plan = make_plan(Experiment(**TINY))
    start = plan.start()
    state, reply = played(plan, 2)
    [message] = train_messages(state, [0], plan.method)
    for tensors in (message.tensors, reply.tensors):
        names = [name.partition("/")[2] for name in tensors]
        assert names
        assert not any(map(is_norm, names))
    for part, first in ((state.model, start.model), (state.buffers, start.buffers)):
        assert part.keys() == first.keys()
        assert all(torch.equal(part[name], first[name]) for name in part if is_norm(name))
    assert not torch.equal(state.model["9.weight"], start.model["9.weight"])


class OneWeight(nn.Module):
    """The model w x h: w travels, h stays at home."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.h = nn.Parameter(torch.tensor([1.0])), nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * self.h * x


@dataclass(frozen=True)
class Home(FedAvg):
    """h stays at home."""

    def shares(self, name: str) -> bool:
        return name != "h"


def test_two_rounds_by_hand() -> None:
    """L = w h on x = 1, lr 0.1, one step: dw = -0.1 h, dh = -0.1 w.

    Round 1 from w = 1, h = 2: w = 0.8, h = 1.9. Round 2 from w = 0.8 and, at home, h = 1.9: w = 0.61, h = 1.82.
    """
    model, w, h = OneWeight(), torch.tensor([1.0]), torch.tensor([2.0])
    for round, expected in enumerate([(0.8, 1.9), (0.61, 1.82)]):
        learnt = learn(
            model, Samples((torch.ones(1, 1),), torch.zeros(1)), Sent({"w": w, "h": h}, {}, {}), {}, algorithm=Home(),
            learning=Learning(lr=0.1, momentum=0.0), objective=lambda m, inputs, _: m(*inputs).flatten(), round=round,
            last=round - 1, order=torch.Generator(), chance=0,
        )  # fmt: skip
        assert learnt.delta.keys() == {"w"}
        w, h = w + learnt.delta["w"], learnt.memory["home/h"]
        assert (w.item(), h.item()) == pytest.approx(expected)


def test_each_client_is_tested_with_its_own_norms(tmp_path: Path) -> None:
    """A client's accuracy is that of the shared weights with the norms in its own folder, on its own samples."""
    experiment = Experiment(**{**TINY, "samples": 600, "lr": 0.05, "epochs": 2})
    history = holdfast.run(experiment, out=tmp_path / "run")
    plan, state = make_plan(experiment), history.state
    model, told = plan.model().eval(), history.records[-1].client_metrics["accuracy"]
    right: dict[int, list[float]] = {}
    for client in range(experiment.clients):
        validation = plan.client(client, model, None).validation
        kept = Memory(tmp_path / "run" / "clients" / f"{client:04d}").read(state.accepted[client])
        own = {name: tensor for name, tensor in unpack(kept, "home").items() if is_norm(name)}
        assert own
        for norms in ({}, own):
            model.load_state_dict({**state.model, **state.buffers, **norms})
            inputs, labels = batch_on(model, validation, torch.arange(len(validation)))
            hits = model(*inputs).argmax(1) == labels
            right.setdefault(client, []).append(float(hits.double().mean()))
    assert {client: accuracy for client, (_, accuracy) in right.items()} == pytest.approx(told)
    assert any(first != accuracy for first, accuracy in right.values())  # the moderator's first norms would tell others


class Stopped(Exception):
    """Raised in the middle of a run."""


def stop(record: Any) -> None:
    if record.round == 2:
        raise Stopped


@pytest.mark.parametrize(
    "more",
    [{}, {"optimizer": {"name": "adam", "keep": True}, "scenario": "dropout:0.4"}, STAND_INS],
    ids=["fedbn", "adam", "feddig"],
)
def test_the_same_bits_in_workers_after_a_resume_and_over_flower(more: dict[str, Any], tmp_path: Path) -> None:
    experiment = Experiment(**{**TINY, **more})
    once = holdfast.run(experiment)
    over = play(tmp_path / "flower", experiment)
    with pytest.raises(Stopped):
        holdfast.run(experiment, tmp_path / "run", watch=stop)
    again = holdfast.resume(tmp_path / "run")
    for other in (holdfast.run(replace(experiment, workers=2)), again, over):
        assert once.state is not None
        assert other.state is not None
        assert same(once.state.model, other.state.model)
        assert [record.client_metrics for record in once.records] == [r.client_metrics for r in other.records]


def test_a_client_that_lost_its_norms_starts_with_the_first_ones_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        holdfast.run(Experiment(**TINY), tmp_path / "run", watch=stop)
    shutil.rmtree(tmp_path / "run" / "clients" / "0000")
    record = holdfast.resume(tmp_path / "run").records[-1]
    assert any(note.startswith("client 0") for note in record.notes)
    assert not record.absent
    assert not record.refused


@pytest.mark.parametrize(
    "more",
    [
        {"trust": "median"},
        {"trust": "servertest"},
        {"trust": "fltrust"},
        {"server_optimizer": "adam", "attack": "signflip", "attackers": 1},
        STAND_INS,
    ],
    ids=lambda more: "-".join(map(str, more.values()))[:30],
)  # fmt: skip
def test_it_goes_with_trust_rules_server_optimisers_and_stand_ins(more: dict[str, Any]) -> None:
    history = holdfast.run(Experiment(**{**TINY, **more}))
    assert not any(record.refused for record in history.records)
    failed = [why for r in history.records for why in r.absent.values() if not why.startswith("away (")]
    assert not failed
    if "absence" in more:
        assert any(record.stand_ins for record in history.records)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"trust": "fedtest"}, "a part only"),
        ({"model": "mlp:8"}, "the model has none"),
        ({"algorithm": {"name": "fedbn", "home": ["99"]}}, "no layer '99'"),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_round_1(more: dict[str, Any], why: str) -> None:
    with pytest.raises(HoldfastError, match=why):
        make_plan(Experiment(**{**TINY, **more}))


# Tensors that go with an update ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counting(FedAvg):
    """Each client sends how many steps it took, and the moderator adds them up."""

    lies: str = ""

    def extra(self, model: Tensors) -> Tensors:
        return {"steps": torch.zeros(1)}

    def enclose(self, delta: Tensors, work: Work, server: Tensors, memory: Tensors) -> Tensors:
        steps = torch.tensor([float(work.steps)])
        odd: dict[str, Tensors] = {"": {"steps": steps}, "name": {"more": steps}, "nan": {"steps": steps * torch.nan}}
        return {**odd, "shape": {"steps": torch.zeros(2)}, "none": {}}[self.lies]

    def begin(self, model: Tensors) -> Tensors:
        return {"total": torch.zeros(1)}

    def aggregate(
        self, model: Tensors, updates: Sequence[Update], weights: Sequence[float], server: Tensors, clients: int,
        learning: Learning,
    ) -> tuple[Tensors, Tensors]:  # fmt: skip
        model, _ = super().aggregate(model, updates, weights, server, clients, learning)
        return model, {"total": server["total"] + sum(update.extra["steps"] for update in updates)}


def test_the_moderator_gets_what_goes_with_an_update() -> None:
    plan = make_plan(Experiment(**{**TINY, "algorithm": "test_shares:Counting", "rounds": 2}))
    steps = sum(plan.method.steps(len(part[0])) for part in plan.parts)
    history = holdfast.run(plan.experiment)
    assert history.state is not None
    assert history.state.algorithm["total"].item() == 2 * steps


@pytest.mark.parametrize("lies", ["name", "shape", "nan", "none"])
def test_what_was_not_declared_is_refused(lies: str) -> None:
    experiment = Experiment(**{**TINY, "algorithm": {"name": "test_shares:Counting", "lies": lies}, "rounds": 1})
    [record] = holdfast.run(experiment).records
    assert all(why.startswith("extra/") for why in record.refused.values())
    assert len(record.refused) == 3


def test_a_rule_that_merges_updates_is_refused_where_more_goes_with_them() -> None:
    with pytest.raises(HoldfastError, match="sends more with each"):
        make_plan(Experiment(**{**TINY, "algorithm": "test_shares:Counting", "trust": "median"}))
