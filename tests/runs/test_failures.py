"""A run that came to nothing ends with a plain sentence and an exit code that is not 0."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn
from typer.testing import CliRunner

import holdfast
from holdfast.cli import app
from holdfast.core.types import Absent, Federation, Message, Reply
from holdfast.engines.inline import Inline
from holdfast.runs.plan import Plan

TINY: dict[str, Any] = {"clients": 2, "rounds": 2, "partition": "iid", "workers": 0, "model": "linear", "lr": 0.05}


class Network(nn.Module):
    """A linear model that fails in training, as its class says."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.fail()
        return self.head(x)

    def fail(self) -> None: ...


class Raises(Network):
    def fail(self) -> None:
        raise RuntimeError("no such layer")


class Dies(Network):
    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


def raises() -> nn.Module:
    return Raises()


def dies() -> nn.Module:
    return Dies()


@pytest.fixture
def blobs(tmp_path: Path) -> str:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 600)
    x = (np.eye(3, 8)[labels] * 4 + random.normal(size=(600, 8))).astype("float32")
    np.savez(tmp_path / "b.npz", x_train=x[:300], y_train=labels[:300], x_test=x[300:], y_test=labels[300:])
    return str(tmp_path / "b.npz")


def command(tmp_path: Path, experiment: dict[str, Any], *more: str) -> Any:
    lines = [
        f"{key} = {str(value).lower() if isinstance(value, bool) else value!r}" for key, value in experiment.items()
    ]
    (tmp_path / "e.toml").write_text("\n".join(lines))
    return CliRunner().invoke(app, ["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "run"), *more])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "test_failures:raises"}, "nobody trained in round 1 and 1 later"),
        ({"model": "test_failures:dies", "workers": 1}, 'signal 11); layout = "plain" may help'),
        ({"max_norm": 1e-9}, "all updates were refused in round 1 and 1 later"),
        ({"model": "mlp", "lr": 1e30}, "a smaller lr may help"),
        ({"lr": 1e-12, "seed": 1}, "the final model is no better than guessing"),
    ],
)
def test_a_run_that_came_to_nothing_fails(changes: dict[str, Any], sentence: str, blobs: str, tmp_path: Path) -> None:
    experiment = {**TINY, "task": blobs, **changes}
    done = command(tmp_path, experiment)
    assert done.exit_code == 3, done.output
    assert "Failed: " in done.output
    assert sentence in done.output
    again = CliRunner().invoke(app, ["resume", str(tmp_path / "run")])
    assert again.exit_code == 3
    assert sentence in again.output
    assert CliRunner().invoke(app, ["resume", str(tmp_path / "run"), "--allow-failures"]).exit_code == 0


def test_in_a_comparison_a_collapse_is_a_result(blobs: str, tmp_path: Path) -> None:
    changes = [f"--set={key}={value}" for key, value in {**TINY, "model": "mlp", "lr": 1e30}.items()]
    arguments = ["compare", "--task", blobs, "--scenario", "none", "--out", str(tmp_path / "out"), *changes]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output


def test_who_is_away_by_the_scenario_is_no_failure(blobs: str) -> None:
    experiment = holdfast.Experiment(task=blobs, scenario="sequential", **{**TINY, "clients": 4, "rounds": 12})
    history = holdfast.run(experiment)
    assert len(history.records[-1].absent) == 4
    assert history.failures == []


def test_a_good_run_has_no_failures_and_a_broken_round_is_named(blobs: str) -> None:
    history = holdfast.run(holdfast.Experiment(task=blobs, **{**TINY, "rounds": 4}))
    assert history.failures == []
    silent = replace(history.records[1], absent={0: "away (x)", 1: "failed in job 'train' of round 2: OSError: gone"})
    [failure] = replace(history, records=[history.records[0], silent, *history.records[2:]]).failures
    assert failure.startswith("nobody trained in round 2: client 1 failed in job")


class WithoutLoss(Inline):
    """Clients that train and tell a loss that is not finite."""

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        found = super().ask(messages)
        return [replace(r, scalars={**r.scalars, "loss": math.inf}) if isinstance(r, Reply) else r for r in found]


def test_a_loss_that_is_finite_for_nobody_is_a_failure(blobs: str) -> None:
    def engine(plan: Plan, folder: Path | None) -> Federation:
        model = plan.model()
        return WithoutLoss({id: plan.client(id, model, folder) for id in range(plan.experiment.clients)})

    history = holdfast.run(holdfast.Experiment(task=blobs, **TINY), engine=engine)
    assert "no client's training loss was finite in round 1 and 1 later" in history.failures[0]
    assert [record.loss for record in history.records] == [None, None]
