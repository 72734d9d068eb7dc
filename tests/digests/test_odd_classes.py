"""Odd classes of digests: distances by hand, and what is left of a digest."""

from __future__ import annotations

import numpy as np
import torch

from holdfast.digests.cells import Cells, mixed_cells
from holdfast.digests.digest import Digest
from holdfast.digests.odd_classes import nothing_left, odd_classes, remembered, without_odd
from holdfast.play import run
from holdfast.runs.experiment import from_table


def told(*means: float | None) -> Cells:
    """A digest on the line with 10 rows of each class that has a mean."""
    counts = np.array([0.0 if mean is None else 10.0 for mean in means])
    return Cells(counts, np.array([[mean or 0.0] for mean in means]), np.ones((1, 1)), float(counts.sum()))


def test_who_lies_more_than_twice_as_far_away_as_usual_is_odd() -> None:
    honest = {c: told(0.1 * (-1) ** c, 5.0 + 0.1 * (-1) ** c) for c in range(6)}
    found = odd_classes({**honest, 7: told(1.0, 5.1)})
    assert found[7].tolist() == [True, False]
    assert not any(found[c].any() for c in honest)
    assert odd_classes({**honest, 7: told(1.0, None)})[7].tolist() == [True, True], "nothing is left of it"
    assert odd_classes({**honest, 7: told(0.15, 5.1)})[7].tolist() == [False, False]


def test_three_others_must_hold_a_class() -> None:
    few = {c: told(0.0, None) for c in range(6)}
    assert not any(flags.any() for flags in odd_classes({**few, 7: told(0.0, 9.0)}).values())
    assert not any(flags.any() for flags in odd_classes(few).values())


def test_among_fewer_than_seven_digests_no_class_is_odd() -> None:
    few = {c: told(0.1 * (-1) ** c, 5.0 + 0.1 * (-1) ** c) for c in range(5)}
    assert not any(flags.any() for flags in odd_classes({**few, 7: told(1.0, 5.1)}).values())


def test_what_is_left_of_a_digest() -> None:
    memory = remembered({1: np.array([True, False]), 2: np.array([True, True])}, clients=3, classes=2)
    assert nothing_left(memory) == {2}
    assert nothing_left({}) == set()
    rows, labels = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    digest = Digest(rows, labels, "", "", 1, "within", "balanced", "none", 2, 2)
    assert without_odd(digest, memory, 0) is digest
    assert without_odd(digest, memory, 1).features.tolist() == [[2.0]]
    assert without_odd(digest, {}, 1) is digest


def mixed(random: np.random.Generator, *means: list[float]) -> Cells:
    """Twelve rows of each class around its mean, spread by 1."""
    rows = np.concatenate([np.array(mean) + random.normal(size=(12, len(mean))) for mean in means])
    labels = np.repeat(np.eye(len(means)), 12, axis=0)
    digest = Digest(
        torch.from_numpy(rows), torch.from_numpy(labels), "", "", 1, "within", "balanced", "none", len(rows), len(rows)
    )
    return mixed_cells(digest)


def test_classes_that_several_digests_move_alike_are_odd_though_none_is_far_away() -> None:
    random, k = np.random.default_rng(0), 30
    here, there, stamped = [0.0] * k, [3.0] * k, [0.0] * (k - 1) + [3.0]
    honest = {c: mixed(random, here, there) for c in range(12)}
    assert not any(flags.any() for flags in odd_classes(honest).values())
    alike = {c: mixed(random, stamped, there) for c in (20, 21, 22)}
    found = odd_classes({**honest, **alike})
    assert all(found[c].tolist() == [True, False] for c in alike)
    assert not any(found[c].any() for c in honest)
    assert not odd_classes({**honest, 20: alike[20]})[20].any(), "one alone is moved no further than chance moves some"


def test_honest_members_that_hold_most_of_a_class_are_not_odd_beside_others_with_single_rows() -> None:
    """Twelve members, nobody hostile: one has 58 rows of a class of which others have 1, 7, 1, 1, 3, 23 and 3. Their
    median strays, for which it does not answer; three classes were odd while only its own rows' error was known."""
    history = run(
        from_table(
            {"partition": "dirichlet:0.5", "lr": 0.02, "workers": 0, "download": False, "clients": 12, "rounds": 1,
             "model": "features", "absence": "feddig", "trust": "jury", "seed": 205}
        )
    )  # fmt: skip
    assert history.state is not None
    assert not history.state.absence["odd"].any()


def test_who_is_moved_a_little_the_same_way_is_odd_though_the_odd_ones_draw_the_median() -> None:
    """Four of thirteen move a class by 6 deviations of a row, one by 1.3, eight do not: the median of the twelve others
    is the highest of the eight, so that from there the one is nearer. From the median of those who are not odd it is
    1.3 sqrt(12) = 4.5 deviations away, beyond the 3 in a direction that is known."""
    random, k = np.random.default_rng(0), 30
    rest = [[3.0 * j] * k for j in (1, 2, 3, 4)]
    moved = [0.0] * 8 + [6.0] * 4 + [1.3]
    found = odd_classes({c: mixed(random, [0.0] * (k - 1) + [by], *rest) for c, by in enumerate(moved)})
    assert [c for c, flags in found.items() if flags[0]] == [8, 9, 10, 11, 12]
    assert not any(flags[1:].any() for flags in found.values())


def test_of_a_digest_all_of_whose_rows_are_odd_nothing_is_left_though_a_label_has_a_share_of_another_class() -> None:
    """A quarter of one row's label is class 1, of which it has no row: rows go by what most of them is."""
    random, k = np.random.default_rng(0), 6
    honest = {c: mixed(random, [0.0] * k, [3.0] * k) for c in range(8)}
    rows = random.normal(size=(24, k)) + 40.0
    labels = np.eye(2)[[0] * 24]
    labels[0] = [0.75, 0.25]
    digest = Digest(
        torch.from_numpy(rows), torch.from_numpy(labels), "", "", 1, "across", "balanced", "none", len(rows), len(rows)
    )
    found = odd_classes({**honest, 9: mixed_cells(digest)})
    assert found[9].tolist() == [True, True]
    assert nothing_left(remembered(found, 10, 2)) == {9}


def test_where_all_digests_differ_in_that_way_nobody_is_odd() -> None:
    """Members with one of two scanners: the usual distance is large, so nobody stands out."""
    random, k = np.random.default_rng(1), 30
    shifts = [1.0, -1.0] * 6
    found = odd_classes({c: mixed(random, [3 * s] + [0.0] * k, [3 * s] + [3.0] * k) for c, s in enumerate(shifts)})
    assert not any(flags.any() for flags in found.values())
