"""Joint sums with noise: their sensitivity searched through the real code, the noise, an audit, and the wire."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from holdfast.audit.statistics import gaussian_auc, membership
from holdfast.audit.tradeoff import Scored, audit
from holdfast.core.errors import HoldfastError
from holdfast.core.tensors import bytes_of
from holdfast.data.kinds import Classes, Hazards, Labels, Regression
from holdfast.digests.sums import UNIT, SumDigest, bounds_of, make_sums, open_sums, seal_sums, targets_of
from holdfast.privacy import noise
from holdfast.privacy.moment_noise import STEPS
from holdfast.privacy.sum_noise import exact_whole, noisy_sums, scales_for, sums_claim

KINDS = {
    "regression": (Regression(), 0),
    "labels": (Labels(), 3),
    "hazards": (Hazards((1.0, 2.0, 3.0)), 0),
    "classes": (Classes(), 3),
}


def record_labels(kind: str, numbers: np.ndarray) -> torch.Tensor:
    """A record's target from three numbers in [0, 1]."""
    if kind == "regression":
        return torch.tensor([[200 * numbers[0] - 50]])  # also beyond the range of 0 to 100
    if kind == "labels":
        return torch.tensor(numbers > 0.5).float()[None]
    if kind == "hazards":
        return torch.tensor([[4 * numbers[0], float(numbers[1] > 0.5)]])
    return torch.tensor([int(2.99 * numbers[0])])


def contribution(kind: str, z: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """What a record adds to the whole numbers, each over the scale of its noise."""
    which, classes = KINDS[kind]
    bounds = bounds_of(which, classes)
    targets = targets_of(which, record_labels(kind, numbers), classes, (0.0, 100.0))
    cells, second, squares = exact_whole(z[None], targets, bounds)
    (on, off), _, _ = scales_for(3.0, 1e-5, len(z), bounds)
    row, column = np.triu_indices(len(z))
    spread = np.where(row == column, float(on), float(off))
    return np.concatenate([cells.ravel() / float(on), second / spread, squares / float(on)])


@pytest.mark.parametrize("kind", KINDS)
@given(
    arrays.arrays(np.float64, (2, 3), elements=st.floats(-2, 2)),
    arrays.arrays(np.float64, (2, 3), elements=st.floats(0, 1)),
)
@settings(max_examples=200, deadline=None)
def test_no_two_records_exceed_the_ratio(kind: str, z: np.ndarray, numbers: np.ndarray) -> None:
    """Whole numbers, as they get their noise: any two records differ by no more than the ratio, without a margin."""
    bounds = bounds_of(*KINDS[kind])
    ratio = scales_for(3.0, 1e-5, 3, bounds)[1]
    away = contribution(kind, z[0], numbers[0]) - contribution(kind, z[1], numbers[1])
    assert np.linalg.norm(away) <= ratio


@pytest.mark.parametrize(
    ("kind", "reached"), [("classes", 1.0), ("hazards", 1.0), ("labels", 0.85), ("regression", 0.9)]
)
def test_a_search_comes_near_the_bound(kind: str, reached: float) -> None:
    """The worst pairs of each kind, over angles: the bound is reached, or nearly (a constant 1 is in both records)."""
    ratio = scales_for(3.0, 1e-5, 2, bounds_of(*KINDS[kind]))[1]
    most = {"regression": [(0.25, 0, 0), (0.75, 0, 0)], "labels": [(1, 1, 1), (0, 0, 0)]}
    most |= {"hazards": [(1.0, 0, 0), (0.1, 1, 0)], "classes": [(0, 0, 0), (1, 0, 0)]}
    found = 0.0
    for angle in np.linspace(0, math.pi, 61):
        one, other = np.array([1.0, 0.0]), np.array([math.cos(angle), math.sin(angle)])
        for a, b in ((0, 1), (1, 0), (0, 0), (1, 1)):
            pair = np.array(most[kind], dtype=float)
            away = contribution(kind, one, pair[a]) - contribution(kind, other, pair[b])
            found = max(found, float(np.linalg.norm(away)))
    assert found <= ratio
    if kind != "hazards":
        assert found / ratio > reached - 0.02


def test_the_noise_is_what_is_stated() -> None:
    bounds = bounds_of(Regression(), 0)
    z, targets = np.zeros((20, 4)), np.c_[np.ones(20), np.zeros(20)]
    (on, off), _, _ = scales_for(3.0, 1e-5, 4, bounds)
    draws = [noisy_sums(z, targets, bounds, 3.0, 1e-5, noise.seeded(seed)) for seed in range(400)]
    cells = np.stack([draw.cells for draw in draws])
    assert cells.mean(0)[0, 0] == pytest.approx(20.0, abs=1.0)
    assert cells.std(0).mean() == pytest.approx(float(on) / STEPS**2, rel=0.05)
    seconds = np.stack([draw.second for draw in draws])
    assert seconds[:, 0, 1].std() == pytest.approx(float(off) / STEPS**2, rel=0.15)
    assert (seconds == seconds.transpose(0, 2, 1)).all()
    assert np.std([draw.squares for draw in draws]) == pytest.approx(float(on) / STEPS**2, rel=0.15)
    assert float(on) / STEPS**2 == pytest.approx(math.sqrt(12) / scales_for(3.0, 1e-5, 4, bounds)[1], rel=1e-6)


def test_the_audit_does_not_refute_the_claim_and_finds_noise_at_a_half() -> None:
    bounds = bounds_of(Classes(), 3)
    (on, off), ratio, spent = scales_for(3.0, 1e-5, 2, bounds)
    assert spent <= 3.0
    away = contribution("classes", np.array([1.0, 0.0]), np.zeros(3)) - contribution(
        "classes", np.array([0.0, 1.0]), np.ones(3)
    )
    size = float(np.linalg.norm(away))
    found = membership(
        "gaussian", np.rint(away * float(on)).astype(int), np.full(len(away), float(on)), 4000, noise.seeded(3)
    )
    assert found.auc == pytest.approx(gaussian_auc(size), abs=0.03)
    claim = sums_claim(3.0, 1e-5, 2, bounds, noise.system())
    direction, random = away / size, np.random.default_rng(0)

    def told(scale: float) -> Scored:
        """The best test's scores of a thousand releases with either record."""
        seen = [(inside * away + scale * random.normal(size=(1000, len(away)))) @ direction for inside in (0, 1)]
        return Scored(*((one - size / 2) * size for one in seen))

    assert audit(claim, [told(1.0)]).passed
    assert not audit(claim, [told(0.5)]).passed
    assert ratio >= size > 0.98 * ratio
    assert float(off) < float(on)


def made(**changes: object) -> SumDigest:
    z = np.random.default_rng(0).normal(size=(50, 3)) / 5
    z /= np.maximum(1.0, np.linalg.norm(z, axis=1, keepdims=True))
    usual = {"kind": Regression(), "classes": 0, "range": (0.0, 100.0), "noise": (3.0, 1e-5)} | changes
    return make_sums(
        usual["kind"], usual["classes"], z, torch.rand(50, 1) * 100, usual["range"], usual["noise"], noise.seeded(1)
    )  # type: ignore[arg-type]


def test_the_wire_keeps_everything_and_refuses_the_rest() -> None:
    digest = made()
    sealed = seal_sums(digest, "mine", "print")
    again = open_sums(sealed, {"task": "mine", "encoder": "print", "kind": "regression"})
    assert (again.sums.cells == digest.sums.cells).all()
    assert (again.sums.second == digest.sums.second).all()
    assert (again.records, again.range, again.claim.epsilon_total) == (50, (0.0, 100.0), digest.claim.epsilon_total)
    assert again.noise == pytest.approx(digest.noise)
    with pytest.raises(HoldfastError, match="made for task"):
        open_sums(sealed, {"task": "other"})
    with pytest.raises(HoldfastError, match="damaged"):
        open_sums({**sealed, "cells": sealed["cells"] + 1})
    with pytest.raises(HoldfastError, match="shapes"):
        open_sums({**sealed, "cells": sealed["cells"].float()})
    manifest = json.loads(bytes_of(sealed["manifest"]))
    wrong: dict[str, Any]
    for wrong in (
        {"records": 0}, {"records": "50"}, {"features": 10**9}, {"range": [1.0, 0.0]}, {"range": 3}, {"claim": {}},
        {"kind": "survival"}, {"kind": "nothing"}, {"schema": "holdfast-sums/9"}, {"classes": -1},
    ):  # fmt: skip
        text = json.dumps({**manifest, **wrong}).encode()
        with pytest.raises(HoldfastError):
            open_sums({**sealed, "manifest": torch.frombuffer(bytearray(text), dtype=torch.uint8)})


def test_absurd_sums_are_refused() -> None:
    exact = made(noise=None)
    for cells, second, squares in ((5.0, 1.0, 1.0), (1.0, 100.0, 1.0), (1.0, 1.0, 1000.0), (math.nan, 1.0, 1.0)):
        sums = type(exact.sums)(exact.sums.cells * cells, exact.sums.second * second, exact.sums.squares * squares)
        with pytest.raises(HoldfastError, match="no honest client"):
            open_sums(seal_sums(SumDigest(**{**vars(exact), "sums": sums}), "mine", "print"))
    assert open_sums(seal_sums(made(noise=None, range=UNIT), "mine", "print")).claim.guarantee.startswith(
        "no guarantee"
    )
