"""A comparison puts methods side by side, not networks, unless it is asked to."""

from __future__ import annotations

from holdfast.cli.comparing import Conditions, combinations, one_network


def models(methods: str, *changes: str) -> tuple[list[str], str]:
    experiments, told = one_network(combinations(methods, Conditions(), None, list(changes)))
    return [str(experiment.model) for experiment in experiments], told


def test_methods_share_a_network() -> None:
    found, told = models("fedavg,feddig")
    assert found == ["features", "features"]
    assert (
        told == "model = 'features' for all, since fedavg+feddig needs it; --set model=auto compares each with its own."
    )


def test_what_is_named_stays() -> None:
    assert models("fedavg,feddig", "model=full") == (["full", "full"], "")
    assert models("fedavg,fedprox") == (["auto", "auto"], "")
    assert models("feddig") == (["auto"], "")
