"""Tensors count by their names: in which order a client or a checkpoint lists them is nothing to go by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_helpers import experiment

from holdfast.core.types import Absent, Federation, Message, Reply
from holdfast.play import resume, run, this_machine
from holdfast.record import Record
from holdfast.runs.history import History
from holdfast.runs.plan import Plan

RULES = ["clipping:momentum=0.5", "demoa", "jury", "foolsgold", "krum"]


class Backwards:
    """Client 0 lists its tensors in the opposite order, as nobody forbids it to."""

    def __init__(self, inner: Federation) -> None:
        self.inner, self.clients = inner, inner.clients

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        return [self.turned(reply) for reply in self.inner.ask(messages)]

    def turned(self, reply: Reply | Absent) -> Reply | Absent:
        if isinstance(reply, Absent) or reply.client:
            return reply
        return replace(reply, tensors=dict(reversed(reply.tensors.items())))

    def close(self) -> None:
        self.inner.close()


def backwards(plan: Plan, folder: Path | None) -> Federation:
    return Backwards(this_machine(plan, folder))


def assert_same(one: History, other: History) -> None:
    assert one.state is not None
    assert other.state is not None
    for group in ("model", "trust", "absence"):
        ours, theirs = getattr(one.state, group), getattr(other.state, group)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name].nan_to_num(), theirs[name].nan_to_num()) for name in ours)


@pytest.mark.parametrize("trust", RULES)
def test_the_order_in_which_a_client_lists_its_tensors_changes_nothing(trust: str) -> None:
    wanted = experiment(trust=trust, attack="signflip:5", attackers=1, clients=5, partition="iid")
    assert_same(run(wanted), run(wanted, engine=backwards))


@pytest.mark.parametrize("trust", RULES)
def test_what_is_replayed_after_a_resume_is_in_the_same_order(trust: str, tmp_path: Path) -> None:
    # a checkpoint lists its tensors by name; the update that is replayed for client 0 comes from there
    away = {"name": "intervals", "away": [[0, 2, 5]]}
    wanted = experiment(trust=trust, absence="memory", scenario=away, partition="iid")

    def killed(record: Record) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(wanted, tmp_path / "run", watch=killed)
    assert_same(run(wanted), resume(tmp_path / "run"))
