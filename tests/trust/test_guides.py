"""Guides: a member's own digest says what its update may look like; backdoors of any shape go beyond it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.attacks.adversary import choose_hostile
from holdfast.core.types import Update
from holdfast.data.task import Samples
from holdfast.learning.loop import full_gradient
from holdfast.learning.objective import TaskLoss
from holdfast.models.networks import fill
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment
from holdfast.trust.guides import (
    MOST,
    ROWS,
    Explained,
    added,
    beyond_digest,
    cut,
    fitted,
    gradients,
    reference,
    unexplained,
)
from holdfast.trust.jury import Jury

SETTINGS = {
    "clients": 10, "partition": "dirichlet:0.5", "rounds": 3, "model": "features", "workers": 0, "seed": 201,
    "samples": 2000, "absence": "feddig", "trust": "jury",
}  # fmt: skip


def test_what_an_update_says_beyond_its_digest_by_hand() -> None:
    """Rows of classes 0, 1, 1. Class 0 rises by 2 and 4 where it is not so: 3; class 1 by 1; class 2 by -1."""
    rows = Samples((torch.zeros(3, 1),), torch.tensor([0, 1, 1]))
    more = torch.tensor([[-7.0, 1.0, 1.0], [2.0, 9.0, 1.0], [4.0, 9.0, -5.0]])
    assert unexplained(torch.stack([more, torch.zeros(3, 3)]), rows).tolist() == [3.0, 0.0]


def test_the_guide_is_the_part_of_an_update_that_the_digest_explains() -> None:
    uphill = -torch.tensor([[1.0, 2.0, 2.0]])
    delta = torch.ones(1, 3)
    guide = fitted(uphill, delta)  # 5 / 9 of the way
    assert torch.allclose(guide, torch.tensor([[5 / 9, 10 / 9, 10 / 9]]))
    assert abs(float(((delta - guide) * uphill).sum())) < 1e-6, "what is left is across"
    assert not fitted(uphill, -delta).any()
    assert not fitted(0 * uphill, delta).any()


def test_what_its_digest_explains_counts_of_an_update_that_goes_beyond_it() -> None:
    update = Update(3, {"w": torch.tensor([1.0, 1.0, 1.0])}, samples=5, steps=1)
    guide = {"w": torch.tensor([5 / 9, 10 / 9, 10 / 9])}
    assert cut(update, guide, 1.0) is update
    assert torch.allclose(cut(update, guide, 0.0).delta["w"], guide["w"])
    assert torch.allclose(cut(update, guide, 0.5).delta["w"], torch.tensor([7 / 9, 19 / 18, 19 / 18]))
    guided = Explained([], {0: 1.0, 3: 0.6, 4: 0.0, 5: 0.8}, {"unexplained": torch.tensor([0.0, 0, 0, 1.2, 0, 0.9])})
    assert [note.split("'")[0] for note in beyond_digest(guided, "client {}".format)] == ["client 3", "client 4"]


def test_gradients_of_digests_are_those_of_training() -> None:
    """An oracle: full_gradient, which training uses, one digest after the other."""
    plan = make_plan(Experiment(**{**SETTINGS, "rounds": 1}))
    context, state = plan.method, plan.start()
    width = next(iter(state.model.values())).shape[1]
    chance = torch.Generator().manual_seed(1)
    digests = [
        Samples((torch.randn(n, width, generator=chance),), torch.randint(10, (n,), generator=chance)) for n in (3, 7)
    ]
    found = gradients(digests, list(state.model), state, context)
    fill(context.bench.model, state.model, state.buffers)
    for row, digest in zip(found, digests, strict=True):
        learning = replace(context.learning_in(0), batch_size=len(digest))
        oracle = full_gradient(context.bench.model, digest, learning, TaskLoss(context.bench.loss))
        assert torch.allclose(row, torch.cat([oracle[name].flatten() for name in state.model]), atol=1e-6)


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


def test_of_a_backdoor_in_updates_only_what_the_digest_explains_counts_and_the_honest_count() -> None:
    history = holdfast.run(Experiment(**SETTINGS, attack="backdoor:shape=invert,into=updates", attackers=2))
    hostile = set(choose_hostile(10, 2, 201))
    fair = history.records[0].weights
    for record in history.records[1:]:
        assert all(record.weights[client] < fair[client] / 4 for client in hostile)
        assert all(record.weights[client] > fair[client] / 2 for client in set(range(10)) - hostile)
        assert sum("beyond its digest" in note for note in record.notes) == 2
        assert not record.suspects  # one kind of evidence alone names nobody


def test_guides_can_be_left_out() -> None:
    with pytest.raises(ValueError, match="beyond must not be negative"):
        Jury(beyond=-1)
    history = holdfast.run(Experiment(**{**SETTINGS, "rounds": 2, "trust": "jury:beyond=0"}))
    assert not any("beyond its digest" in note for record in history.records for note in record.notes)


@pytest.mark.parametrize("absence", ["none", "feddig"])
def test_weights_that_do_not_learn_are_no_obstacle_to_witnesses_and_guides(absence: str) -> None:
    """The scaling of a table is in the model and stands still: it has no gradient, and the others' count."""
    settings = {"task": "heart", "clients": 8, "partition": "dirichlet:1.0", "scaling": "federated", "rounds": 2}
    history = holdfast.run(Experiment(**settings, absence=absence, trust="jury", workers=0))
    notes = [note for record in history.records for note in record.notes]
    assert not [note for note in notes if "quorum" in note or "ignored" in note]
    assert all(len(record.credibility) == 8 for record in history.records)
