"""FedTest against hand-worked rounds: testers, reports, scores, weights, and what happens to bad testers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from round_bench import SIZES, Spoiled, first_state, make_clients, make_method, same_state

from holdfast.algorithms.fedavg import FedAvg
from holdfast.attacks.adversary import Adversary
from holdfast.attacks.testers import Liar
from holdfast.client import TRAIN, Client, TrainRequest, perform
from holdfast.core.types import Absent, Federation, Message, Reply, State, Update, size
from holdfast.engines.inline import Inline
from holdfast.jobs import packed
from holdfast.learning.settings import Learning
from holdfast.method import Method
from holdfast.models.networks import fill
from holdfast.record import Record
from holdfast.round import play_round
from holdfast.trust.base import Hearing, check_rule
from holdfast.trust.fedtest import FedTest, scores_of
from holdfast.trust.measures import (
    accuracies,
    ask_for_accuracies,
    ask_for_help,
    each_gradient,
    held_out,
    help_of,
    mean_of_chances,
)
from holdfast.trust.testers import choose_testers, read_report
from holdfast.trust.testing import TEST

LEARNING = Learning(epochs=1, batch_size=4, lr=0.1, momentum=0.9)


def peers() -> dict[int, Client]:
    """Clients that know that the run's rule is FedTest."""
    return {id: replace(client, trust=FedTest()) for id, client in make_clients(FedAvg(), LEARNING).items()}


def method_with(trust: FedTest) -> Method:
    method = make_method(FedAvg(), LEARNING, len(SIZES))
    own = lambda count: pytest.fail("FedTest needs no samples of its own")  # noqa: E731
    method = replace(method, trust=trust, own_samples=own)
    check_rule(trust, "fedtest", method)
    return method


def start(method: Method) -> State:
    return replace(first_state(method), trust=method.trust.begin(method.clients))


def played(trust: FedTest, rounds: int, federation: Federation | None = None) -> list[tuple[State, Record]]:
    method = method_with(trust)
    federation = federation or Inline(peers())
    state, told = start(method), []
    for _ in range(rounds):
        state, record = play_round(state, federation, method)
        told.append((state, record))
    return told


class Scripted:
    """A federation whose testers say what the test wants: (tester, client) -> accuracy."""

    def __init__(self, said: dict[int, object]) -> None:
        self.said, self.asked = said, list[Message]()

    @property
    def clients(self) -> list[int]:
        return [0, 1, 2]

    def ask(self, messages: list[Message]) -> list[Reply | Absent]:
        self.asked += messages
        answers = [(m, self.said[m.client]) for m in messages]
        return [
            Absent(m.client, "did not answer in time") if a is None else Reply(m.client, {}, {"accuracies": a})
            for m, a in answers
        ]

    def close(self) -> None:
        pass


def updates(*clients: int) -> list[Update]:
    return [Update(c, {"w": torch.tensor([float(c)])}, samples=10, steps=1) for c in clients]


def bare_state(trust: FedTest) -> State:
    return State(0, {"w": torch.zeros(1)}, {}, {}, {}, trust.begin(3))


def test_scores_are_a_moving_average_and_weights_their_fourth_power() -> None:
    trust = FedTest(testers=2, choice="trusted", decay=0.25)
    said = {0: {"1": 0.5, "2": 0.2}, 1: {"0": 0.4, "2": 0.4}, 2: {"0": 0.6, "1": 0.7}}
    testers = trust.choose(updates(0, 1, 2), method_with(trust), bare_state(trust))
    assert len(testers) == 2
    state = bare_state(trust)
    state = replace(state, trust={**state.trust, "scores": torch.tensor([0.9, 0.8, 0.1], dtype=torch.float64)})
    state.trust["tested"][:2] = True  # client 2 was never tested: its first score is the accuracy itself
    judged = trust.judge(
        updates(0, 1, 2), Hearing(method_with(trust), Scripted(said)), state
    )  # the trusted testers are 0 and 1
    assert judged.scores == pytest.approx({0: 0.25 * 0.9 + 0.75 * 0.4, 1: 0.25 * 0.8 + 0.75 * 0.5, 2: 0.3})
    fourth = [0.525**4, 0.575**4, 0.3**4]
    assert judged.weights == pytest.approx([f / sum(fourth) for f in fourth])
    assert judged.memory["testers"].tolist() == [True, True, False]
    assert judged.bytes_up == 4 * 4
    assert judged.bytes_down == 2 * size(packed(ask_for_accuracies(state.model, {}, updates(0, 1, 2)))[0])


def test_without_cross_tests_a_testers_model_gets_the_mean_of_the_others() -> None:
    trust = method_with(FedTest(testers=1, choice="rotating", cross_test=False)).trust
    judged = trust.judge(
        updates(0, 1, 2), Hearing(method_with(trust), Scripted({0: {"1": 0.5, "2": 0.25}})), bare_state(trust)
    )
    assert judged.scores == pytest.approx({0: 0.375, 1: 0.5, 2: 0.25})
    assert judged.memory["tested"].tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("report", "word"),
    [
        (None, "did not answer in time"),
        ({"1": 7.0, "2": 0.5}, "7.0 for client 1"),
        ({"1": math.nan, "2": 0.5}, "nan for client 1"),
        ({"1": -0.1, "2": 0.5}, "-0.1 for client 1"),
        ({"1": True, "2": 0.5}, "True for client 1"),
        ({"1": "0.5", "2": 0.5}, "'0.5' for client 1"),
        ({"1": 0.5}, "nothing of client 2"),
        ({"1": 0.5, "2": 0.5, "9": 1.0}, "not asked about"),
        ([0.5, 0.5], "no accuracies"),
    ],
)
def test_a_tester_that_is_late_or_talks_nonsense_is_ignored_and_named(report: object, word: str) -> None:
    trust = method_with(FedTest(testers=3)).trust
    said = {0: report, 1: {"0": 0.5, "2": 0.25}, 2: {"0": 0.5, "1": 1.0}}
    judged = trust.judge(updates(0, 1, 2), Hearing(method_with(trust), Scripted(said)), bare_state(trust))
    assert judged.scores == {0: 0.5, 1: 1.0, 2: 0.25}
    assert len(judged.notes) == 1
    assert judged.notes[0].startswith("tester 0 is ignored")
    assert word in judged.notes[0]


def test_when_nobody_can_be_believed_old_scores_stay_and_before_any_all_weigh_the_same() -> None:
    trust = method_with(FedTest(testers=3)).trust
    judged = trust.judge(
        updates(0, 1, 2), Hearing(method_with(trust), Scripted({0: None, 1: None, 2: None})), bare_state(trust)
    )
    assert judged.weights == pytest.approx([1 / 3] * 3)
    assert len(judged.notes) == 3
    zero = {0: {"1": 0, "2": 0}, 1: {"0": 0, "2": 0}, 2: {"0": 0, "1": 0}}
    judged = trust.judge(updates(0, 1, 2), Hearing(method_with(trust), Scripted(zero)), bare_state(trust))
    assert judged.weights == pytest.approx([1 / 3] * 3)
    assert "same weight" in judged.notes[-1]


def test_a_lone_update_needs_no_tester() -> None:
    trust = method_with(FedTest()).trust
    judged = trust.judge(updates(1), Hearing(method_with(trust), Scripted({})), bare_state(trust))
    assert judged.weights == [1.0]


def test_stand_ins_are_tested_but_do_not_test() -> None:
    trust = method_with(FedTest(testers=3)).trust
    stand_in = replace(updates(1)[0], synthetic=True)
    federation = Scripted({0: {"1": 0.5, "2": 0.5}, 2: {"0": 0.5, "1": 0.25}})
    judged = trust.judge(
        [*updates(0), stand_in, *updates(2)], Hearing(method_with(trust), federation), bare_state(trust)
    )
    assert [message.client for message in federation.asked] == [0, 2]
    assert judged.scores[1] == 0.375


def test_the_power_follows_the_models() -> None:
    trust = FedTest(adapt=True)
    memory = trust.begin(2)
    up = trust.remember({0: 0.5, 1: 0.5}, [0], memory)
    worse = trust.remember({0: 0.4, 1: 0.4}, [0], up)
    assert [float(m["power"]) for m in (up, worse)] == [3.5, 4.5]
    assert float(FedTest().remember({0: 0.4}, [0], memory)["power"]) == 4.0
    assert float(trust.adapted(16.0, 0.0, 1.0)) == 16.0
    assert float(trust.adapted(1.0, 1.0, 0.0)) == 1.0


@given(st.sets(st.integers(0, 19), min_size=1), st.integers(1, 8), st.integers(0, 50), st.data())
@settings(max_examples=60)
def test_testers_are_new_ones_as_far_as_there_are_others(
    present: set[int], count: int, round: int, data: st.DataObject
) -> None:
    before = data.draw(st.sets(st.integers(0, 19), max_size=8))
    for manner in ("random", "rotating"):
        chosen = choose_testers(manner, count, sorted(present), sorted(before), [0.0] * 20, 3, round)
        assert len(chosen) == len(set(chosen)) == min(count, len(present))
        assert set(chosen) <= present
        if manner == "random":
            fresh = present - before
            assert set(chosen) <= fresh or fresh <= set(chosen)


def test_rotating_testers_all_get_their_turn() -> None:
    seen, before = list[int](), list[int]()
    for round in range(5):
        before = choose_testers("rotating", 4, range(10), before, [0.0] * 10, 0, round)
        seen += before
    assert sorted(seen) == sorted([*range(10), *range(10)])


def test_a_client_tests_each_model_with_its_own_buffers_on_its_held_out_samples() -> None:
    clients = make_clients(FedAvg(), LEARNING)
    state = first_state(make_method(FedAvg(), LEARNING, 3))
    request = TrainRequest(state.model, state.buffers, {}, {}, accepted=-1, lr=0.1, digest=False)
    replies = [perform(clients[c], TRAIN.message(c, 0, request)) for c in clients]
    sent = [
        Update(
            r.client,
            {n[6:]: t for n, t in r.tensors.items() if n.startswith("delta/")},
            1,
            1,
            {n[8:]: t for n, t in r.tensors.items() if n.startswith("buffers/")},
        )
        for r in replies
    ]
    tester = replace(clients[2], trust=FedTest(most=5))
    asked = ask_for_accuracies(state.model, state.buffers, sent)
    said = TEST.read(perform(tester, TEST.message(2, 0, asked))).accuracies
    for update in sent[:2]:  # the slow way
        fill(tester.model, {n: t + update.delta[n] for n, t in state.model.items()}, update.buffers)
        tester.model.eval()
        right = tester.model(tester.validation.inputs[0][:5]).argmax(1) == tester.validation.labels[:5]
        assert said[str(update.client)] == float(right.float().mean())
    assert accuracies(tester.model, tester.validation, asked, []) == {}
    assert len(held_out(tester.validation, tester.train, 3)) == 3
    assert held_out(tester.validation.take(torch.arange(0)), tester.train, 50) is tester.train


def test_help_is_the_cosine_with_the_gradient_of_the_balanced_chance_of_the_true_class() -> None:
    tester = make_clients(FedAvg(), LEARNING)[1]
    state = first_state(make_method(FedAvg(), LEARNING, 3))
    fill(tester.model, state.model, state.buffers)
    tester.model.eval()

    def score(shift: float, direction: dict[str, torch.Tensor]) -> float:
        fill(tester.model, {n: t + shift * direction[n] for n, t in state.model.items()}, state.buffers)
        with torch.no_grad():
            chance = tester.model.double()(tester.train.inputs[0].double()).softmax(1)
        tester.model.float()
        classes = tester.train.labels
        return sum(float(chance[classes == c, c].mean()) for c in (0, 1)) / 2

    gradient = {n: one[0] for n, one in each_gradient(tester.model, [tester.train], mean_of_chances).items()}
    generator = torch.Generator().manual_seed(0)
    direction = {n: torch.randn(t.shape, generator=generator) for n, t in state.model.items()}
    slope = (score(1e-3, direction) - score(-1e-3, direction)) / 2e-3
    inner = sum(float((gradient[n] * direction[n]).sum()) for n in gradient)
    assert inner == pytest.approx(slope, rel=2e-2)
    against = {n: -t for n, t in gradient.items()}
    zero = {n: torch.zeros_like(t) for n, t in gradient.items()}
    sent = [Update(0, gradient, 1, 1), Update(2, against, 1, 1), Update(3, zero, 1, 1)]
    asked = ask_for_help(state.model, state.buffers, sent)
    assert help_of(tester.model, tester.train, asked, [0, 2, 3]) == pytest.approx(
        {"0": 1.0, "2": 0.0, "3": 0.5}, abs=1e-6
    )


def test_a_run_counts_the_bytes_of_testing_and_resumes_to_the_bit() -> None:
    plain = played(FedTest(testers=2), 4)
    tested = sum(size(packed(ask_for_accuracies(s.model, s.buffers, []))[0]) for s, _ in plain[:1])
    assert plain[0][1].bytes_down > 3 * tested
    method = method_with(FedTest(testers=2))
    federation = Inline(peers())
    state = start(method)
    for _ in range(2):
        state, _ = play_round(state, federation, method)
    kept = replace(state, trust={n: t.clone() for n, t in state.trust.items()})
    again = method_with(FedTest(testers=2))
    for _ in range(2):
        kept, _ = play_round(kept, federation, again)
    assert same_state(kept, plain[-1][0])


def test_lying_testers_gain_weight_under_the_published_rule() -> None:
    """The paper holds false scores to be negligible; with a liar among few testers they are not."""
    federation = Adversary(Inline(peers()), Liar("honest"), {1, 2}, 0)
    _, record = played(FedTest(testers=3), 3, federation)[-1]
    assert record.weights[0] < 0.2
    assert record.scores[1] > record.scores[0]


def test_a_tester_that_fails_is_named() -> None:
    inline = Inline(peers())
    spoiled = Spoiled(inline, {})
    spoiled.spoils = {(0, 1): lambda reply: Absent(1, "broke down") if "accuracies" in reply.scalars else reply}
    _, record = played(FedTest(testers=3), 1, spoiled)[0]
    assert record.notes == ["tester 1 is ignored: it broke down"]


def test_read_report_takes_whole_numbers_and_scores_of_needs_no_score() -> None:
    assert read_report(Reply(0, {}, {"accuracies": {"1": 1}}), [1]) == ("", {1: 1.0})
    assert scores_of(updates(0, 1), FedTest().begin(2)) == {0: 1.0, 1: 1.0}


@pytest.mark.parametrize("wrong", [{"testers": 0}, {"power": 0.0}, {"decay": 1.0}, {"most": 0}])
def test_options_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        FedTest(**wrong)  # type: ignore[arg-type]
