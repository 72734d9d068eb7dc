"""Guides: a member's own digest says what its update may look like; backdoors of any shape go beyond it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.attacks.adversary import choose_hostile
from holdfast.data.task import Samples
from holdfast.runs.experiment import Experiment
from holdfast.trust.guides import MOST, ROWS, added, fitted, reference, unexplained
from holdfast.trust.jury import Jury

SETTINGS = {
    "clients": 10, "partition": "dirichlet:0.5", "rounds": 3, "model": "features", "workers": 0, "seed": 201,
    "samples": 2000, "absence": "feddig", "trust": "jury",
}  # fmt: skip


def test_what_an_update_says_beyond_its_digest_by_hand() -> None:
    """Rows of classes 0, 1, 1. Class 0 rises by 2 and 4 where it is not so: 3; class 1 by 1; class 2 by -1."""
    rows = Samples((torch.zeros(3, 1),), torch.tensor([0, 1, 1]))
    guided = torch.zeros(3, 3)
    sent = torch.tensor([[-7.0, 1.0, 1.0], [2.0, 9.0, 1.0], [4.0, 9.0, -5.0]])
    assert unexplained(sent, guided, rows) == 3.0
    assert unexplained(guided, guided, rows) == 0.0


def test_the_guide_is_the_part_of_an_update_that_the_digest_explains() -> None:
    way = {"w": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([2.0])}
    delta = {name: torch.ones_like(tensor) for name, tensor in way.items()}
    guide = fitted(way, delta)  # 5 / 9 of the way
    assert torch.allclose(guide["w"], torch.tensor([[5 / 9, 10 / 9]]))
    rest = {name: delta[name] - guide[name] for name in delta}
    assert abs(sum(float((rest[name] * way[name]).sum()) for name in way)) < 1e-6, "what is left is across"
    assert all(not value.any() for value in fitted(way, {name: -tensor for name, tensor in delta.items()}).values())
    assert all(not value.any() for value in fitted({name: 0 * t for name, t in way.items()}, delta).values())


@given(st.lists(st.floats(0, 20), min_size=1, max_size=30), st.floats(0.5, 4))
def test_over_any_rounds_a_member_says_at_most_so_much_in_those_that_count(told: list[float], beyond: float) -> None:
    sums, counted = 0.0, []
    for times in told:
        sums = added(sums, times, beyond)
        assert 0 <= sums <= MOST
        counted.append((times, 1) if sums < 1 else (0.0, 0))
        for first in range(len(counted)):
            said, rounds = (sum(values) for values in zip(*counted[first:], strict=True))
            assert said < beyond * rounds + 1 + 1e-9


def test_rows_of_all_digests_are_drawn() -> None:
    one, other = (Samples((torch.full((400, 2), v),), torch.full((400,), int(v))) for v in (0.0, 1.0))
    rows = reference([one, other], torch.Generator().manual_seed(0))
    assert len(rows) == ROWS
    assert ROWS / 3 < int(rows.labels.sum()) < 2 * ROWS / 3
    assert torch.equal(rows.inputs[0][:, 0], rows.labels.float())


def test_a_backdoor_in_updates_counts_nothing_from_the_second_round_on_and_the_honest_count() -> None:
    history = holdfast.run(Experiment(**SETTINGS, attack="backdoor:shape=invert,into=updates", attackers=2))
    hostile = set(choose_hostile(10, 2, 201))
    for record in history.records[1:]:
        assert all(record.weights[client] == 0 for client in hostile)
        assert all(record.weights[client] > 0 for client in set(range(10)) - hostile)
        assert sum("beyond its digest" in note for note in record.notes) == 2
        assert not record.suspects  # one kind of evidence alone names nobody


def test_guides_can_be_left_out() -> None:
    with pytest.raises(ValueError, match="beyond must not be negative"):
        Jury(beyond=-1)
    history = holdfast.run(Experiment(**{**SETTINGS, "rounds": 2, "trust": "jury:beyond=0"}))
    assert not any("beyond its digest" in note for record in history.records for note in record.notes)
