"""Guides: a member's own digest says what its update may look like; backdoors of any shape go beyond it."""

from __future__ import annotations

import pytest
import torch

import holdfast
from holdfast.attacks.adversary import choose_hostile
from holdfast.data.task import Samples
from holdfast.runs.experiment import Experiment
from holdfast.trust.guides import reference, unexplained, within
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


def test_the_usual_is_the_members_median_and_who_left_no_digest_counts_nothing() -> None:
    found = dict.fromkeys(range(5), 1.0) | {5: 3.5, 6: 9.0}
    assert [within(found, client, 3.0) for client in (0, 5, 6, 7)] == [1.0, 0.5, 0.0, 0.0]
    assert within({0: -1.0, 1: -0.5, 2: 0.0}, 1, 3.0) == 1.0  # all say less than their digests do


def test_rows_of_all_digests_are_drawn() -> None:
    one, other = (Samples((torch.full((400, 2), v),), torch.full((400,), int(v))) for v in (0.0, 1.0))
    rows = reference([one, other], torch.Generator().manual_seed(0))
    assert len(rows) == 300
    assert 100 < int(rows.labels.sum()) < 200
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
