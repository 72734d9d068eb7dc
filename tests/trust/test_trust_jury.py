"""The jury: its arithmetic by hand and its invariants; whole runs under attack are in test_trust_jury_played.py."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from round_bench import SIZES, first_state, make_clients, make_method, same_state

from holdfast.algorithms import ALGORITHMS
from holdfast.algorithms.fedavg import FedAvg
from holdfast.core.errors import HoldfastError
from holdfast.core.types import Absent, Message, Reply, State, Tensors, Update, unpack, weighted_sum
from holdfast.data.task import Samples
from holdfast.engines.inline import Inline
from holdfast.learning.settings import Learning
from holdfast.method import Method
from holdfast.round import play_round
from holdfast.trust.base import Hearing, Testing, check_rule
from holdfast.trust.consensus import agreement, consensus, near_duplicates, weighted_median
from holdfast.trust.jury import Jury, clipped, fair_samples, said_of
from holdfast.trust.measures import TestRequest, to_compare_classes
from holdfast.trust.reputation import first_memory
from holdfast.trust.testers import Reports
from holdfast.trust.testing import TEST

LEARNING = Learning(epochs=1, batch_size=4, lr=0.1, momentum=0.9)


def method_with(trust: Jury, algorithm: FedAvg | None = None) -> Method:
    method = make_method(algorithm or FedAvg(), LEARNING, len(SIZES))
    method = replace(method, trust=trust, own_samples=lambda count: pytest.fail("a jury needs no clean data"))
    check_rule(trust, "jury", method)
    return method


def vectors(*rows: list[float]) -> list[Update]:
    return [Update(i, {"w": torch.tensor(row)}, samples=10, steps=1) for i, row in enumerate(rows)]


def test_the_louder_an_update_the_less_it_counts_and_who_does_nothing_has_no_say() -> None:
    heard, rows, _, counts = clipped(vectors([0.5], [2.0], [4.0], [8.0], [400.0]))  # median 4, bound 16, quiet below 1
    assert [update.delta["w"].item() for update in heard] == pytest.approx([0.5, 2.0, 4.0, 8.0, 16.0])
    assert torch.equal(rows, torch.stack([update.delta["w"] for update in heard]))
    assert counts.tolist() == pytest.approx([0.5, 1, 1, 1, 16 / 400])
    _, rows, _, counts = clipped(vectors([0.0], [0.0], [1.0]))
    assert (rows.flatten().tolist(), counts.tolist()) == ([0.0, 0.0, 1.0], [1, 1, 1])


def test_near_duplicates_share_a_vote_and_are_named() -> None:
    rows = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.01, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    near = near_duplicates(rows @ rows.T, 0.1)
    assert near.sum(1).tolist() == [2, 2, 1, 1, 1]
    assert said_of(near, [3, 5, 7, 8, 9], str) == ["3, 5 sent nearly the same update and share one vote"]


def test_the_consensus_bounds_what_a_liar_can_do() -> None:
    honest = np.array([[0.2, -0.1], [0.1, -0.2], [0.3, -0.1], [0.2, -0.2]])
    lying = np.vstack([honest, [[-1.0, 1.0]]])
    assert weighted_median(lying, np.ones(5)).tolist() == [0.2, -0.1]
    found = consensus(lying, np.ones(5))
    reach = 3 * 1.4826 * 0.1  # the median distance from the medians is 0.1
    assert found == pytest.approx([(0.8 + 0.2 - reach) / 5, (-0.6 - 0.1 + reach) / 5])
    assert consensus(lying, np.array([1.0, 1, 1, 1, 0])) == pytest.approx([0.2, -0.15])
    assert agreement(lying, np.ones(5)).tolist() == [1] * 5  # two values are too few to tell
    assert agreement(np.hstack([lying, lying]), np.ones(5)).tolist() == pytest.approx([1, 1, 1, 1, 0])
    assert consensus(np.full((2, 2), np.nan), np.ones(2)).tolist() == [0, 0]


@given(
    st.integers(3, 8).flatmap(
        lambda n: st.lists(st.lists(st.floats(-1, 1), min_size=4, max_size=4), min_size=n, max_size=n)
    ),
    st.lists(st.floats(-1, 1), min_size=4, max_size=4),
)
@settings(max_examples=60)
def test_one_report_moves_no_consensus_out_of_the_others_reach(honest: list[list[float]], lie: list[float]) -> None:
    values = np.array([*honest, lie])
    found = consensus(values, np.ones(len(values)))
    assert (found >= values.min(0) - 1e-9).all()
    assert (found <= values.max(0) + 1e-9).all()
    order = np.random.default_rng(0).permutation(len(values))
    assert consensus(values[order], np.ones(len(values))) == pytest.approx(found)


def test_whose_digest_is_contradicted_counts_only_once_witnesses_find_that_it_helps() -> None:
    """All witnesses say the same of everybody: what differs is what is known of client 1."""

    class Heard(Jury):
        def hear(self, updates: Sequence[Update], *_: object) -> tuple[list[int], Reports]:  # type: ignore[override]
            return [], Reports({w: {u.client: 0.6 for u in updates if u.client != w} for w in range(4)})

    trust, updates = Heard(), vectors([1.0, 0.0], [0.9, 0.1], [1.0, 0.2], [0.8, 0.0])
    method = replace(method_with(trust), clients=4)
    state = State(5, {"w": torch.zeros(2)}, {}, {}, {}, trust.begin(4))

    def say(contradicted: Sequence[int], reputation: float, others: float = 0.5) -> float:
        memory = {**state.trust, "reputation": torch.tensor([others, reputation, others, others]).double()}
        hearing = Hearing(method, Inline({}), contradicted=contradicted)
        return trust.judge(updates, hearing, replace(state, trust=memory)).say[1]

    assert say([], 0.0) > 0
    assert say([1], 0.0) == say([1], -0.3) == 0
    assert say([1], 0.1) == pytest.approx(say([], 0.1)), "its digest says one thing, its updates another"
    assert say([0, 1, 2, 3], 0.0, others=0.0) > 0, "if all are, none is"


def test_who_testifies_is_drawn_anew_and_may_be_drawn_again() -> None:
    trust = Jury(testers=4)
    present = [Update(c, {}, 1, 1) for c in range(8)]
    method = replace(method_with(trust), clients=8)
    states = [State(r, {}, {}, {}, {}, {**first_memory(8)}) for r in range(3, 23)]
    panels = [trust.choose(present, method, state) for state in states]
    assert all(len(panel) == 4 for panel in panels)
    assert len({tuple(panel) for panel in panels}) > 10
    assert any(set(one) & set(other) for one, other in itertools.pairwise(panels))
    secret = [trust.choose(present, replace(method, secret=5), state) for state in states]
    assert secret != panels


def test_a_claim_of_samples_buys_little_and_if_all_are_bad_all_count() -> None:
    claimed = [Update(i, {}, samples=n, steps=1) for i, n in enumerate([10, 10, 10, 2**40])]
    assert fair_samples(claimed).tolist() == [10, 10, 10, 40]
    memory = Jury().begin(2)
    memory["reputation"] -= 5
    assert Jury().weights_of(np.array([1.0, 3.0]), memory, [0, 1]).tolist() == [0.25, 0.75]


def test_a_witness_whose_held_out_samples_are_of_one_class_tests_on_some_that_it_trains_on_too() -> None:
    held, train = (Samples((torch.eye(len(y))[:, :2],), torch.tensor(y)) for y in ([1, 1], [1, 0, 0]))
    assert to_compare_classes(held, train, 4).labels.tolist() == [1, 1, 1, 0]
    two = to_compare_classes(train, held, 4).labels.tolist()
    assert two == [1, 0, 0]  # held-out samples of two classes will do
    assert len(to_compare_classes(held, train, 1)) == 1
    terms = SimpleNamespace(testing=lambda round: Testing("help", 4))
    assert TEST.records(SimpleNamespace(trust=terms, validation=held, train=train), 0) == 4  # type: ignore[arg-type]


def test_witnesses_are_asked_half_way_to_the_average() -> None:
    method, asked, sent = method_with(Jury(lose=None, patches=0)), list[TestRequest](), list[Tensors]()

    class Listening(Inline):
        def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
            replies = super().ask(messages)
            asked.extend(TEST.asked(one) for one in messages if one.job == TEST.name)
            trained = [unpack(one.tensors, "delta") for one in replies if isinstance(one, Reply)]
            sent.extend(delta for delta in trained if delta)
            return replies

    before = replace(first_state(method), trust=method.trust.begin(3))
    play_round(before, Listening(make_clients(FedAvg(), LEARNING)), method)
    assert (len(asked), len(sent)) == (3, 3)
    average = weighted_sum(sent, [count / sum(SIZES) for count in SIZES])  # in the first round nobody is known
    for question in asked:
        for name, weight in question.model.items():
            assert torch.allclose(weight - before.model[name], average[name] / 2, atol=1e-6)


@pytest.mark.parametrize(
    "algorithm", [name for name in ALGORITHMS if name not in ("fedbn", "oneshot", "mime")]
)  # they ask nobody, or refuse testers
def test_it_goes_with_every_algorithm_and_resumes_to_the_bit(algorithm: str) -> None:
    made = ALGORITHMS[algorithm]()
    method = method_with(Jury(), made)
    federation = Inline(make_clients(made, LEARNING))
    state: State = replace(first_state(method), trust=method.trust.begin(3))
    states = []
    for _ in range(4):
        state, record = play_round(state, federation, method)
        states.append(state)
    assert sum(record.weights.values()) == pytest.approx(1)
    again = states[2]
    again = replace(again, trust={name: tensor.clone() for name, tensor in again.trust.items()})
    federation = Inline(federation._clients)
    again, _ = play_round(again, federation, method_with(Jury(), made))
    assert same_state(again, states[3])


@pytest.mark.parametrize("wrong", [{"testers": 2}, {"slow": 0.0}, {"patience": 0}, {"most": 0}])
def test_options_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Jury(**wrong)  # type: ignore[arg-type]
    with pytest.raises(HoldfastError, match="at least 3 clients"):
        Jury().check(make_method(FedAvg(), LEARNING, 2))
