"""Joint sums in a secure sum: members' vectors add up to those of all records, and shares make up the noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import holdfast
from holdfast import Experiment, Samples, Task
from holdfast.data.kinds import Regression
from holdfast.privacy import total_sums
from holdfast.privacy.noise import system
from holdfast.privacy.sum_noise import Bounds, exact_sums, sums_claim
from holdfast.privacy.total_moments import layout_of, sent_steps, with_share
from holdfast.secure_sum.packing import length_of


@pytest.mark.parametrize("bounds", [Bounds(2, 2.0, True), Bounds(4, 4.0, False)])
def test_members_numbers_add_up_to_those_of_all_records(bounds: Bounds) -> None:
    chance = np.random.default_rng(0)
    z = chance.normal(size=(60, 5)) / 4
    z /= np.maximum(1.0, np.sqrt((z**2).sum(1)))[:, None]
    targets = chance.integers(0, 2, (60, bounds.targets)).astype(float)
    vectors = [total_sums.exact(z[rows], targets[rows], bounds) for rows in (slice(0, 20), slice(20, 60))]
    parts = total_sums.parts(3.0, 1e-5, 5, bounds)
    assert len(vectors[0]) == length_of(layout_of(parts, 60, 2, 2))
    assert np.array_equal(vectors[0] + vectors[1], total_sums.exact(z, targets, bounds))
    found, exact = total_sums.sums_of(vectors[0] + vectors[1], 5, bounds), exact_sums(z, targets, bounds)
    assert found.cells == pytest.approx(exact.cells, abs=60 / 1024)
    assert found.second == pytest.approx(exact.second, abs=60 / 1024)
    assert found.squares == pytest.approx(exact.squares)


def test_the_noise_of_all_shares_is_what_the_promise_counts_on() -> None:
    bounds, k, members, t = Bounds(2, 2.0, True), 20, 9, 1
    parts = total_sums.parts(1.0, 1e-5, k, bounds)
    nothing = np.zeros(sum(part.count for part in parts), dtype=np.int64)
    total = sum(with_share(nothing, parts, members - t, system()) for _ in range(members))
    assert isinstance(total, np.ndarray)
    cells = total_sums.sums_of(total * sent_steps(parts, members - t), k, bounds).cells
    assert cells.std() == pytest.approx(total_sums.deviation(1.0, 1e-5, k, bounds, members, members - t), rel=0.4)
    claim = total_sums.total_claim(1.0, 1e-5, k, bounds, t, system())
    assert claim.mode == "secure-sum"
    assert claim.epsilon_total == pytest.approx(sums_claim(1.0, 1e-5, k, bounds, system()).epsilon_total, rel=1e-7)
    assert claim.epsilon_total <= 1.0
    assert (claim.epsilon_nominal, claim.delta) == (1.0, 1e-5)


def test_a_regression_from_the_total() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(900, 1, 28, 28, generator=generator) * torch.rand(900, 1, 1, 1, generator=generator)
    y = 10 * x.flatten(1).mean(1)
    task = Task("brightness", Samples((x[:800],), y[:800]), Samples((x[800:],), y[800:]), kind=Regression())
    usual: dict[str, Any] = {"rounds": 1, "clients": 4, "partition": "iid", "workers": 0, "algorithm": "oneshot",
                             "encoder": "scattering:8"}  # fmt: skip
    moments = {"name": "feddig", "mode": "moments", "epsilon": 2000.0, "target_range": [0, 10]}
    [record] = holdfast.run(Experiment(task=task, absence=moments, protect="secure-sum", **usual)).records
    assert not record.notes
    assert record.metrics["r2"] > 0.9  # exact sums: 0.988; the noise of so large an epsilon is little
