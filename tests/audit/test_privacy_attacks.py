"""Attacks that try to break releases: what they find where noise is right, wrong, or missing."""

from __future__ import annotations

import math

import pytest
import torch
from release_helpers import UnitMeans, many_corners

from holdfast.absence import FedDig
from holdfast.audit.canary import tell_apart, with_limits, worst_pair
from holdfast.audit.reconstruct import attacks_on, best, class_means, leftovers, psnr, ssim
from holdfast.audit.statistics import Membership
from holdfast.digests.release import claim_of
from holdfast.play import one_thread
from holdfast.privacy.moment_noise import scales_for
from holdfast.privacy.noise import seeded


@pytest.mark.parametrize("epsilon", [10.0, 3.0, 1.0])
def test_the_worst_pair_is_told_apart_as_well_as_the_claim_says(epsilon: float) -> None:
    options = FedDig(mode="moments", epsilon=epsilon)
    claim = claim_of(options, (64,), 10)
    found = tell_apart(options, claim, worst_pair("moments", 64), 10, 2000, seeded(0), "worst")
    ratio = scales_for(epsilon, 1e-5, 64)[1]
    assert found.predicted == pytest.approx(0.5 * math.erfc(-ratio / 2), abs=2e-3)
    low, high = found.auc_limits
    assert low <= found.predicted <= high


def test_the_worst_pair_changes_a_digest_by_its_sensitivity() -> None:
    from holdfast.audit.statistics import moment_ratio

    scales, ratio, _ = scales_for(3.0, 1e-5, 8)
    assert moment_ratio(*worst_pair("moments", 8), 4, scales) == pytest.approx(ratio, abs=2e-3)
    assert moment_ratio(*worst_pair("moments", 8, classes=1), 1, scales) < ratio


def test_laplace_noise_is_told_apart_less_well_than_its_epsilon_allows() -> None:
    options = FedDig(mode="dp-label-public", epsilon=1.0, delta=0.0)
    found = tell_apart(options, claim_of(options, (1,), 2), worst_pair("dp", 1), 2, 4000, seeded(0), "worst")
    # One coordinate, e^-|x|: AUC = 1 - (1/2 + epsilon/4) e^-epsilon for the full change, by integration.
    assert found.auc == pytest.approx(1 - 0.75 * math.exp(-1), abs=0.02)
    assert found.predicted is None


def test_the_papers_digest_gives_itself_away() -> None:
    for options in (FedDig(), FedDig(epsilon=0.005)):
        found = tell_apart(options, claim_of(options, (64,), 10), worst_pair("paper", 64), 10, 500, seeded(0), "worst")
        assert found.auc == 1.0
        assert found.tpr_01 == 1.0


def test_confidence_limits_hold_the_truth() -> None:
    sure = with_limits(Membership(1.0, 1.0, 1.0), 100, None, "")
    assert sure.tpr_1_limits == (pytest.approx(0.005 ** (1 / 100)), 1.0)
    assert sure.auc_limits[0] < 1.0
    half = with_limits(Membership(0.5, 0.0, 0.0), 400, 0.5, "")
    assert half.auc_limits == (pytest.approx(0.5 - 2.576 * 0.025), pytest.approx(0.5 + 2.576 * 0.025))
    assert not half.better_than_predicted
    assert with_limits(Membership(0.9, 0.0, 0.0), 400, 0.5, "").better_than_predicted


# Seeing records again -------------------------------------------------------------------------------------------


def test_likeness_by_hand() -> None:
    black, grey = torch.zeros(2, 1, 8, 8), torch.full((2, 1, 8, 8), 0.1)
    assert psnr(grey, black).tolist() == pytest.approx([20.0, 20.0])
    # Flat pictures: only the means count, c1 / (0.01 + c1) with c1 = 1e-4.
    assert ssim(grey, black).tolist() == pytest.approx([1e-4 / 0.0101] * 2)
    assert best(torch.arange(200.0)) == 198.5


def test_who_knows_all_partners_has_the_record_unless_there_is_noise() -> None:
    features = torch.nn.functional.normalize(torch.randn(40, 9, generator=torch.Generator().manual_seed(0)), dim=1)
    generator = torch.Generator().manual_seed(1)
    bare = FedDig()
    claim = claim_of(bare, (9,), 4)
    assert torch.allclose(leftovers(bare, claim, features, generator, True), features)
    mixed = leftovers(bare, claim, features, generator, False)
    assert torch.allclose(mixed.sum(0), features.sum(0), atol=1e-5)
    assert len(mixed.unique(dim=0)) == 10
    strict = FedDig(mode="moments", epsilon=1.0)
    left = leftovers(strict, claim_of(strict, (9,), 4), features, generator, True)
    assert float((left - features).std()) == pytest.approx(7.46, rel=0.1)  # 1/sqrt(1/11.8^2 + 1/9.63^2) at epsilon 1


def test_a_decoder_sees_what_is_not_hidden_and_nothing_of_what_is() -> None:
    task = many_corners()
    encoder = UnitMeans().fit_shape(task.shape)
    own, others = task.train.take(torch.arange(100)), task.train.take(torch.arange(100, 500))
    found = {}
    for name, options in {"bare": FedDig(spd=1), "moments": FedDig(mode="moments", epsilon=1.0)}.items():
        with one_thread():  # two threads in each other's way are many times slower
            seen = attacks_on(options, claim_of(options, (9,), 4), encoder, own, others, 4)
        found[name] = next(one for one in seen if "same kind" in one.attack and "all other" in one.attack)
    assert found["bare"].psnr > found["moments"].psnr + 1.0
    assert found["moments"].verdict == "sees no more than the class mean"
    assert found["bare"].pictures.shape == (100, 1, 12, 12)


def test_an_empty_class_has_the_mean_of_all_pictures() -> None:
    task = many_corners()
    few = task.train.take(torch.tensor([0, 4]))  # class 0 alone
    means = class_means(few, 4)
    assert torch.equal(means[0], means[3])
