"""Noise in shares: the sum of discrete Gaussians, convolved, against the discrete Gaussian of the derivation."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from holdfast.privacy.calibration import gaussian_delta
from holdfast.privacy.moment_noise import D1, D2, Centres
from holdfast.privacy.noise import gaussian, seeded, system
from holdfast.privacy.noise_shares import COARSE, coarse_step, share_cost, share_scale
from holdfast.privacy.total_moments import (
    FIRST,
    GRID,
    STEPS,
    Around,
    around,
    basis_of,
    changed,
    exact_stage,
    first_of,
    layout_of,
    parts,
    scales_for,
    second_of,
    sent_steps,
    tail_shape,
    total_claim,
    with_share,
)


def discrete(scale: float, reach: int) -> np.ndarray:
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * scale**2))
    return weights / weights.sum()


@pytest.mark.parametrize(("scale", "members"), [(0.6, 3), (0.8, 6), (1.0, 4)])
def test_the_sum_of_shares_is_as_near_to_one_discrete_gaussian_as_derived(scale, members):
    """Small scales, where the difference can be seen: it is there, and within half of the bound on both sides."""
    reach = 12
    total = discrete(scale, reach)
    for _ in range(members - 1):
        total = np.convolve(total, discrete(scale, reach))
    one = discrete(scale * math.sqrt(members), len(total) // 2)
    near = slice(len(one) // 2 - 6, len(one) // 2 + 7)
    off = np.abs(np.log(total[near] / one[near])).max()
    assert 1e-9 < off <= share_cost(scale, members, 1) / 2


def test_the_total_of_honest_shares_keeps_the_promise_at_its_epsilon():
    """Hockey-stick divergence of the convolved shares themselves, one shift of the sensitivity apart."""
    shift, honest = 20, 4
    share = share_scale(Fraction(75), honest)
    assert share * share * honest >= 75**2
    total = discrete(float(share), 400)
    for _ in range(honest - 1):
        total = np.convolve(total, discrete(float(share), 400))
    epsilon = 1.0
    stick = np.maximum(total[shift:] - math.exp(epsilon) * total[:-shift], 0).sum()
    assert stick <= gaussian_delta(epsilon, shift / 75) * 1.01
    fewer = discrete(float(share) * math.sqrt(honest - 1), 1600)  # one share less breaks it
    assert np.maximum(fewer[shift:] - math.exp(epsilon) * fewer[:-shift], 0).sum() > gaussian_delta(epsilon, shift / 75)


@pytest.mark.parametrize(("scale", "step", "members"), [(2.0, 3, 3), (3.0, 4, 5), (5.0, 4, 4)])
def test_rounded_shares_are_a_rounded_discrete_gaussian_as_derived(scale, step, members):
    """Each member rounds its number with its share; convolved, against one discrete Gaussian less uniform numbers."""
    reach = 10 * math.ceil(scale)
    fine, box = discrete(scale, reach), np.ones(step) / step
    exact = 1  # any member's number: here all of the total is one's

    def rounded(weights, low):
        """The distribution of (x + step // 2) // step, x from `low` on; its first multiple too."""
        places = (np.arange(low, low + len(weights)) + step // 2) // step
        return np.bincount(places - places[0], weights), int(places[0])

    total, start = rounded(fine, exact - reach)
    for _ in range(members - 1):
        other, low = rounded(fine, -reach)
        total, start = np.convolve(total, other), start + low
    wide = 10 * math.ceil(scale * math.sqrt(members))
    one, low = discrete(scale * math.sqrt(members), wide), exact - wide
    ends = step - 1 - step // 2  # the numbers that round to 0 are -(step // 2) .. step - 1 - step // 2
    for _ in range(members - 1):
        one, low = np.convolve(one, box), low - ends
    wanted, first = rounded(one, low)
    near = range(-6, 7)
    off = max(abs(math.log(total[m - start] / wanted[m - first])) for m in near)
    assert off <= share_cost(scale / step, members, 1) / 2 + 1e-9
    if scale < step:
        assert off > 1e-9  # so coarse a step can be seen


def test_what_is_sent_is_as_coarse_as_its_proof_allows():
    step = coarse_step(Fraction(30000), 18)
    assert step == int(share_scale(Fraction(30000), 18) / COARSE) == 4040


def test_shares_add_up_to_the_noise_that_the_total_needs():
    drawn = sum(gaussian(4000, share_scale(Fraction(1000), 9), seeded(member)) for member in range(9))
    assert np.std(drawn) == pytest.approx(1000, rel=0.05)


@pytest.mark.parametrize("epsilon", [3.0, 1.0])
def test_both_stages_spend_what_was_asked_for(epsilon):
    first, second, ratio, spent = scales_for(epsilon, 1e-5, 128)
    assert 0.98 * epsilon < spent <= epsilon
    assert math.hypot(D1 / first, D2 / second) == pytest.approx(ratio)
    assert (D1 / first) ** 2 == pytest.approx(FIRST * ratio**2)
    assert min(scale for _, scale in changed(first, second, 128)) / math.sqrt(1000) >= 4
    assert sum(count for count, _ in changed(first, second, 128)) == 2 * 129 + 2 * 89 + 88 * 89 // 2
    assert total_claim(epsilon, 1e-5, 128, 1, system()).epsilon_total == spent


def test_no_record_moves_a_stage_further_than_its_sensitivity():
    """Searched through the real code: |x - x'| in units of each number's noise, times s."""
    rng = np.random.default_rng(0)
    worst = {1: 0.0, 2: 0.0}
    for trial in range(300):
        z = rng.normal(size=(2, 3))
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        if trial % 3 == 0:
            z[1] = -z[0]
        labels = rng.integers(0, 2, size=2)
        basis = np.linalg.qr(rng.normal(size=(3, 3)))[0] * (1.0 if trial % 2 else 3.0)  # whatever one is told
        centres = Around(rng.normal(size=(2, 3)) * 0.2, np.full(2, 0.5), basis)
        for stage, told, bound in ((1, None, D1), (2, centres, D2)):
            one, other = (exact_stage(z[i : i + 1], labels[i : i + 1], 2, told) for i in (0, 1))
            scales = np.concatenate([np.full(p.count, float(p.scale)) for p in parts(stage, 1.0, 1.0, 2, 3)])
            moved = float(np.linalg.norm((one - other) / scales))
            worst[stage] = max(worst[stage], moved)
            assert moved <= bound
    assert worst[1] > 0.95 * D1
    assert worst[2] > 0.9 * D2


def test_the_total_of_members_is_that_of_their_records_together():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(60, 4))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    labels = rng.integers(0, 3, size=60)
    halves = exact_stage(z[:25], labels[:25], 3, None) + exact_stage(z[25:], labels[25:], 3, None)
    assert halves.tolist() == exact_stage(z, labels, 3, None).tolist()
    first = first_of(halves, 3)
    assert (first.counts / 1024).tolist() == np.bincount(labels, minlength=3).tolist()
    assert first.sums / 1024 == pytest.approx(np.stack([z[labels == c].sum(0) for c in range(3)]), abs=0.5)
    stage = parts(2, 1.0, 1.0, 3, 4)
    noisy = with_share(np.zeros(sum(p.count for p in stage), np.int64), stage, 2, seeded(0)) * sent_steps(stage, 2)
    assert second_of(noisy, 3, 4).shared.shape == (10,)
    for (count, bits), part in zip(layout_of(stage, 60, 3, 2), stage, strict=True):
        assert count == part.count
        assert 2 ** (bits - 1) * coarse_step(part.scale, 2) > 60 * part.most + 12 * math.sqrt(1.5) * float(part.scale)
    assert GRID.steps == STEPS


def test_the_directions_of_the_second_stage_are_orthonormal_and_hold_the_means_that_differ():
    rng = np.random.default_rng(3)
    means = np.zeros((4, 128))
    means[:, 120:] = rng.normal(size=(4, 8)) * 0.1
    found, tail = around(Centres(means, np.full(4, 0.7)), np.full(4, 50.0))
    assert tail.shape == tail_shape(4, 128) == (3, 43)
    assert found.basis == pytest.approx(basis_of(tail, 128))
    assert found.basis.T @ found.basis == pytest.approx(np.eye(88))
    away = means - means.mean(0)
    assert away @ found.basis @ found.basis.T == pytest.approx(away)
    assert tail_shape(10, 64) == (0, 0)
    assert basis_of(np.zeros((0, 0)), 64) == pytest.approx(np.eye(64))
