"""Odd classes of digests: distances by hand, and what is left of a digest."""

from __future__ import annotations

import numpy as np
import torch

from holdfast.digests.contradiction import Cells
from holdfast.digests.digest import Digest
from holdfast.digests.odd_classes import nothing_left, odd_classes, remembered, without_odd


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
    few = {c: told(0.0, None) for c in range(3)}
    assert not any(flags.any() for flags in odd_classes({**few, 7: told(0.0, 9.0)}).values())
    assert not any(flags.any() for flags in odd_classes(few).values())


def test_what_is_left_of_a_digest() -> None:
    memory = remembered({1: np.array([True, False]), 2: np.array([True, True])}, clients=3, classes=2)
    assert nothing_left(memory) == {2}
    assert nothing_left({}) == set()
    rows, labels = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    digest = Digest(rows, labels, "", "", 1, "within", "balanced", "none", 2, 2)
    assert without_odd(digest, memory, 0) is digest
    assert without_odd(digest, memory, 1).features.tolist() == [[2.0]]
    assert without_odd(digest, {}, 1) is digest
