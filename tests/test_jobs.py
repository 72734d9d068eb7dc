"""Jobs: requests and replies travel as declared and are read strictly; a new job is one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from engine_helpers import experiment

from holdfast import Hearing, Judgement, Trust
from holdfast.client import EVALUATE, TRAIN, Client, TrainReply, TrainRequest, perform
from holdfast.context import Context
from holdfast.core.failures import Refusal
from holdfast.core.types import Message, Reply, State, Tensors, Update
from holdfast.engines.checked import checked
from holdfast.flower.deploy.questions import check_question
from holdfast.jobs import JOBS, Job, Malformed, packed, register, unpacked
from holdfast.play import run
from holdfast.runs.build import make_plan
from holdfast.trust.base import judgement
from holdfast.trust.measures import TestRequest
from holdfast.trust.testing import TEST

ONE = torch.ones(1)
REQUEST = TrainRequest({"w": ONE}, {}, {"c/w": ONE}, {}, accepted=-1, lr=0.5, digest=True)


# A job as an extension author writes it: the sum of each input over a client's samples.


@dataclass(frozen=True)
class SumRequest:
    least: float = 0.0


@dataclass(frozen=True)
class SumReply:
    sums: torch.Tensor
    samples: int


class Sum(Job[Client, SumRequest, SumReply]):
    name, request, reply = "sum", SumRequest, SumReply

    def due(self, round: int, client: Client, context: Context) -> bool:
        return isinstance(client.trust, Summing)

    def records(self, client: Client, round: int) -> int:
        return len(client.train)

    def perform(self, client: Client, asked: SumRequest, round: int) -> SumReply:
        return SumReply(client.train.inputs[0].clamp_min(asked.least).flatten(1).sum(0), len(client.train))


SUM = register(Sum())


@dataclass(frozen=True)
class Summing(Trust):
    """Weighs by samples, after it has asked everybody for sums."""

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        messages = [SUM.message(update.client, state.round, SumRequest(0.5)) for update in updates]
        told = [SUM.read(reply) for reply in hearing.federation.ask(messages) if isinstance(reply, Reply)]
        found = judgement(updates, [update.samples for update in updates], state.trust)
        total = torch.stack([one.sums for one in told]).sum(0)
        return Judgement(found.updates, found.weights, found.say, {"total": total})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_new_job_is_one_file(workers: int) -> None:
    wanted = experiment(trust=f"{__name__}:Summing", rounds=1, workers=workers)
    plan = make_plan(wanted)
    model = plan.model()
    inputs = [plan.client(c, model, None).train.inputs[0] for c in range(wanted.clients)]
    expected = torch.stack([tensor.clamp_min(0.5).flatten(1).sum(0) for tensor in inputs]).sum(0)
    state = run(wanted).state
    assert state is not None
    assert torch.equal(state.trust["total"], expected)


def test_a_site_refuses_a_job_that_its_experiment_does_not_have() -> None:
    for trust, refused in ((f"{__name__}:Summing", False), ("samples", True)):
        plan = make_plan(experiment(trust=trust))
        client = plan.client(0, plan.model(), None)
        if refused:
            with pytest.raises(Refusal, match="the experiment has no 'sum' in round 1"):
                check_question(SUM.message(0, 0, SumRequest()), client, plan.method)
        else:
            check_question(SUM.message(0, 0, SumRequest()), client, plan.method)
            with pytest.raises(Refusal, match="it says 'most', which nobody asked for"):
                check_question(Message(0, 0, "sum", {}, {"most": 1}), client, plan.method)


def test_what_travels_is_what_was_declared() -> None:
    message = TRAIN.message(3, 7, REQUEST)
    assert (message.client, message.round, message.job) == (3, 7, "train")
    assert message.tensors == {"model/w": ONE, "server/c/w": ONE}
    assert list(message.scalars.items()) == [("accepted", -1), ("lr", 0.5), ("digest", True)]
    assert TRAIN.asked(message) == REQUEST
    assert packed(TestRequest({}, {}, delta={"2/w": ONE}, order=ONE))[0] == {"delta/2/w": ONE, "order": ONE}
    reply = TrainReply({"w": ONE}, {}, {}, {}, 5, 2, [])
    assert packed(reply) == ({"delta/w": ONE}, {"samples": 5, "steps": 2, "notes": []})  # no loss: none is told
    assert unpacked(TrainReply, *packed(reply)) == reply


@pytest.mark.parametrize(
    ("tensors", "scalars", "fault"),
    [
        ({"delta/w": ONE}, {}, "it holds the tensor 'delta/w', which nobody asked for"),
        ({"model": ONE}, {}, "it holds the tensor 'model', which nobody asked for"),
        ({"model/w": ONE.to_sparse()}, {}, "its tensor 'model/w' is not plain numbers"),
        ({}, {"epochs": 100}, "it says 'epochs', which nobody asked for"),
        ({}, {"model": 1}, "it says 'model', which nobody asked for"),
        ({}, {"lr": "fast"}, "`lr` is 'fast', not a number"),
        ({}, {"lr": True}, "`lr` is True, not a number"),
        ({}, {"accepted": 1.0}, "`accepted` is 1.0, not a whole number"),
        ({}, {"accepted": True}, "`accepted` is True, not a whole number"),
        ({}, {"digest": 1}, "`digest` is 1, not true or false"),
        ({}, {"digest": None}, "`digest` is None, not true or false"),
    ],
)
def test_a_request_that_is_not_as_declared_is_refused(tensors: Tensors, scalars: dict[str, Any], fault: str) -> None:
    good = TRAIN.message(0, 0, REQUEST)
    message = Message(0, 0, "train", {**good.tensors, **tensors}, {**good.scalars, **scalars})
    with pytest.raises(Refusal, match="a 'train' was asked that this client does not know") as refused:
        TRAIN.asked(message)
    assert (refused.value.code, fault in str(refused.value)) == ("question", True)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(Refusal, match="it lacks `accepted`"):
        TRAIN.asked(Message(0, 0, "train"))
    with pytest.raises(Malformed, match="it lacks `sums`"):
        SUM.read(Reply(0, {}, {"samples": 3}))


@pytest.mark.parametrize("job", ["evaluate", "test"])
def test_answers_in_numbers_hold_no_tensors(job: str) -> None:
    said = {"metrics": {}, "samples": 3} if job == "evaluate" else {"accuracies": {}, "samples": 3}
    assert isinstance(checked(Reply(0, {}, said), Message(0, 0, job)), Reply)
    odd = checked(Reply(0, {"x": ONE}, said), Message(0, 0, job))
    assert "it holds the tensor 'x', which nobody asked for" in odd.reason  # type: ignore[union-attr]


def test_unknown_jobs_are_refused_by_name() -> None:
    plan = make_plan(experiment())
    with pytest.raises(Refusal, match="there is no job 'trian'; did you mean 'train'"):
        perform(plan.client(0, plan.model(), None), Message(0, 0, "trian"))


def test_each_job_says_what_a_policy_needs_to_know() -> None:
    assert {name: (job.exact, job.watches) for name, job in JOBS.items() if name in ("train", "evaluate", "test")} == {
        "train": (False, False),
        "evaluate": (True, True),
        "test": (True, False),
    }
    assert (JOBS["train"], JOBS["evaluate"], JOBS["test"]) == (TRAIN, EVALUATE, TEST)
    assert SUM.exact  # unless it says otherwise: a policy that limits epsilon closes it
