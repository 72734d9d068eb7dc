"""What protected updates cost: one step, many, with digests, and the noise that keeps the promise."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from release_helpers import experiment

from holdfast.absence import FedDig
from holdfast.core.errors import HoldfastError
from holdfast.learning.settings import Learning
from holdfast.privacy.accounting import compose, steps_epsilon
from holdfast.privacy.calibration import gaussian_epsilon
from holdfast.privacy.dp_sgd import DpSgd, claim_of, noise_multiplier, plan_steps
from holdfast.privacy.noise import SEEDED, seeded, system
from holdfast.runs.build import make_plan

DELTA = 1e-5


# What it costs --------------------------------------------------------------------------------------------------


def hockey_stick(a: float, q: float, s: float, g: float, other: float) -> float:
    """sup over S of P(S) - a Q(S), for one step whose record's gradient g is replaced by another."""
    x = np.linspace(-1 - 12 * s, 1 + 12 * s, 20_001)

    def density(centre: float) -> np.ndarray:
        return np.exp(-(((x - centre) / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi))

    p, p_other = ((1 - q) * density(0.0) + q * density(centre) for centre in (g, other))
    return float(np.maximum(0.0, p - a * p_other).sum() * (x[1] - x[0]))


def test_no_replacement_is_worse_than_from_plus_to_minus_the_clip() -> None:
    """The proof in accounting.py, searched numerically: also replacements of, or by, a smaller gradient."""
    for a in (0.5, 0.97, 1.0, 1.05, 1.5, 3.0):
        worst = hockey_stick(a, 0.2, 0.8, 1.0, -1.0)
        for g in np.linspace(-1, 1, 9):
            for other in np.linspace(-1, 1, 9):
                assert hockey_stick(a, 0.2, 0.8, float(g), float(other)) <= worst + 1e-7


def test_one_step_costs_what_its_definition_says() -> None:
    for multiplier, rate in ((0.8, 0.2), (1.5, 0.05), (2.0, 1.0)):
        epsilon = steps_epsilon(multiplier, rate, 1, 1e-3)
        assert hockey_stick(math.exp(epsilon), rate, multiplier, 1.0, -1.0) <= 1e-3 * (1 + 1e-6)  # it holds
        assert hockey_stick(math.exp(epsilon - 5e-3), rate, multiplier, 1.0, -1.0) > 1e-3  # and is no larger than it is


def test_steps_on_all_records_are_one_gaussian_of_twice_the_clip() -> None:
    for steps in (1, 9):
        expected = gaussian_epsilon(2 * math.sqrt(steps) / 5.0, DELTA)
        assert steps_epsilon(5.0, 1.0, steps, DELTA) == pytest.approx(expected, abs=2e-3)


def test_composition_agrees_with_dp_accounting_and_costs_more_than_adding_a_record_does() -> None:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld
    from opacus.accountants import PRVAccountant

    one = pld.from_gaussian_mechanism(
        1.5, sampling_prob=0.1, neighboring_relation=NeighboringRelation.REPLACE_ONE, use_connect_dots=False,
        value_discretization_interval=2e-4,
    )  # fmt: skip
    theirs = one.self_compose(100).get_epsilon_for_delta(DELTA)  # each step rounded up, by 1e-4 on average
    assert theirs - 0.015 < steps_epsilon(1.5, 0.1, 100, DELTA) <= theirs
    adding = PRVAccountant()
    adding.history = [(1.5, 0.1, 100)]
    assert adding.get_epsilon(DELTA) < steps_epsilon(1.5, 0.1, 100, DELTA) < 3 * adding.get_epsilon(DELTA)


@pytest.mark.parametrize(("epsilon", "rate", "steps"), [(1.0, 0.3, 60), (3.0, 0.06, 400), (10.0, 1.0, 5)])
def test_the_noise_is_the_least_that_keeps_the_promise(epsilon: float, rate: float, steps: int) -> None:
    multiplier = noise_multiplier(epsilon, DELTA, rate, steps)
    assert steps_epsilon(multiplier, rate, steps, DELTA) <= epsilon
    assert steps_epsilon(0.98 * multiplier, rate, steps, DELTA) > epsilon


def test_rounds_compose_with_each_other_and_with_digests() -> None:
    from holdfast.digests.release import claim_of as digest_claim

    rate, steps = plan_steps(200, Learning(batch_size=50, epochs=2))
    assert (rate, steps) == (0.25, 8)
    claim = claim_of(DpSgd(3.0), noise_multiplier(3.0, DELTA, rate, 10 * steps), rate, steps, system())
    assert compose([claim] * 10, DELTA) == pytest.approx(3.0, rel=6e-3)
    assert compose([claim] * 10, DELTA) <= 3.0
    assert claim.epsilon_total == compose([claim], DELTA) < 1.5
    digest = digest_claim(FedDig(mode="moments", epsilon=3.0), (9,), 4)
    total = compose([digest, *[claim] * 10], DELTA)
    assert 3.5 < total < 6.0
    assert compose([claim], 0.0) == math.inf
    other = dataclasses.replace(claim, rate=0.5, multiplier=3.0)  # another experiment on the same records
    assert compose([claim, other], DELTA) < claim.epsilon_total + compose([other], DELTA)


def test_noise_from_a_seed_promises_nothing() -> None:
    claim = claim_of(DpSgd(), 1.0, 0.1, 5, seeded(0))
    assert claim.guarantee == SEEDED
    assert compose([claim], DELTA) == math.inf


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("dp-sgd:epsilon=0", "epsilon must be positive and at most 50"),
        ("dp-sgd:epsilon=1000", "at most 50"),
        ("dp-sgd:delta=0", "delta must lie between 0 and 1"),
        ("dp-sgd:clip=inf", "clip must be positive"),
        ("dp-sgd:clipp=1", "did you mean 'clip'"),
        ("dpsgd", "did you mean 'dp-sgd'"),
    ],
)
def test_bad_options_are_refused(options: str, sentence: str) -> None:
    with pytest.raises(HoldfastError) as error:
        make_plan(experiment(protect=options))
    assert sentence in str(error.value)
