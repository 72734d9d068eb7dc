"""The federation over a grid: deadlines, absences with their reasons, late replies, who may speak for a site."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_helpers import experiment, samples
from flower_helpers import Clock, nodes, play
from flwr.app import Message as Packet
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import HoldfastError
from holdfast.core.failures import SENTENCES
from holdfast.core.files import read_lines
from holdfast.core.types import Absent, Late, Message, Reply
from holdfast.flower.deploy.policy import fingerprint_of
from holdfast.flower.deploy.site import client_app
from holdfast.flower.engine.deadline import Deadline
from holdfast.flower.engine.exchange import Wire
from holdfast.flower.engine.federation import GridFederation
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.flower.engine.puller import Puller
from holdfast.flower.engine.sites import Sites, usual_names
from holdfast.round import train_messages
from holdfast.runs.build import make_plan

EXPERIMENT = experiment(clients=4)


class TimedGrid(InProcessGrid):
    """Nodes that take their time: seconds for each, which a test may change; infinity is silence."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        super().__init__(client_app(EXPERIMENT), nodes(folder, 4))
        self.clock = clock
        self.delay: dict[int, float] = dict.fromkeys(self.nodes, 1.0)
        self.pushed: list[Packet] = []
        self._ready: dict[str, float] = {}

    def push_messages(self, messages: Iterable[Packet]) -> Iterable[str]:
        messages = list(messages)
        self.pushed += messages
        numbers = list(super().push_messages(messages))
        for number, packet in zip(numbers, messages, strict=True):
            self._ready[number] = self.clock() + self.delay[packet.metadata.dst_node_id]
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Packet]:
        return super().pull_messages([n for n in message_ids if self._ready.get(n, math.inf) <= self.clock()])

    def wake(self) -> None:
        """Those who were silent answer all that they were asked, now."""
        self._ready = dict.fromkeys(self._ready, 0.0)
        self.delay = dict.fromkeys(self.nodes, 1.0)


class Stage:
    """A federation of four sites on a timed grid."""

    def __init__(self, folder: Path, takes_late: bool = False, **deadline: Any) -> None:
        self.clock = Clock()
        self.grid = TimedGrid(folder, self.clock)
        self.federation = GridFederation(
            self.grid,
            Sites(usual_names(4), folder / "sites.json"),
            4,
            fingerprint_of(EXPERIMENT),
            Deadline(**deadline),
            Wire(poll=0.5),
            folder / "exchanges.jsonl",
            None,
            self.clock,
            self.clock.sleep,
            takes_late=takes_late,
        )
        self.plan = make_plan(EXPERIMENT)

    def ask(self, job: str = "train", round: int = 0) -> list[Reply | Absent]:
        state = replace(self.plan.start(), round=round)
        messages = train_messages(state, self.federation.clients, self.plan.method)
        return self.federation.ask([Message(m.client, m.round, job, m.tensors, m.scalars) for m in messages])


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def absent(answers: list[Reply | Absent]) -> dict[int, str]:
    return {answer.client: answer.reason for answer in answers if isinstance(answer, Absent)}


def test_all_answer_in_the_order_asked(stage: Stage) -> None:
    stage.federation.gather(60)
    stage.grid.delay[100] = 3.0
    answers = stage.ask()
    assert [answer.client for answer in answers] == [0, 1, 2, 3]
    assert all(isinstance(answer, Reply) for answer in answers)


def test_a_silent_site_is_absent_at_twice_the_median_but_not_before_ten_seconds(stage: Stage) -> None:
    stage.federation.gather(60)
    stage.grid.delay[102] = math.inf
    start = stage.clock()
    assert absent(stage.ask()) == {2: "did not answer within 10.0 s"}
    assert stage.clock() - start == pytest.approx(10.0, abs=0.1)
    stage.grid.wake()
    stage.ask()
    stage.grid.delay = {100: 8.0, 101: 9.0, 102: math.inf, 103: 11.0}
    start = stage.clock()
    assert list(absent(stage.ask())) == [2]
    assert 18.0 <= stage.clock() - start < 20.0  # 2 x 9 (half of four is the second reply), seen a tenth late at most


def test_a_late_reply_is_refused_and_its_site_comes_back(stage: Stage) -> None:
    stage.federation.gather(60)
    stage.grid.delay[101] = math.inf
    stage.ask()
    before = len(stage.grid.pushed)
    assert absent(stage.ask()) == {1: "still owes an earlier answer"}
    to_one = [p for p in stage.grid.pushed[before:] if p.metadata.dst_node_id == 101]
    assert [p.metadata.message_type for p in to_one] == ["query.hello"]  # greeted, not asked to train once more
    stage.grid.wake()
    answers = stage.ask()
    assert absent(answers) == {}
    assert isinstance(answers[1], Reply)
    assert answers[1].scalars["samples"] == len(stage.plan.parts[1][0])


def test_a_late_reply_is_handed_over_once_where_late_updates_count(tmp_path: Path) -> None:
    stage = Stage(tmp_path, takes_late=True)
    stage.federation.gather(60)
    stage.grid.delay[101] = 15.0
    assert absent(stage.ask(round=0)) == {1: "did not answer within 10.0 s"}
    assert absent(stage.ask(round=1)) == {1: "still owes an earlier answer"}
    stage.clock.sleep(10)
    late = stage.ask(round=2)[1]  # it arrives, its site is asked anew, and is late once more
    assert isinstance(late, Late)
    assert (late.asked.round, late.reply.scalars["samples"]) == (0, len(stage.plan.parts[1][0]))
    assert stage.plan.method.late.take([late], 2) == ([late], {})  # refused unless the experiment says otherwise
    stage.clock.sleep(20)
    stage.grid.delay[101] = 1.0
    fresh = stage.ask(round=3)[1]  # the answer of round 3 has come, too: that of round 2 is not used beside it
    assert isinstance(fresh, Reply)
    stage.grid.delay[101] = 15.0
    assert type(stage.ask(round=4)[1]) is Absent


def test_a_site_that_is_known_to_be_silent_is_not_waited_for(stage: Stage) -> None:
    stage.federation.gather(60)
    stage.grid.delay[103] = math.inf
    stage.ask()
    start = stage.clock()
    assert list(absent(stage.ask())) == [3]
    assert stage.clock() - start < 3


def test_with_everybody_silent_a_round_waits_and_closes(stage: Stage) -> None:
    stage.federation.gather(60)
    stage.ask()
    stage.grid.delay = dict.fromkeys(stage.grid.nodes, math.inf)
    start = stage.clock()
    assert sorted(absent(stage.ask())) == [0, 1, 2, 3]
    assert 9.9 < stage.clock() - start < 11


def test_k_of_n_closes_when_enough_have_answered(tmp_path: Path) -> None:
    stage = Stage(tmp_path, enough=2)
    stage.federation.gather(60)
    stage.grid.delay = {100: 1.0, 101: 2.0, 102: 5.0, 103: 6.0}
    start = stage.clock()
    assert absent(stage.ask()) == dict.fromkeys([2, 3], "did not answer before 2 others had")
    assert stage.clock() - start < 3


def test_a_node_that_is_gone_is_an_absence_with_the_reason(stage: Stage) -> None:
    stage.federation.gather(60)
    config = stage.grid.nodes.pop(100)
    assert absent(stage.ask()) == {0: "is not connected"}
    stage.grid.nodes[555] = config  # it restarts: without keys under another number, but its disk is the same
    stage.grid.delay[555] = 1.0
    stage.grid.delay[101] = 9.0
    assert absent(stage.ask()) == {}


def test_a_node_that_goes_away_with_its_message_is_asked_again_if_it_is_back_in_time(stage: Stage) -> None:
    stage.federation.gather(60)
    start, config = stage.clock(), stage.grid.nodes[100]
    stage.grid.delay[100] = 2.0
    stage.clock.events = [
        (start + 1.0, lambda: stage.grid.nodes.pop(100)),
        (start + 5.0, lambda: stage.grid.nodes.update({100: config})),
    ]
    assert absent(stage.ask()) == {}
    assert 5.0 < stage.clock() - start <= 10.0
    stage.clock.events = [(stage.clock() + 1.0, lambda: stage.grid.nodes.pop(100))]
    assert absent(stage.ask()) == {0: "lost its connection"}


def test_the_second_node_that_claims_a_site_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.federation.gather(60)
    del stage.grid.nodes[100]
    stage.grid.nodes[666] = {"partition-id": 0, "folder": str(tmp_path / "another")}
    stage.grid.delay[666] = 0.0
    stage.grid.delay[101] = 5.0
    assert absent(stage.ask()) == {0: "is not connected"}
    again = Sites(usual_names(4), tmp_path / "sites.json")
    again.claim(666, "site-0", "some other token")
    assert "first to claim" in again.refused[666]


def test_nobody_at_all_is_an_error_with_what_to_do(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.grid.nodes = {}
    with pytest.raises(HoldfastError, match="No site joined within 5 s; start the SuperNodes"):
        stage.federation.gather(5)


def test_an_unknown_job_is_an_absence_with_the_reason(stage: Stage) -> None:
    stage.federation.gather(60)
    reasons = absent(stage.ask("tell me everything"))
    assert len(reasons) == 4
    assert SENTENCES["job"] in reasons[0]
    stage.grid.nodes.pop(103)
    start = stage.clock()
    assert absent(stage.ask("tell me everything"))[3] == "is not connected"
    assert stage.clock() - start < 3  # a refusal is an answer, too: nobody waits for those who are not there


def test_each_exchange_is_written_down(stage: Stage, tmp_path: Path) -> None:
    stage.ask()
    line = read_lines(tmp_path / "exchanges.jsonl")[0]
    model = sum(4 * t.numel() for t in stage.plan.start().model.values())
    assert line["job"] == "train"
    assert 4 * model <= int(str(line["bytes_down"])) <= 4 * (model + 2000)


def test_a_site_that_hangs_in_its_upload_holds_up_nobody() -> None:
    uploaded = threading.Event()

    class Hanging(InProcessGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Packet]:
            if list(message_ids) == ["slow"]:
                uploaded.wait(30)
            asked = Packet(RecordDict(), dst_node_id=1, message_type="train.job")
            asked.metadata.__dict__["_message_id"] = next(iter(message_ids))
            return [Packet(RecordDict(), reply_to=asked)]

    puller = Puller(Hanging(client_app(EXPERIMENT), {}))
    got: list[str] = []
    while "quick" not in got:
        got += [packet.metadata.reply_to_message_id for packet in puller.pull(["slow", "quick"])]
    assert got == ["quick"]
    uploaded.set()
    while "slow" not in got:
        got += [packet.metadata.reply_to_message_id for packet in puller.pull(["slow"])]
    assert got == ["quick", "slow"]


def test_an_error_of_the_grid_is_raised_where_it_is_asked() -> None:
    class Broken(InProcessGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Packet]:
            raise ConnectionError("the SuperLink is gone")

    puller = Puller(Broken(client_app(EXPERIMENT), {}))

    def keep_looking() -> None:
        for _ in range(10_000):
            puller.pull(["any"])

    with pytest.raises(ConnectionError, match="is gone"):
        keep_looking()


@given(st.lists(st.floats(0.1, 500), max_size=12), st.integers(1, 12), st.none() | st.floats(0.1, 500))
def test_the_deadline_is_between_its_bounds_and_shrinks_never_below_least(
    answered: list[float], more: int, last: float | None
) -> None:
    seconds = Deadline().seconds(len(answered) + more, answered, last)
    assert 10.0 <= seconds <= 600.0
    if 2 * len(answered) >= len(answered) + more:
        assert seconds <= max(10.0, 2 * max(answered))


def test_own_samples_take_the_place_of_the_share(tmp_path: Path) -> None:
    wanted = experiment(rounds=1)
    grid = InProcessGrid(client_app(wanted, lambda config: samples(40, 9)), nodes(tmp_path, 4))
    seen: list[int] = []
    pull = grid.pull_messages

    def watch(numbers: Iterable[str]) -> list[Packet]:
        packets = list(pull(numbers))
        for packet in packets:
            words = packet.content["words"]
            if words["job"] == "train":
                seen.append(json.loads(words["scalars"])["samples"])
        return packets

    grid.pull_messages = watch  # type: ignore[method-assign, assignment]
    play(tmp_path, wanted, grid)
    assert seen == [32] * 4  # 80 % of each site's own forty
    assert torch.get_num_threads() == 1
