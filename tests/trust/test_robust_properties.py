"""What must hold for any rows: order, shift, range, weights, and the bound on what f hostile rows can do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from holdfast.trust.robust.aggregates import (
    Aggregate,
    adaptive_clipping,
    bulyan,
    centred_clipping,
    fltrust,
    geometric_median,
    krum,
    median,
    multi_krum,
    nearest_neighbour_mixing,
    norm_clipping,
    through,
    trimmed_mean,
)

F = 1


def mixed_then_krum(x: Tensor) -> Aggregate:
    prepared = nearest_neighbour_mixing(x, F)
    return through(prepared, krum(prepared.updates, F))


def clipped_then_mixed(x: Tensor) -> Aggregate:
    clipped = adaptive_clipping(x, F)
    mixed = nearest_neighbour_mixing(clipped.updates, F)
    return through(clipped, through(mixed, trimmed_mean(mixed.updates, F)))


RULES = {
    "median": median,
    "trimmed": lambda x: trimmed_mean(x, F),
    "krum": lambda x: krum(x, F),
    "multi-krum": lambda x: multi_krum(x, F),
    "bulyan": lambda x: bulyan(x, F),
    "geometric": geometric_median,
    "nnm+krum": mixed_then_krum,
    "arc+nnm": clipped_then_mixed,
    "centred": lambda x: centred_clipping(x, 1.0, 2),
    "clipping": norm_clipping,
    "fltrust": lambda x: fltrust(x, torch.ones(x.shape[1])),
}
CONVEX = ("median", "trimmed", "krum", "multi-krum", "bulyan", "geometric", "nnm+krum")

eighths = st.integers(-80, 80).map(lambda value: value / 8)  # sums and squares are exact: ties happen, and are real
matrices = st.tuples(st.integers(7, 10), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=eighths)
)
common = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.mark.parametrize("name", RULES)
@given(x=matrices, data=st.data())
@common
def test_order_of_clients_changes_nothing(name: str, x: np.ndarray, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(x))))
    one, other = RULES[name](torch.tensor(x)), RULES[name](torch.tensor(x)[order])
    assert torch.equal(one.vector, other.vector)
    distinct = len(np.unique(x, axis=0)) == len(x)
    if distinct:
        torch.testing.assert_close(one.weights[order], other.weights, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", CONVEX)
@given(x=matrices, shift=eighths)
@common
def test_shifting_all_rows_shifts_the_aggregate(name: str, x: np.ndarray, shift: float) -> None:
    one, other = RULES[name](torch.tensor(x)), RULES[name](torch.tensor(x) + shift)
    # When the sum of distances is least on a whole line, the geometric median is any of its points: compare the sums.
    if name == "geometric":
        spread = (
            (torch.tensor(x) - one.vector).norm(dim=1).sum(),
            (torch.tensor(x) + shift - other.vector).norm(dim=1).sum(),
        )
        torch.testing.assert_close(*spread, rtol=1e-4, atol=1e-4)
    else:
        torch.testing.assert_close(one.vector + shift, other.vector, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", CONVEX)
@given(x=matrices)
@common
def test_stays_in_the_range_of_each_coordinate_with_weights_of_one(name: str, x: np.ndarray) -> None:
    vector, weights = RULES[name](torch.tensor(x))
    assert (vector >= torch.tensor(x.min(0)) - 1e-4).all()
    assert (vector <= torch.tensor(x.max(0)) + 1e-4).all()
    assert weights.sum().item() == pytest.approx(1)
    assert (weights >= 0).all()


@pytest.mark.parametrize("name", ["centred", "clipping"])
@given(x=matrices)
@common
def test_a_clipped_row_never_gains_say(name: str, x: np.ndarray) -> None:
    weights = RULES[name](torch.tensor(x)).weights
    assert (weights >= 0).all()
    assert weights.sum() <= 1 + 1e-9


hostile_rows = st.floats(-(2.0**100), 2.0**100, width=32)


@given(x=matrices, value=hostile_rows, place=st.integers(0, 6))
@common
def test_one_arbitrary_row_cannot_leave_the_honest_range(x: np.ndarray, value: float, place: int) -> None:
    """Median, trimmed mean and Bulyan: what lies outside is hostile, so at most f values, and as many are cut."""
    honest = np.delete(x, place, axis=0)
    x[place] = value
    for name in ("median", "trimmed", "bulyan"):
        vector = RULES[name](torch.tensor(x)).vector
        assert (vector >= torch.tensor(honest.min(0)) - 1e-4).all(), name
        assert (vector <= torch.tensor(honest.max(0)) + 1e-4).all(), name


@given(x=matrices, value=hostile_rows, place=st.integers(0, 6))
@common
def test_one_arbitrary_row_moves_distance_rules_by_a_bound(x: np.ndarray, value: float, place: int) -> None:
    """|aggregate - any honest row| is bounded by the honest diameter D, whatever the hostile row is.

    Krum: the winner's score is at most (n - f - 2) D^2, and among its n - f - 2 > f neighbours one is honest: the
    distance to it is at most sqrt(n - f - 2) D. The geometric median: 2 (n - f) / (n - 2f) times the honest radius.
    """
    honest = torch.tensor(np.delete(x, place, axis=0))
    x[place] = value
    n = len(x)
    diameter = float(torch.cdist(honest.double(), honest.double(), compute_mode="donot_use_mm_for_euclid_dist").max())
    limits = {"krum": (n - F - 2) ** 0.5 + 1, "multi-krum": (n - F) ** 0.5 + 1, "geometric": 2 * (n - F) / (n - 2 * F)}
    for name, factor in limits.items():
        away = float((RULES[name](torch.tensor(x)).vector - honest).norm(dim=1).min())
        assert away <= factor * diameter + 1e-3, name


@given(x=matrices, value=hostile_rows, place=st.integers(0, 6), tau=st.floats(0.1, 10))
@common
def test_one_arbitrary_row_moves_clipping_rules_by_a_bound(x: np.ndarray, value: float, place: int, tau: float) -> None:
    """One step of centred clipping moves by at most tau / n for each row; FLTrust's length is at most the server's."""
    start = centred_clipping(torch.tensor(x), tau).vector
    x[place] = value
    moved = centred_clipping(torch.tensor(x), tau).vector
    assert float((moved - start).norm()) <= 2 * tau / len(x) * (1 + 1e-4) + 1e-5
    server = torch.ones(x.shape[1])
    assert float(fltrust(torch.tensor(x), server).vector.norm()) <= float(server.norm()) * (1 + 1e-5)
    bounded = norm_clipping(torch.tensor(x), bound=2.0).vector
    assert float(bounded.norm()) <= 2.0 * (1 + 1e-5)


@given(x=matrices, value=hostile_rows, place=st.integers(0, 6))
@common
def test_arc_and_nnm_before_the_trimmed_mean_keep_their_proven_bound(x: np.ndarray, value: float, place: int) -> None:
    """|aggregate - mean of S|^2 <= kappa x the variance of S, for each set S of n - f rows, whatever the others are.

    The trimmed mean has kappa = 6 f/(n - 2f) (1 + f/(n - 2f)); NNM before it 8 f/(n - f) (kappa + 1) (Allouah et al.,
    2023); ARC before both adds 2 f/(n - 2f) (Allouah et al., 2025).
    """
    x[place] = value
    n = len(x)
    ratio = F / (n - 2 * F)
    mixed = 8 * F / (n - F) * (6 * ratio * (1 + ratio) + 1)
    for name, kappa in (("trimmed", 6 * ratio * (1 + ratio)), ("arc+nnm", mixed + 2 * ratio)):
        found = RULES[name](torch.tensor(x)).vector.double()
        for honest in itertools.combinations(range(n), n - F):
            rows = torch.tensor(x[list(honest)]).double()
            variance = float((rows - rows.mean(0)).square().sum(1).mean())
            away = float((found - rows.mean(0)).square().sum())
            assert away <= kappa * variance * (1 + 1e-5) + 1e-4
