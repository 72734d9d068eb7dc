"""Counts with noise: what they promise, and that the noise is what the claim says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import HoldfastError
from holdfast.data.class_metrics import F1, BalancedAccuracy, Brier
from holdfast.data.metrics import Accuracy
from holdfast.privacy.accounting import compose
from holdfast.privacy.calibration import gaussian_epsilon
from holdfast.privacy.channels import CARRIER, CHANNELS, Rule, read_rules, usual_rule
from holdfast.privacy.counts import FINE, noised_counts
from holdfast.privacy.noise import seeded, system


def test_noise_has_the_scale_of_the_claim_and_the_claim_holds():
    source = seeded(1)
    draws = np.array([noised_counts([40.0, 50.0], 1.0, 0.5, 1e-5, source)[0] for _ in range(400)])
    _, claim = noised_counts([40.0, 50.0], 1.0, 0.5, 1e-5, source)
    sigma = claim.scale / FINE
    assert np.abs(draws.mean(0) - [40, 50]).max() < 4 * sigma / math.sqrt(400)
    assert np.abs(draws.std(0) / sigma - 1).max() < 0.15
    assert claim.epsilon_total <= 0.5
    # The same noise by hand: the continuous Gaussian with sensitivity 1 and this sigma costs hardly less.
    assert gaussian_epsilon(1.0 / sigma, 1e-5) == pytest.approx(claim.epsilon_total, rel=0.02)


def test_sums_that_are_no_counts_pay_for_their_rounding():
    whole = noised_counts([1.0, 2.0], 1.0, 1.0, 1e-5, seeded(0))[1]
    rounded = noised_counts([1.001, 2.0], 1.0, 1.0, 1e-5, seeded(0))[1]
    assert whole.sensitivity == FINE
    assert rounded.sensitivity == math.ceil(FINE + math.sqrt(2))  # each number can be half a step off, both ways


def test_answers_add_up_in_the_ledger():
    claims = [noised_counts([3.0], 1.0, 0.1, 1e-5, system())[1]] * 10
    total = compose(claims, 1e-5)
    assert 0.1 < total < 1.0  # ten answers cost less than ten times one, and more than one


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 1.0)])
def test_what_promises_nothing_is_refused(epsilon, delta):
    with pytest.raises(HoldfastError):
        noised_counts([1.0], 1.0, epsilon, delta, seeded(0))


def test_with_a_bound_nothing_is_open_that_is_not_named():
    for name, channel in CHANNELS.items():
        assert usual_rule(name, limited=False).state == "open"
        assert usual_rule(name, limited=True).state == channel.bounded != "open"
    assert len(CARRIER) == sum(len(channel.parts) for channel in CHANNELS.values())  # no part has two carriers


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"metrix": "off"}, "there is no channel 'metrix'; did you mean 'metrics'"),
        ({"loss": "noised:1"}, "channel loss must be 'off' or 'open'"),
        ({"metrics": "noised"}, "'noised:EPSILON'"),
        ({"metrics": "noised:-1"}, "epsilon must be positive"),
        ({"metrics": True}, "channel metrics must be"),
        ({"samples": "off"}, "samples cannot be off"),
    ],
)
def test_wrong_rules_are_one_sentence(table, says):
    with pytest.raises(HoldfastError, match=says) as raised:
        read_rules(table, "policy p")
    assert "\n" not in str(raised.value)


def test_rules_are_read():
    assert read_rules({"loss": "open", "reports": "noised:0.2"}, "p") == {
        "loss": Rule("open"),
        "reports": Rule("noised", 0.2),
    }


@pytest.mark.parametrize("name", ["accuracy", "balanced-accuracy", "f1", "brier"])
def test_no_replaced_record_moves_the_sums_further_than_a_metric_says(name):
    generator = torch.Generator().manual_seed(0)
    metric = {"accuracy": Accuracy(), "balanced-accuracy": BalancedAccuracy(3), "f1": F1(3), "brier": Brier()}[name]
    furthest = 0.0
    for _ in range(300):
        outputs, labels = 8 * torch.randn(6, 3, generator=generator), torch.randint(3, (6,), generator=generator)
        other, others = outputs.clone(), labels.clone()
        other[0], others[0] = 8 * torch.randn(3, generator=generator), torch.randint(3, (1,), generator=generator)[0]
        a, b = (np.array(metric.sums(*pair)) for pair in ((outputs, labels), (other, others)))
        kept = len(a) - metric.counted
        assert (a[kept:] == b[kept:]).all()
        furthest = max(furthest, float(np.linalg.norm(a[:kept] - b[:kept])))
    assert 0.7 * metric.sensitivity < furthest <= metric.sensitivity + 1e-6  # reached, or nearly


@given(st.lists(st.floats(-50, 50), min_size=10, max_size=10), st.integers(1, 40))
def test_mended_sums_are_possible(noise, count):
    for metric in (Accuracy(), BalancedAccuracy(3), F1(3), Brier()):
        sums = [*noise[: metric.width - metric.counted], *[float(count)] * metric.counted]
        assert metric.possible(metric.mended(sums))
