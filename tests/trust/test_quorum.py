"""Witnesses that cannot tell abstain; where too few can, a robust rule weighs, and it is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.play import run
from holdfast.runs.experiment import from_table
from holdfast.trust.base import Judgement
from holdfast.trust.floor import hushed
from holdfast.trust.quorum import lacks_quorum, mixed_weights, most_harm
from holdfast.trust.reputation import first_memory, remember
from holdfast.trust.robust.merging import stacked


def test_without_a_quorum_a_robust_rule_with_a_proof_weighs_and_says_so() -> None:
    """Nobody testifies. Of seven updates two lie far off and together: f = 2, and they count little; the sum is near
    the honest mean, by no more than the honest lie apart."""
    honest = torch.tensor([[1.0, 0.1], [1.0, -0.1], [1.1, 0.0], [0.9, 0.0], [1.0, 0.0]])
    rows = torch.cat([honest, torch.tensor([[-4.0, 0.0], [-4.0, 0.1]])])
    weights = mixed_weights(rows, np.ones(len(rows), dtype=bool))
    assert weights.sum() == pytest.approx(1)
    assert weights[5:].sum() < 0.05
    assert (torch.from_numpy(weights).float() @ rows - honest.mean(0)).norm() < 0.1
    assert lacks_quorum({}) != []
    assert mixed_weights(torch.ones(1, 2), np.array([True])).tolist() == [1.0]
    assert mixed_weights(torch.tensor([[1.0], [9.0]]), np.array([True, False])).tolist() == [1.0, 0.0]  # not heard
    with_three = {w: {9: 0.7} for w in range(3)}
    assert lacks_quorum(with_three) == []
    assert lacks_quorum(with_three | {w: {9: 0.5} for w in range(3, 6)}) != []


def test_who_holds_one_class_only_abstains() -> None:
    """Two of five say 0.5 of everybody: with them in the median nobody would help, and nobody be judged."""
    told = {w: {c: 0.9 if c < 3 else 0.1 for c in range(5) if c != w} for w in range(3)}
    silent = {w: {c: 0.5 for c in range(5) if c != w} for w in (3, 4)}
    known = first_memory(5)
    alone = remember(known, told, range(5), slow=0.05, most=8)
    both = remember(known, {**told, **silent}, range(5), slow=0.05, most=8)
    assert all(torch.equal(alone[name], both[name]) for name in alone)
    most = remember(known, {0: told[0], **silent}, range(5), slow=0.05, most=8)
    assert torch.equal(most["reputation"], torch.zeros(5).double())  # one of three can tell: no quorum


def test_the_median_member_decides_whether_witnesses_can_tell() -> None:
    helped = {w: {c: 0.6 if c < 3 else 0.2 for c in range(5) if c != w} for w in range(5)}
    harmed = {w: {c: 0.6 if c < 2 else 0.2 for c in range(5) if c != w} for w in range(5)}
    assert not most_harm(helped, range(5), np.ones(5))
    assert most_harm(harmed, range(5), np.ones(5))
    mute = {w: {c: 0.5 for c in range(5) if c != w} for w in range(5)}
    assert not most_harm(mute, range(5), np.ones(5))  # nobody tells anything: that is no quorum


@pytest.mark.parametrize(
    ("told", "learnt"), [({0: 0.9, 1: 0.9}, 0), ({0: 0.9, 1: 0.9, 2: 0.9}, 3), ({0: 0.9, 1: 0.9, 2: 0.5}, 0)]
)
def test_where_there_is_no_quorum_nothing_is_learnt_of_anybody(told: dict[int, float], learnt: int) -> None:
    """Two witnesses who can tell are none, whether a third one is silent or away."""
    reports = {w: dict.fromkeys((3, 4), value) for w, value in told.items()}
    after = remember(first_memory(5), reports, [0, 1, 2, 3, 4], slow=0.05, most=8)
    assert bool(lacks_quorum(reports)) is (learnt == 0)
    assert int(after["testified"].sum()) == learnt


@pytest.mark.parametrize("mode", ["paper", "moments"])
def test_where_noised_digests_find_that_most_harm_nobody_is_louder_than_the_median(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = []

    def seen(judged: Judgement) -> Judgement | None:
        found = hushed(judged)
        lengths.append(stacked((found or judged).updates).norm(dim=1))
        return found

    monkeypatch.setattr("holdfast.trust.jury.hushed", seen)
    noise = {"epsilon": 3.0} if mode == "moments" else {}
    history = run(
        from_table(
            {
                "clients": 7,
                "samples": 1400,
                "rounds": 5,
                "model": "features",
                "workers": 0,
                "trust": "jury",
                "absence": {"name": "feddig", "mode": mode, **noise},
            }
        )
    )
    said = [note for record in history.records for note in record.notes if "noised digests" in note]
    assert bool(said) == (mode == "moments")
    assert len(said) == len(lengths)
    assert all(float(found.max()) == pytest.approx(float(found.median()), rel=1e-5) for found in lengths)
