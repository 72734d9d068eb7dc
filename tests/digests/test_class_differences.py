"""Few digests: contradicted by how classes differ, wherever they lie; and what no liar can do about that."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.absence import FedDig
from holdfast.client import samples_in
from holdfast.digests.cells import Cells, cells_of, mixed_cells
from holdfast.digests.class_differences import compared, errors
from holdfast.digests.contradiction import contradicted
from holdfast.digests.digest import Digest
from holdfast.play import run
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import from_table

PLACES = np.random.default_rng(7).normal(size=(3, 6)) * 2  # where three classes lie


def member(seed: int, places: np.ndarray = PLACES, rows: float = 48.0, **changes: object) -> Cells:
    """A digest of `rows` rows for each class, which vary by 1 in each coordinate."""
    random = np.random.default_rng(seed)
    c, k = places.shape
    told = random.normal(size=(int(rows * c), k))
    means = places + random.normal(size=(c, k)) / np.sqrt(rows)
    return Cells(np.full(c, 4 * rows), means, told.T @ told, c * rows)._replace(**changes)  # type: ignore[arg-type]


def turned(cells: Cells) -> Cells:
    return cells._replace(means=cells.means[::-1].copy())


def test_a_comparison_by_hand() -> None:
    """Two classes 1 apart, five rows each of variance 0.1: V = 0.1 (1/5 + 1/5) = 0.04 for both, so Var x = 0.04 + 0.04
    - 0.0016 = 0.28^2. Ten rows tell the variance: 2 sqrt(10/8) deviations are believed."""
    one = Cells(np.array([20.0, 20.0]), np.array([[0.0], [1.0]]), np.ones((1, 1)), 10.0)
    z, cosine = compared(one, one)
    assert (z, cosine) == (pytest.approx(1 / 0.28 / (2 * np.sqrt(10 / 8))), 1.0)
    assert compared(one, turned(one)) == (pytest.approx(-z), -1.0)
    assert compared(one._replace(means=one.means + 100), one) == (pytest.approx(z), 1.0), "where it lies says nothing"
    noised = one._replace(noise=np.array([0.02, 0.02]))  # V = 0.08 for this one: 0.04 + 0.08 - 0.0032
    assert compared(noised, one)[0] == pytest.approx(z * 0.28 / np.sqrt(0.1168))


def test_another_scanner_is_not_contradicted_and_turned_labels_are() -> None:
    """The three others have their classes within 1 of each other; one hospital has all of its 50 further on."""
    members = {c: member(c) for c in range(4)}
    moved = members[3]._replace(means=members[3].means + 50)
    assert contradicted(members) == contradicted({**members, 3: moved}) == {}
    assert set(contradicted({**members, 3: turned(moved)})) == {3}
    assert set(contradicted({**members, 1: turned(members[1]), 3: moved})) == {1}


def test_rows_that_scatter_hide_nobody_and_without_spread_nobody_can_tell() -> None:
    members = {c: member(c) for c in range(4)}
    loud = turned(members[3])._replace(scatter=1e6 * np.eye(6))
    assert set(contradicted({**members, 3: loud})) == {3}
    bare = {c: one._replace(scatter=np.zeros((6, 6))) for c, one in members.items()}
    assert contradicted({**bare, 3: turned(bare[3])}) == {}
    few = {c: one._replace(rows=2.0) for c, one in members.items()}
    assert contradicted({**few, 3: turned(few[3])}) == {}, "two rows do not tell how far rows vary"


def test_two_liars_of_five_have_no_honest_digest_contradicted_where_classes_lie_far_apart() -> None:
    members = {c: member(c) for c in range(5)}
    assert set(contradicted({**members, 3: turned(members[3]), 4: turned(members[4])})) == {3, 4}


@given(st.integers(0, 2**31), st.floats(-3, 3), st.floats(-9, 9), st.integers(0, 2))
@settings(max_examples=60)
def test_no_digest_has_an_honest_one_contradicted(seed: int, size: float, spread: float, kind: int) -> None:
    """One of four sends what it likes: loud or quiet, of any spread, along or against what the others differ by."""
    random = np.random.default_rng(seed)
    honest = {c: member(c) for c in range(3)}
    means = [random.normal(size=(3, 6)), -PLACES, honest[0].means * -1 + honest[1].means + honest[2].means][kind]
    shape = random.normal(size=(6, int(random.integers(1, 7))))
    liar = member(3)._replace(means=10**size * means + 10 * random.normal(size=6), scatter=10**spread * shape @ shape.T)
    assert set(contradicted({**honest, 3: liar})) <= {3}


@pytest.mark.parametrize("seed", range(5))
def test_where_classes_are_noise_nobody_is_contradicted(seed: int) -> None:
    """The smallest of 25 differences is far below zero by chance alone."""
    places = np.zeros((26, 40))
    assert contradicted({c: member(100 * seed + c, places, rows=2.0) for c in range(6)}) == {}


# Four real hospitals -------------------------------------------------------------------------------------------------


def hospitals(seed: int, attack: str = "labelflip") -> tuple[set[int], set[int]]:
    """The hospital that is hostile, and those whose digests are contradicted."""
    told = {"task": "heart", "absence": "feddig", "trust": "jury", "workers": 0, "seed": seed}
    plan = make_plan(from_table({**told, "attack": attack, "attackers": 1} if attack != "none" else told))
    model, feddig = plan.model(), plan.method.absence
    assert isinstance(feddig, FedDig)
    clients = [plan.client(c, model, None) for c in range(4)]
    digests = {c.id: feddig.make_digest(c, samples_in(c, 0, "digests"), 0) for c in clients}
    return set(plan.hostile), set(contradicted({c: cells_of(feddig, plan.method, d) for c, d in digests.items()}))


def test_hospitals_that_differ_are_not_contradicted_and_flipped_labels_are() -> None:
    for seed in (201, 204, 212, 215):  # Hungary's or Switzerland's was, by where its classes lie
        assert hospitals(seed, "none")[1] == set()
    for seed in (201, 203, 204, 205):
        hostile, found = hospitals(seed)
        assert found == hostile
    assert hospitals(203, "baddigest")[1] == {0}
    assert hospitals(200) == ({2}, set()), "of one class Switzerland has a single row: nobody can tell"


def test_who_flips_labels_in_its_digest_too_has_no_say_from_the_first_round_on() -> None:
    told = {"task": "heart", "absence": "feddig", "trust": "jury", "workers": 0, "seed": 202, "rounds": 3}
    flips = run(from_table({**told, "attack": "labelflip", "attackers": 1}))
    assert all(record.weights[1] == 0 for record in flips.records)
    assert not any(record.suspects for record in flips.records), "nobody is named among four"


def test_means_of_mixed_rows_are_less_sure_than_their_number_says() -> None:
    """Rows labelled (1/2, 1/2) and (1, 0): Y'Y = ((5/4, 1/4), (1/4, 1/4)), its inverse ((1, -1), (-1, 5)). The means
    are x_2 and 2 x_1 - x_2, their difference 2 x_2 - 2 x_1: eight times a row's variance."""
    labels = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    digest = Digest(torch.tensor([[0.0], [1.0]]), labels, "", "", 2, "across", "balanced", "none", 4, 4)
    share, noise = errors(mixed_cells(digest), np.array([0, 1]))
    assert share[0, 1] == pytest.approx(8)
    assert noise[0, 1] == 0
    assert errors(Cells(np.array([8.0, 4.0]), np.zeros((2, 1)), np.eye(1), 3.0), np.array([0, 1]))[0][0, 1] == 1.5
