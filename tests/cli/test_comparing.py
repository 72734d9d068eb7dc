"""A comparison puts methods side by side, not networks, unless it is asked to."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.cli.comparing import Conditions, combinations, one_network


def models(methods: str, *changes: str) -> tuple[list[str], str]:
    experiments, told = one_network(combinations(methods, Conditions(), None, list(changes)))
    return [str(experiment.model) for experiment in experiments], told


def test_methods_share_a_network() -> None:
    found, told = models("fedavg,feddig")
    wide = "features:512"
    assert found == [wide, wide]
    assert (
        told == f"model = '{wide}' for all, since fedavg+feddig needs it; --set model=auto compares each with its own."
    )


def test_where_each_weight_is_noised_the_network_is_narrow() -> None:
    assert models("fedavg,feddig", "protect=dp-sgd")[0] == ["features", "features"]


def test_what_is_named_stays() -> None:
    assert models("fedavg,feddig", "model=full") == (["full", "full"], "")
    assert models("fedavg,fedprox") == (["auto", "auto"], "")
    assert models("feddig") == (["auto"], "")


def test_two_networks_side_by_side_are_asked_for_and_said(tmp_path: Path) -> None:
    words = ["compare", "--method", "fedavg,feddig", "--out", str(tmp_path / "out")]
    words += ["--set", "task=heart", "--set", "rounds=1", "--set", "workers=0", "--set", "model=auto"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    told = " ".join(said.output.split())
    assert "the methods train different networks, so the table compares these as well" in told
    assert "(fedavg: mlp, fedavg+feddig: features)" in told
