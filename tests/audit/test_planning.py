"""`privacy plan` warns where a client has too few records for the noise."""

from __future__ import annotations

import json
import math

import pytest
from release_helpers import experiment
from typer.testing import CliRunner

from holdfast.absence import FedDig
from holdfast.audit.budget import split_at
from holdfast.audit.planning import noise_in_mean, settings_for, too_small
from holdfast.cli import app
from holdfast.core.errors import HoldfastError
from holdfast.digests.release import claim_of
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment


def test_noise_in_a_mean_by_hand() -> None:
    claim = claim_of(FedDig(mode="moments", epsilon=3.0), (35,), 2)
    sigma = claim.scale / 1024  # the grid has 1024 steps to a length of 1
    assert noise_in_mean(claim, 35, 78) == pytest.approx(math.sqrt(35) * sigma / 78)


@pytest.mark.parametrize(("epsilon", "few"), [(3.0, 4), (1000.0, 0)])
def test_small_hospitals_are_named(epsilon: float, few: int) -> None:
    plan = make_plan(Experiment(task="heart", absence="feddig", workers=0))  # type: ignore[arg-type]
    said = too_small(plan, settings_for(epsilon, 1e-5, 1, plan.method.bench.about.feature_shape, 2))
    assert said.startswith(f"{few} of 4 clients have few records") == bool(few)
    assert ("Switzerland (78 records)" in said) == bool(few)


def test_the_warning_is_printed_before_anything_is_spent() -> None:
    words = ["privacy", "plan", "--epsilon", "3", "--set", "task=heart", "--set", "workers=0", "--no-try", "--json"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    assert "4 of 4 clients have few records for this epsilon: at Switzerland" in json.loads(said.output)["warning"]


def test_a_budget_is_divided_so_that_both_together_keep_to_it() -> None:
    wanted = experiment(protect={"name": "dp-sgd"}, rounds=1, batch_size=200, clients=2, scenario="none")
    split = split_at(wanted, 0.8, 8.0, 1e-4)
    assert 0.9 * 8.0 < split.total <= 8.0
    assert split.updates < split.digest < 8.0
    with pytest.raises(HoldfastError, match="say both"):
        split_at(experiment(), 0.8, 8.0, 1e-4)
