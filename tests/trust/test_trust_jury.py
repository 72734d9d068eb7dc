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
from holdfast.trust.reputation import compare_with_others, first_memory, standing
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


def test_a_reputation_is_long_and_rounds_in_which_nobody_helps_hardly_count() -> None:
    trust = Jury(slow=0.5)
    told = {w: {0: 0.6, 1: 0.4, 2: 0.6} for w in range(3)}  # help +0.2, -0.2, +0.2: the scale is 0.2, the median 1
    memory = trust.remember(told, [0, 1, 2], [], trust.begin(3))
    assert memory["reputation"].tolist() == pytest.approx([1, -1, 1])
    assert memory["grounds"].tolist() == pytest.approx([1, 1, 1])
    assert float(memory["scale"]) == pytest.approx(0.2)
    late = {w: {0: 0.45, 1: 0.55, 2: 0.6} for w in range(3)}  # evidence -0.5, 0.5, 1: the round counts 0.5^2
    after = trust.remember(late, [0, 1, 2], [], memory)
    assert after["grounds"].tolist() == pytest.approx([1.125] * 3)  # an eighth of the first is forgotten, 0.25 come
    assert after["reputation"].tolist() == pytest.approx(
        [2 / 3, -2 / 3, 1]
    )  # (0.875 - 0.125) / 1.125; the third as it was
    none_helps = {w: {0: 0.1, 1: 0.2, 2: 0.3} for w in range(3)}
    later = trust.remember(none_helps, [0, 1, 2], [], after)["reputation"]
    assert later.tolist() == pytest.approx([2 / 3, -2 / 3, 1])  # nothing is learnt, so nothing is forgotten
    assert memory["grounds"].tolist() == [1, 1, 1]  # what was is not changed
    assert trust.remember({}, [0, 1, 2], [], memory)["reputation"].tolist() == memory["reputation"].tolist()


def test_a_hundred_rounds_that_tell_hardly_anything_do_not_outlast_one_that_told() -> None:
    told = {w: {0: 0.6, 1: 0.65, 2: 0.6} for w in range(3)}  # evidence 1, 1.5, 1
    dull = {w: {0: 0.48, 1: 0.505, 2: 0.505} for w in range(3)}  # evidence -0.2, 0.05, 0.05: counts 0.05^2
    memory = Jury().remember(told, range(3), [], Jury().begin(3))
    for _ in range(100):
        memory = Jury().remember(dull, range(3), [], memory)
    kept = (1 - 0.05 * 0.05**2) ** 100  # of the first round's say
    came = (1 - kept) / 0.05  # what the hundred count, which forget each other too
    expected = [(kept * first + came * later) / (kept + came) for first, later in ((1, -0.2), (1.5, 0.05), (1, 0.05))]
    assert memory["reputation"].tolist() == pytest.approx(expected)
    assert float(memory["reputation"][0]) > 0.75


def test_a_first_round_in_which_hardly_anybody_helps_silences_nobody() -> None:
    """Reports of four honest members, one of which holds other classes: the median help is a tenth of its size."""
    help_found = np.array([[0, 3, 11, 5], [-10, 0, 0, 6], [-5, 7, 0, 0], [-8, 10, -3, 0]]) / 100
    told = {w: {c: (1 + help_found[w, c]) / 2 for c in range(4) if c != w} for w in range(4)}
    memory = opposing(Jury().begin(4), 0)
    after = Jury().remember(told, range(4), [], memory)
    assert float(after["reputation"][0]) == pytest.approx(
        -0.035, abs=0.001
    )  # not -1.45, as it is in units of the median
    assert standing(after, range(4)).tolist() == pytest.approx([0.93, 1, 1, 1], abs=0.01)  # 1 - 0.035 / (0.1 x 5)


@pytest.mark.parametrize(("members", "low"), [(5, -0.4), (10, -0.2), (20, -0.1), (80, -0.1)])
def test_who_harms_on_the_long_average_loses_its_say_and_of_few_reports_later(members: int, low: float) -> None:
    memory = first_memory(members)
    memory["opposed"].fill_(-0.1)  # among fewer than seven that has to be so, too
    memory["reputation"][:4] = torch.tensor([0.01, low / 2, low, 2 * low])
    assert standing(memory, range(5)).tolist() == pytest.approx([1, 0.5, 0, 0, 1])


def opposing(memory: Tensors, client: int) -> Tensors:
    """The memory of a jury in which the client's updates went against the others'."""
    memory["opposed"][client] = -0.1
    return memory


def test_nobody_is_named_or_excluded_by_what_witnesses_say_alone() -> None:
    """Client 1 is slandered; its updates go with the others': cos((3, 4), (6, 8)) = 1, averaged by 0.05 from zero.

    Client 0 goes against the sum of the others, (3, 4) + (-3, -4) / 2 = (1.5, 2): cosine -1.
    """
    trust = Jury(patience=2, exclude=3)
    rows, weights = torch.tensor([[-3.0, -4.0], [3.0, 4.0], [3.0, 4.0]]).double(), np.array([0.0, 0.5, 0.5])
    products, swapped = rows @ rows.T, rows[[1, 0, 2]] @ rows[[1, 0, 2]].T
    memory = compare_with_others(trust.begin(3), products, weights, range(3), [0, 1, 2], slow=0.05)
    assert memory["opposed"].tolist() == pytest.approx([-0.05, 0.05, 0.05])
    slander = {w: {0: 0.6, 1: 0.1, 2: 0.6} for w in range(3)}
    for _ in range(5):
        memory = trust.remember(slander, range(3), [], memory)
    assert trust.suspects(memory, range(3)) == {}
    assert trust.doubted(memory, range(3)) == {}  # of three members, nor does it take a say; of seven it does
    many = {
        name: torch.cat([values, values.new_zeros(4)]) if values.dim() else values for name, values in memory.items()
    }
    assert list(trust.doubted(many, range(3))) == [1]
    assert not trust.excludes(memory, 1)
    for _ in range(40):
        memory = compare_with_others(memory, swapped, weights[[1, 0, 2]], range(3), [0, 1, 2], slow=0.05)
    assert "go against what the others' come to" in trust.suspects(memory, range(3))[1]
    # A stand-in's update says nothing.
    away = compare_with_others(memory, products, weights, range(3), [0, 2], slow=0.05)
    assert away["opposed"][1] == memory["opposed"][1]


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


def test_suspicion_needs_several_rounds_and_a_client_may_come_back() -> None:
    trust = Jury(patience=2, exclude=3)
    bad = {w: {0: 0.6, 1: 0.1, 2: 0.6, 3: 0.6} for w in range(4)}
    good = {w: {0: 0.6, 1: 0.9, 2: 0.6, 3: 0.6} for w in range(4)}
    memory, told = opposing(trust.begin(4), 1), []
    for _ in range(4):
        memory = trust.remember(bad, range(4), [], memory)
        told.append(trust.suspects(memory, range(4)))
    assert [list(found) for found in told] == [[], [1], [1], [1]]
    assert "harm" in told[1][1]
    assert "excluded" in told[2][1]
    assert trust.weights_of(np.ones(4), memory, range(4)).tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    for _ in range(12):
        memory = trust.remember(good, range(4), [], memory)
    assert trust.suspects(memory, range(4)) == {}
    assert trust.weights_of(np.ones(4), memory, range(4)).tolist() == pytest.approx([0.25] * 4)


@pytest.mark.parametrize(("reputation", "named"), [(-0.2, []), (-0.3, [1])])
def test_a_member_of_many_is_named_only_where_it_harms_clearly_though_its_say_is_lost_before(
    reputation: float, named: list[int]
) -> None:
    memory = opposing(first_memory(20), 1)
    memory["reputation"][1], memory["doubts"][1] = reputation, 10
    assert standing(memory, [1]).tolist() == [0]
    assert list(Jury().doubted(memory, range(20))) == [1]
    assert list(Jury().suspects(memory, range(20))) == named


def test_a_round_in_which_nobody_helps_raises_no_doubts() -> None:
    trust = Jury(patience=1)
    memory = opposing(trust.begin(6), 1)
    memory["scale"].fill_(0.2)
    memory["reputation"][1] = -1.0
    late = {w: {0: 0.51, 1: 0.1, 2: 0.5, 3: 0.5} for w in range(6)}  # all agree on client 1, but the median help is 0
    for _ in range(5):
        memory = trust.remember(late, range(4), [], memory)
    assert memory["doubts"].tolist() == [0] * 6
    assert trust.suspects(memory, range(4)) == {}
    telling = {w: {0: 0.6, 1: 0.1, 2: 0.6, 3: 0.6} for w in range(6)}
    memory = trust.remember(telling, range(4), [], memory)
    assert list(trust.suspects(memory, range(4))) == [1]
    assert trust.remember(late, range(4), [], memory)["doubts"].tolist() == [
        0,
        1,
        0,
        0,
        0,
        0,
    ]  # nor does it take any away


def test_who_reforms_late_is_pardoned_and_who_goes_on_or_plants_is_not() -> None:
    """Where nobody helps no reputation mends; eight rounds without harm, less those with, and all is forgotten."""
    trust = Jury(patience=4)
    telling = {w: {0: 0.6, 1: 0.1, 2: 0.1, 3: 0.6, 4: 0.6, 5: 0.6} for w in range(6)}
    memory = trust.begin(7)
    for _ in range(5):
        memory = trust.remember(telling, range(6), [], memory)
    memory["planted"][3] = -5.0
    assert standing(memory, range(6)).tolist() == [1, 0, 0, 0, 1, 1]
    late = {w: {0: 0.5, 1: 0.5, 2: 0.4, 3: 0.5, 4: 0.51, 5: 0.5} for w in range(6)}  # client 1 has reformed
    for _ in range(7):
        memory = trust.remember(late, range(6), [], memory)
    assert memory["reformed"].tolist() == [0, 7, 0, 0, 0, 0, 0]
    assert standing(memory, range(6)).tolist() == [1, 0, 0, 0, 1, 1]
    odd = {w: {0: 0.45, 1: 0.55, 2: 0.55, 3: 0.45, 4: 0.45, 5: 0.45} for w in range(6)}  # the median member harms
    assert trust.remember(odd, range(6), [], memory)["reformed"].tolist() == memory["reformed"].tolist()
    worse = {w: {**late[w], 1: 0.4} for w in range(6)}
    memory = trust.remember(worse, range(6), [], memory)
    for _ in range(2):
        memory = trust.remember(late, range(6), [], memory)
    assert standing(memory, range(6)).tolist() == [1, 1, 0, 0, 1, 1]
    assert [int(memory[name][1]) for name in ("reputation", "doubts", "reformed")] == [0, 0, 0]
    again = trust.remember(telling, range(6), [], memory)
    assert float(again["reputation"][1]) < -0.4  # nothing is left to outweigh it


def test_who_is_excluded_is_named_even_before_patience_is_at_its_end() -> None:
    trust = Jury(patience=9, exclude=2)
    memory = opposing(trust.begin(4), 1)
    for _ in range(2):
        memory = trust.remember({w: {0: 0.6, 1: 0.1, 2: 0.6, 3: 0.6} for w in range(4)}, range(4), [], memory)
    assert list(trust.suspects(memory, range(4))) == [1]
    assert "2 rounds of doubt, so it is excluded" in trust.suspects(memory, range(4))[1]


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
