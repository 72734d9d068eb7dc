"""Plans for a privacy budget: each setting meets its target, as printed and as often as planned."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest
from release_helpers import experiment
from typer.testing import CliRunner

from holdfast.absence import ABSENCES
from holdfast.audit.planning import settings_for
from holdfast.cli.privacy import privacy_app
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.digests.release import claim_of
from holdfast.privacy.accounting import compose
from holdfast.privacy.gate import LEDGER
from holdfast.privacy.ledger import Policy, spend


def test_every_setting_of_a_plan_meets_its_target() -> None:
    for releases in (1, 4):
        for setting in settings_for(3.0, 1e-5, releases, (16,), 4):
            assert setting.epsilon_total <= 3.0 + 1e-9
            assert setting.epsilon_total > 2.9
            assert math.isfinite(setting.claim.epsilon_total)
    with pytest.raises(HoldfastError, match="epsilon must be positive"):
        settings_for(0.0, 1e-5, 1, (16,), 4)


@pytest.mark.parametrize(("delta", "releases"), [(1e-5, 4), (1e-5, 3), (1e-6, 1)])
def test_what_a_plan_prints_meets_its_target_as_it_is_printed(delta: float, releases: int) -> None:
    """The printed options, read again as an experiment has them, composed over all releases."""
    for setting in settings_for(3.0, delta, releases, (16,), 4):
        printed = tomllib.loads(f"absence = {setting.words}")["absence"]
        options = choose(ABSENCES, Choice.parse(printed, "absence"), "absence")
        assert compose([claim_of(options, (16,), 4)] * releases, delta) <= 3.0 + 1e-8
        assert options.delta <= delta / releases


@pytest.mark.parametrize(("releases", "choices"), [(4, "epsilon = 1.492, delta = 2.5e-06"), (1, "epsilon = 3")])
def test_a_plans_setting_can_be_released_as_often_as_planned(releases: int, choices: str, tmp_path: Path) -> None:
    [moments, *_] = settings_for(3.0, 1e-5, releases, (16,), 4)
    assert moments.choices == choices
    claim, policy = claim_of(moments.options, (16,), 4), Policy(3.0, 1e-5, ("moments",))
    for _ in range(releases):
        spend(policy, tmp_path / LEDGER, claim, "digest")
    with pytest.raises(HoldfastError, match="above max_epsilon = 3"):
        spend(policy, tmp_path / LEDGER, claim, "digest")


def test_a_plan_shows_what_privacy_costs(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_text(json.dumps({"schema": 1, **experiment(rounds=1).as_json()}))
    done = CliRunner().invoke(privacy_app, ["plan", "--file", str(path), "--curve", "0.2,10", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert len(said["settings"]) == 7
    assert all(setting["epsilon_total"] <= 3.0 + 1e-9 for setting in said["settings"])
    accuracies = [setting["accuracy"] or 0.0 for setting in said["settings"]]
    assert accuracies == sorted(accuracies, reverse=True)
    [moments] = [setting for setting in said["settings"] if setting["mode"] == "moments"]
    assert moments["accuracy"] > 0.8
    drowned, clear, mixed = said["curve"]
    assert (drowned["accuracy"] or 0.0) < clear["accuracy"]
    assert mixed["epsilon_total"] == "infinite"
    shown = CliRunner().invoke(privacy_app, ["plan", "--file", str(path), "--no-try"])
    assert "Settings that meet epsilon 3 at delta 1e-05 over 1 release a client" in shown.stdout
    wrong = CliRunner().invoke(privacy_app, ["plan", "--curve", "three"])
    assert "expected numbers such as" in str(wrong.exception)
