"""Whatever one client sends, the run goes on: the client is refused with a short sentence."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_helpers import experiment
from flower_helpers import Spoilt, nodes, play
from flwr.app import Message as Packet
from flwr.app import RecordDict

from holdfast.core.errors import LONGEST, HoldfastError
from holdfast.core.types import Absent, Federation, Message, Reply
from holdfast.engines.inline import Inline
from holdfast.flower.deploy.site import client_app
from holdfast.flower.engine.codec import Letter, decode, encode
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.flower.engine.sites import Sites
from holdfast.play import run
from holdfast.runs.plan import Plan

DEEP: list[Any] = []
for _ in range(900):
    DEEP = [DEEP]
ODD = [10**400, -(10**5000), True, math.nan, math.inf, None, "1", DEEP, {"a": 1}, [0.5], "\x1b[2J[/bold]\ud800"]


class Liar(Federation):
    """A federation in which client 1 answers one job with something else."""

    def __init__(self, inner: Federation, job: str, lie: Callable[[Reply], Any]) -> None:
        self._inner, self._job, self._lie = inner, job, lie

    @property
    def clients(self) -> Sequence[int]:
        return self._inner.clients

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        answers = self._inner.ask(messages)
        false = [m.client == 1 and m.job == self._job for m in messages]
        return [self._lie(a) if lie and isinstance(a, Reply) else a for a, lie in zip(answers, false, strict=True)]

    def close(self) -> None:
        self._inner.close()


def lied(job: str, lie: Callable[[Reply], Any], **changes: Any) -> Any:
    def engine(plan: Plan, folder: Path | None) -> Federation:
        model = plan.model()
        return Liar(Inline({id: plan.client(id, model, folder) for id in range(plan.experiment.clients)}), job, lie)

    wanted = experiment(clients=3, partition="iid", rounds=1, workers=0, **changes)
    return run(wanted, engine=engine).records[0]


def every_value(reply: Reply, odd: object) -> Reply:
    told = {key: dict.fromkeys(value, odd) if isinstance(value, dict) else odd for key, value in reply.scalars.items()}
    return dataclasses.replace(reply, scalars=told)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_odd_words_in_any_reply_refuse_their_client_alone(odd: object) -> None:
    assert 1 in {**(seen := lied("train", lambda r: every_value(r, odd))).absent, **seen.refused}
    assert 1 not in (lied("evaluate", lambda r: every_value(r, odd)).by_client)
    for trust in ("fedtest", "jury"):
        notes = " ".join(lied("test", lambda r: every_value(r, odd), trust=trust).notes)
        assert "tester 1 is ignored" in notes
        assert notes.isprintable()


@pytest.mark.parametrize("job", ["train", "evaluate", "test"])
@pytest.mark.parametrize(
    "change", [{"client": 0}, {"client": None}, {"scalars": [1]}, {"scalars": {}}, {"seconds": math.nan}]
)
def test_replies_of_another_form_are_refused(job: str, change: dict[str, Any]) -> None:
    record = lied(job, lambda reply: dataclasses.replace(reply, **change), trust="fedtest")
    assert record.accuracy is not None
    assert set(record.weights) >= {0, 2}


def test_only_training_is_answered_with_tensors() -> None:
    big = {"x": torch.zeros(1)}
    record = lied("evaluate", lambda reply: dataclasses.replace(reply, tensors=big))
    assert set(record.by_client) == {0, 2}


def test_one_nonsensical_loss_does_not_hide_the_others() -> None:
    record = lied("train", lambda reply: dataclasses.replace(reply, scalars={**reply.scalars, "loss": math.nan}))
    assert record.loss is not None


def with_layout(change: Callable[[list[Any]], None]) -> Callable[[Any, Any], Any]:
    """A site that changes the layout of its first tensor."""

    def spoil(packet: Any, reply: Any) -> Any:
        content = reply.content
        if packet.metadata.message_type == "train.job" and decode(content).client == 1:
            words = dict(content["words"])
            layout = json.loads(words["layout"])
            change(layout[next(iter(layout))])
            words["layout"] = json.dumps(layout)
            content["words"].update(words)
        return reply

    return spoil


@pytest.mark.parametrize(
    "shape", [[0, 2**70], [0, 2**62, 4], [2**70], [0] * 70, [1] * 5000, [0.5], [True], [[1]], "ab", {"a": 1}, None]
)
def test_no_shape_over_flower_ends_the_run(tmp_path: Path, shape: object) -> None:
    def change(entries: list[Any]) -> None:
        entries.append([entries[0][0] + "x", "float32", shape, "float32"])

    wanted = experiment(clients=3, partition="iid", rounds=1)
    grid = InProcessGrid(Spoilt(client_app(wanted), with_layout(change)), nodes(tmp_path, 3))
    record = play(tmp_path, wanted, grid).records[0]
    assert "refused" in record.absent[1]
    assert len(record.absent[1]) <= LONGEST
    assert set(record.weights) == {0, 2}


@pytest.mark.parametrize("odd", [10**400, DEEP, "\ud800", None], ids=["int", "deep", "half", "none"])
def test_no_greeting_ends_the_run(tmp_path: Path, odd: object) -> None:
    def spoil(packet: Any, reply: Any) -> Any:
        if packet.metadata.message_type != "query.hello" or packet.metadata.dst_node_id != 101:
            return reply
        letter = Letter(-1, -1, "hello", scalars={"site": "site-1", "token": odd})
        return Packet(RecordDict(dict(encode(letter))), reply_to=packet)

    wanted = experiment(clients=3, partition="iid", rounds=1)
    history = play(tmp_path, wanted, InProcessGrid(Spoilt(client_app(wanted), spoil), nodes(tmp_path, 3)), gather=0.5)
    assert set(history.records[0].weights) == {0, 2}


def test_what_a_node_calls_itself_is_shown_as_plain_text() -> None:
    sites = Sites(["north"])
    sites.claim(1, "\x1b[2J" + "x" * 10_000, "token")
    assert sites.refused[1].isprintable()
    assert len(sites.refused[1]) < 200


def test_an_error_is_one_short_plain_sentence() -> None:
    error = HoldfastError("file " + "x" * 5000 + "\x1b[31m\n is bad; make it again.")
    assert len(str(error)) <= LONGEST + 5
    assert str(error).isprintable()
    assert str(error).endswith("make it again.")
