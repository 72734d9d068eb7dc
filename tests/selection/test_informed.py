"""Selections that go by what happened: by hand, fair to everybody, and remembered across a resume."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from engine_helpers import assert_same_run, interrupted
from engine_helpers import experiment as tiny

from holdfast.core.errors import HoldfastError
from holdfast.core.types import State, Update
from holdfast.play import resume, run
from holdfast.runs.build import make_plan
from holdfast.runs.store import Run
from holdfast.selection import select
from holdfast.selection.informed import BySize, Heard, Informed, KCentres, PowerOfChoice, Tiers


def state_of(round: int = 1, **memory: list[float]) -> State:
    """Six clients, all asked in the round before; loss and seconds are their numbers."""
    told = {"loss": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "seconds": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], **memory}
    tensors = {name: torch.tensor(values) for name, values in told.items()}
    asked = {"asked": torch.full((6,), round - 1)}
    return State(round, {}, {}, {}, {}, {}, claims=dict.fromkeys(range(6), 10), selection={**asked, **tensors})


@pytest.mark.parametrize("kind", [BySize, PowerOfChoice, Tiers, KCentres])
def test_everybody_is_asked_once_first_and_nobody_waits_for_longer_than_said(kind: type[Informed]) -> None:
    rule, state, waited = kind(2, wait=5), State(0, {}, {}, {}, {}, {}), dict.fromkeys(range(7), 0)
    for round in range(60):
        asked = select(rule, range(7), state, seed=round)
        assert 1 <= len(asked) <= 2
        assert all(asked.values())
        if round < 3:
            assert set(asked.values()) == {"never asked before"}
        waited = {client: 0 if client in asked else wait + 1 for client, wait in waited.items()}
        assert max(waited.values()) <= 8  # 5, and those that wait as long one after another
        away = min(asked)  # told nothing, and had its turn all the same
        heard = [
            Heard(Update(client, {"w": torch.tensor([client, 1.0])}, 1, 1), loss=float(client), seconds=client + 1.0)
            for client in asked
            if client != away
        ]
        state = state.next(selection=rule.remember(state, range(7), asked, heard))


def test_by_size_draws_by_shares_and_a_false_claim_counts_twice_the_median() -> None:
    state = State(1, {}, {}, {}, {}, {}, claims={0: 10, 1: 10, 2: 10**9}, selection={"asked": torch.zeros(3)})
    drawn = [next(iter(select(BySize(1), range(3), state, seed))) for seed in range(400)]
    assert drawn.count(2) / 400 == pytest.approx(0.5, abs=0.1)  # 20 of 40
    assert min(drawn.count(0), drawn.count(1)) > 60


def test_power_of_choice_takes_the_largest_losses_of_its_candidates() -> None:
    """All six are candidates: 5 and 4. Of three candidates 5 is one in half of the cases, and then it is asked."""
    everyone = select(PowerOfChoice(2, 6), range(6), state_of(), seed=0)
    assert list(everyone) == [4, 5]
    assert everyone[5] == "its loss, 5, is among the largest of 6"
    drawn = [next(iter(select(PowerOfChoice(1, 3), range(6), state_of(), seed))) for seed in range(200)]
    assert drawn.count(5) / 200 == pytest.approx(0.5, abs=0.12)
    assert not {0, 1} & set(drawn)  # never the largest of three
    unheard = state_of(loss=[0.0, 1.0, 2.0, 3.0, 4.0, math.nan])
    assert list(select(PowerOfChoice(2, 6), range(6), unheard, seed=0)) == [3, 4]  # who told nothing comes last


def test_tiers_are_equally_fast_and_the_likelier_the_larger_their_loss() -> None:
    """Tiers 0-1, 2-3, 4-5 with mean losses .5, 2.5, 4.5: chances 1/6, 2/6, 3/6."""
    drawn = [tuple(select(Tiers(2), range(6), state_of(), seed)) for seed in range(300)]
    shares = [drawn.count(tier) / 300 for tier in ((0, 1), (2, 3), (4, 5))]
    assert sum(shares) == pytest.approx(1)
    assert shares == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=0.09)


def test_k_centres_asks_one_of_each_group() -> None:
    rule = KCentres(2)
    first = State(0, {}, {}, {}, {}, {})
    ways = [[1.0, 0.0], [0.9, 0.1], [0.0, -1.0], [0.1, -0.9], [1.0, 0.05], [0.0, -2.0]]
    heard = [Heard(Update(c, {"w": torch.tensor(way)}, 1, 1), None, 0.0) for c, way in enumerate(ways)]
    state = first.next(selection=rule.remember(first, range(6), dict.fromkeys(range(6), ""), heard))
    for seed in range(20):
        one, two = select(rule, range(6), state, seed)
        assert (one in (0, 1, 4)) != (two in (0, 1, 4))
    forgotten = state.without([2]).selection
    assert forgotten["first"][2].isnan().all()
    assert not forgotten["first"][3].isnan().any()


@pytest.mark.parametrize("selection", ["size:2", "power-of-choice:2", "k-centres:2"])
def test_they_repeat_their_bits_and_records_say_why(selection: str, tmp_path: Path) -> None:
    keys = {"selection": selection, "scenario": "dropout:0.3", "trust": "median", "rounds": 6, "partition": "iid"}
    reference = run(tiny(**keys))
    interrupted(tiny(**keys), tmp_path / "run", after=3)
    assert_same_run(resume(tmp_path / "run"), reference)
    stored = list(Run.open(tmp_path / "run").records())
    assert [record.chosen_for for record in stored] == [record.chosen_for for record in reference.records]
    for record in stored:
        assert set(record.chosen_for) == set(record.asked or ())
        assert all(record.chosen_for.values())


def test_what_cannot_work_is_one_sentence() -> None:
    for selection, says in (
        ("power-of-choice:9", "selection: 9 of 4 clients cannot be asked"),
        ({"name": "power-of-choice", "count": 3, "candidates": 2}, "candidates must be at least count"),
        ({"name": "tiers", "count": 2, "tiers": 0}, "tiers must be at least 1"),
        ("size:0", "count must be at least 1"),
    ):
        with pytest.raises(HoldfastError, match=says):
            make_plan(tiny(selection=selection))
    with pytest.raises(HoldfastError, match="goes by training losses, which protected clients do not tell"):
        make_plan(tiny(selection="power-of-choice:2", protect="dp-sgd:epsilon=8"))


@pytest.mark.parametrize("kind", [BySize, PowerOfChoice, Tiers, KCentres])
def test_nobody_is_asked_in_more_than_its_share_of_the_rounds(kind: type[Informed]) -> None:
    """Client 0 has the most samples and the largest loss; with half of the rounds it has 15 turns of 30."""
    rule = kind(2, share=0.5)
    state = State(0, {}, {}, {}, {}, {}, claims={0: 10**6, 1: 10, 2: 10, 3: 10, 4: 10})
    turns = dict.fromkeys(range(5), 0)
    for round in range(30):
        asked = select(rule, range(5), state, seed=round)
        assert 1 <= len(asked) <= 2
        for client in asked:
            turns[client] += 1
        assert max(turns.values()) <= max(1, math.ceil(0.5 * (round + 1)))
        heard = [
            Heard(Update(c, {"w": torch.eye(5)[c]}, 1, 1), loss=9.0 if c == 0 else 0.1, seconds=c + 1.0) for c in asked
        ]
        state = state.next(selection=rule.remember(state, range(5), asked, heard))
    assert min(turns.values()) >= 3
    with pytest.raises(HoldfastError, match="raise share"):
        select(kind(2, share=0.3), range(5), state, seed=0)
    with pytest.raises(ValueError, match="share must be above 0"):
        kind(2, share=0.0)
