"""Who is away, as exact tables for small settings; a scenario is a pure function; Staged plays it on a federation."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client import TRAIN, samples_in
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.core.types import Absent, Message, Reply
from holdfast.digests.digest import open_digest
from holdfast.engines.staged import Staged
from holdfast.play import run
from holdfast.report.words import on_absent
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment, from_changes, from_table
from holdfast.scenarios import (
    SCENARIOS,
    Arrival,
    Dropout,
    Forever,
    Group,
    Intervals,
    Markov,
    Nobody,
    RoundRobin,
    Sequential,
    Stage,
    Temporary,
    Trace,
)

FOUR = Stage(24, [10, 40, 20, 30], seed=3)  # the largest is client 1
TWO = {"task": "fashion-mini", "samples": 200, "clients": 2, "rounds": 6, "model": "features", "workers": 0}
EVERY = settings(max_examples=50, deadline=None, derandomize=True)


def odd_rounds(round: int, stage: Stage) -> list[int]:
    """A user's own scenario: everyone is away in odd rounds."""
    return list(stage.clients) if round % 2 else []


def table(scenario: object, stage: Stage) -> list[list[int]]:
    assert callable(scenario)
    return [sorted(scenario(round, stage)) for round in range(stage.rounds)]


def test_four_clients_in_twenty_four_rounds() -> None:
    assert table(Nobody(), FOUR) == [[]] * 24
    assert table(Temporary(), FOUR) == [[]] * 4 + [[1]] * 4 + [[]] * 16
    assert table(Forever(), FOUR) == [[]] * 4 + [[1]] * 20
    assert table(Group(), FOUR) == [[2, 3]] * 8 + [[0, 1]] * 16
    assert table(Intervals(((0, 3, 6), (3, 5, 7))), FOUR) == [[]] * 2 + [[0]] * 2 + [[0, 3], [3]] + [[]] * 18


@pytest.mark.parametrize(
    ("clients", "away"),
    [
        (4, [1, 2, 3, 4]),
        (10, [3, 5, 8, 10]),
        (64, [16, 32, 48, 64]),
        (7, [2, 4, 6, 7]),
        (2, [1, 1, 2, 2]),
        (1, [1] * 4),
    ],
)
def test_sequential_leaving_in_quarters_rounded_up(clients: int, away: list[int]) -> None:
    told = table(Sequential(), Stage(24, [5] * clients, seed=3))
    assert [len(gone) for gone in told] == [0] * 8 + [count for count in away for _ in range(4)]
    for before, after in itertools.pairwise(told):
        assert set(before) <= set(after)  # for ever
    assert told[-1] == list(range(clients))


def test_clients_arrive_in_quarters_and_stay() -> None:
    told = table(Arrival(), Stage(24, [5] * 10, seed=3))
    assert [len(gone) for gone in told] == [7] * 4 + [5] * 4 + [2] * 4 + [0] * 12
    for before, after in itertools.pairwise(told):
        assert set(after) <= set(before)


def test_round_robin_gives_everybody_the_same_turns() -> None:
    told = table(RoundRobin(3), Stage(7, [1] * 7, seed=0))
    assert told[0] == [3, 4, 5, 6]
    assert told[2] == [2, 3, 4, 5]  # 6, 0 and 1 are there
    assert [sum(client not in gone for gone in told) for client in range(7)] == [3] * 7


def test_markov_stays_and_returns_as_often_as_it_says() -> None:
    stage = Stage(300, [1] * 20, seed=1)
    told = [set(gone) for gone in table(Markov(0.9, 0.3), stage)]
    assert told[0] == set()
    pairs = [(client in a, client in b) for a, b in itertools.pairwise(told) for client in stage.clients]
    stayed = [not after for before, after in pairs if not before]
    returned = [not after for before, after in pairs if before]
    assert sum(stayed) / len(stayed) == pytest.approx(0.9, abs=0.02)  # four deviations of 4,500 draws
    assert sum(returned) / len(returned) == pytest.approx(0.3, abs=0.05)
    assert Markov(1, 0)(299, stage) == []
    assert Markov(0, 0)(1, stage) == list(stage.clients)


def test_a_trace_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "away.csv").write_text("# client,first,back\n0,3,6\n\n3, 5, 7\n")
    assert table(Trace(str(tmp_path / "away.csv")), FOUR) == table(Intervals(((0, 3, 6), (3, 5, 7))), FOUR)
    (tmp_path / "bad.csv").write_text("0,3\n")
    with pytest.raises(HoldfastError, match=r"bad.csv, line 1: expected three whole numbers"):
        choose(SCENARIOS, Choice("trace", {"path": str(tmp_path / "bad.csv")}), "scenario")
    with pytest.raises(HoldfastError, match="cannot be read"):
        choose(SCENARIOS, Choice("trace", {"path": str(tmp_path / "none.csv")}), "scenario")


def test_the_paper_s_rounds_of_leaving() -> None:
    stage = Stage(300, [1] * 4, seed=0)
    counts = [len(gone) for gone in table(Sequential(), stage)]
    assert [round for round in range(1, 300) if counts[round] > counts[round - 1]] == [100, 150, 200, 250]


def test_sequential_order_depends_on_the_seed_alone() -> None:
    orders = {tuple(Sequential()(23, Stage(24, [1] * 10, seed))) for seed in range(8)}
    assert len(orders) > 4
    assert tuple(Sequential()(23, Stage(24, [9] * 10, 0))) in orders


@pytest.mark.parametrize("clients", [1, 2, 3, 5])
def test_two_groups_cover_everyone_once(clients: int) -> None:
    told = table(Group(), Stage(9, [1] * clients, seed=0))
    assert sorted(told[0] + told[-1]) == list(range(clients))
    assert told == [told[0]] * 3 + [told[-1]] * 6


@given(
    name=st.sampled_from([n for n in SCENARIOS if n not in ("intervals", "trace", "through")]),
    rounds=st.integers(1, 30),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    seed=st.integers(0, 99),
    order=st.randoms(use_true_random=False),
)
@EVERY
def test_scenarios_are_pure(name: str, rounds: int, sizes: list[int], seed: int, order: object) -> None:
    stage, scenario = Stage(rounds, sizes, seed), SCENARIOS[name]()
    expected = {round: list(scenario(round, stage)) for round in range(rounds)}
    shuffled = list(range(rounds)) * 2
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    for round in shuffled:
        away = list(SCENARIOS[name]()(round, Stage(rounds, list(sizes), seed)))
        assert away == expected[round]
        assert len(set(away)) == len(away)
        assert set(away) <= set(range(len(sizes)))


def test_dropout_has_its_rate_and_its_edges() -> None:
    stage = Stage(100, [1] * 100, seed=1)
    away = sum(len(Dropout(0.3)(round, stage)) for round in range(100))
    assert abs(away - 3000) < 4 * 45.8  # four standard deviations of 10,000 draws
    assert table(Dropout(0.0), stage) == [[]] * 100
    assert table(Dropout(1.0), stage) == [list(range(100))] * 100
    each = [sum(client in Dropout(0.3)(round, stage) for round in range(100)) for client in range(0, 100, 25)]
    assert all(10 < count < 50 for count in each)  # nobody is always away


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_dropout_s_rate_is_a_probability(p: float) -> None:
    with pytest.raises(ValueError, match="p must be a probability"):
        Dropout(p)


@pytest.mark.parametrize("away", [((-1, 1, 2),), ((0, 0, 1),), ((0, 3, 3),), ((0, 3, 2),)])
def test_impossible_intervals_are_refused(away: tuple[tuple[int, int, int], ...]) -> None:
    with pytest.raises(ValueError, match="is not a client, the first round away"):
        Intervals(away)


def test_scenarios_by_name_and_by_import_path() -> None:
    assert choose(SCENARIOS, Choice.parse("dropout:0.5", "scenario"), "scenario") == Dropout(0.5)
    own = choose(SCENARIOS, Choice.parse(f"{__name__}:odd_rounds", "scenario"), "scenario")
    assert table(own, Stage(3, [1, 1], 0)) == [[], [0, 1], []]
    chosen = Choice.parse({"name": "intervals", "away": [[1, 2, 4]]}, "scenario")
    assert choose(SCENARIOS, chosen, "scenario") == Intervals(((1, 2, 4),))


@pytest.mark.parametrize("spec", ["intervals:away=[[3,5,99], [0,1,2]]", "intervals:[[3, 5, 99],[0,1,2]]"])
def test_intervals_on_the_command_line_are_a_list_as_in_a_file(spec: str) -> None:
    assert choose(SCENARIOS, Choice.parse(spec, "scenario"), "scenario") == Intervals(((3, 5, 99), (0, 1, 2)))
    experiment = from_changes([f"scenario={spec}"])
    assert from_table(json.loads(json.dumps(experiment.as_json()))) == experiment


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("sequentail", "did you mean 'sequential'?"),
        ("intervals", "scenario: 'intervals' needs the option 'away'."),
        ({"name": "intervals", "away": 3}, "scenario.away: expected a list, got 3."),
        ({"name": "intervals", "away": [3]}, "scenario.away[0]: expected a list, got 3."),
        ({"name": "intervals", "away": [[1, 2]]}, "scenario.away[0]: expected 3 values, got 2."),
        ({"name": "intervals", "away": [[1, 4, 2]]}, "[1, 4, 2] is not a client"),
        ("intervals:away=[[1,2,3]", "scenario.away: expected a list such as [1, 2], got '[[1,2,3]'."),
        ("intervals:away=[[1,2,x]]", "scenario.away: expected a list such as [1, 2], got '[[1,2,x]]'."),
        ("intervals:away=[[1,2,1.5]]", "scenario.away[0][2]: expected a whole number, got 1.5."),
        ("intervals:away=[[1,2,3]]\nlr = 3", "scenario.away: expected a list such as [1, 2]"),
        ("dropout:2", "p must be a probability, got 2.0."),
        ("sequential:3", "scenario: 'sequential' takes no option, got '3'."),
        ("no.such.module:away", "scenario: cannot import 'no.such.module'"),
        ("holdfast.scenarios:Sequentail", "module 'holdfast.scenarios' has no 'Sequentail'"),
    ],
)
def test_a_wrong_scenario_is_one_sentence(spec: object, says: str) -> None:
    with pytest.raises(HoldfastError) as error:
        choose(SCENARIOS, Choice.parse(spec, "scenario"), "scenario")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


class Echo:
    """A federation that answers with the job, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []

    @property
    def clients(self) -> Sequence[int]:
        return [0, 1, 2]

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        self.asked += [(m.client, m.job) for m in messages]
        return [Reply(m.client, {}, {"said": m.job}) for m in messages]

    def close(self) -> None:
        self.asked.clear()


def test_staged_keeps_the_order_and_does_not_ask_those_away() -> None:
    echo = Echo()
    staged = Staged(echo, Intervals(((1, 1, 2),)), Stage(4, [1, 1, 1], 0), "intervals")
    messages = [Message(c, 0, job) for job in (TRAIN.name, "test", "evaluate") for c in (2, 1, 0)]
    replies = staged.ask(messages)
    assert [reply.client for reply in replies] == [2, 1, 0] * 3
    assert (1, TRAIN.name) not in echo.asked
    assert (1, "test") not in echo.asked
    assert replies[1] == Absent(1, "away (intervals)")
    # One client asked several things at once gets each of its own answers back; the watcher reaches everyone.
    assert [r.scalars["said"] for r in replies if isinstance(r, Reply)] == [TRAIN.name] * 2 + ["test"] * 2 + [
        "evaluate"
    ] * 3
    assert staged.ask([]) == []


def test_a_site_behind_another_is_away_with_it() -> None:
    stage = Stage(30, [1] * 4, seed=3)
    through = choose(SCENARIOS, Choice.parse("through:links=[[3, 1]],base=dropout:0.4", "scenario"), "scenario")
    for round in range(30):
        alone = set(Dropout(0.4)(round, stage))
        assert set(through(round, stage)) == (alone | {3} if 1 in alone else alone)
    for links in ("[[1, 1]]", "[[-1, 0]]"):
        with pytest.raises(HoldfastError, match="through which it is reached"):
            choose(SCENARIOS, Choice("through", {"links": links}), "scenario")
    with pytest.raises(HoldfastError, match="nowhere"):
        choose(SCENARIOS, Choice("through", {"links": "[[1, 0]]", "base": "nowhere"}), "scenario")


def test_of_who_left_before_it_sent_anything_nothing_stands_in() -> None:
    history = run(Experiment(**{**TWO, "rounds": 2}, scenario="never", absence="feddig"))
    [largest] = history.records[0].absent
    assert history.state.digests.keys() == {1 - largest}
    assert all(list(record.absent) == [largest] and not record.stand_ins for record in history.records)
    assert on_absent(history.records) is not None  # its data are measured all the same


def test_a_client_comes_back_with_other_records_and_a_new_digest() -> None:
    plan = make_plan(Experiment(**TWO, scenario="changed", absence="feddig:refresh=2"))
    largest = plan.stage.largest
    client, other = (plan.client(id, plan.model(), None) for id in (largest, 1 - largest))
    assert other.later is None
    assert len(client.later) == len(client.train) == plan.stage.sizes[largest] // 2
    assert int(client.train.labels.max()) <= int(client.later.labels.min())
    assert samples_in(client, 1) is client.train
    assert samples_in(client, 2) is client.later
    sealed = run(plan.experiment).state.digests[largest]
    digest = open_digest({name: tensor for name, tensor in sealed.items() if name != "claim"})
    assert set(digest.labels.argmax(1).tolist()) <= set(client.later.labels.tolist())
