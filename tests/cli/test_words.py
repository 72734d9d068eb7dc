"""What the command line prints, read by a person: numbers and nouns agree, names are whole, words stay words."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from report_helpers import judged
from rich.console import Console
from typer.testing import CliRunner

import holdfast
from holdfast.cli import app
from holdfast.cli.comparing import fitting
from holdfast.cli.screen import screen
from holdfast.core.errors import HoldfastError
from holdfast.core.names import plural
from holdfast.runs.experiment import Experiment, load
from holdfast.runs.history import History
from holdfast.runs.store import Run


def told(*words: object) -> str:
    return " ".join(CliRunner().invoke(app, [str(word) for word in words]).stdout.split())


def test_the_version() -> None:
    assert told("--version") == f"holdfast {holdfast.__version__}"


def test_one_is_one() -> None:
    assert [plural(0, "round"), plural(1, "round"), plural(2, "round")] == ["0 rounds", "1 round", "2 rounds"]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.savez(tmp_path / "sample_ten.npz", x_train=x, y_train=np.arange(60) % 2, x_test=x, y_test=np.arange(60) % 2)
    (tmp_path / "e.toml").write_text(
        'task = "sample_ten.npz"\nclients = 2\npartition = "iid"\nrounds = 1\nworkers = 0\n'
    )
    return tmp_path


def test_check_and_run_count_and_name_as_people_do(small: Path) -> None:
    checked = told("check", small / "e.toml")
    assert "fedavg, updates weighted by samples" in checked
    assert "1 of 1 epoch," in checked
    read = told("check", small / "e.toml", "--set", "task=fashion-mini", "--set", "model=features")
    assert "encoder auto: scattering, 128 values, fingerprint" in read
    assert "updates weighted by krum" in told("check", small / "e.toml", "--set", "trust=krum", "--set", "clients=5")
    assert "after 1 round in" in told("run", small / "e.toml", "--out", small / "r", "--allow-failures")


def test_a_word_between_colons_is_no_picture() -> None:
    console = screen()
    console.file = io.StringIO()
    console.print("task sample:ten: 3 samples [bold]:smile:[/]")
    assert console.file.getvalue() == "task sample:ten: 3 samples :smile:\n"


@pytest.mark.parametrize("width", [80, 200])
def test_names_of_methods_are_whole(width: int) -> None:
    histories = [
        History(
            Experiment(absence=absence, scenario=scenario, trust="multikrum"), [judged(t, 0.8) for t in range(1, 31)]
        )
        for absence in ("none", "feddig")
        for scenario in ("none", "sequential", "forever")
    ]
    out = io.StringIO()
    console = Console(file=out, width=width)
    console.print(fitting(console, histories, [None] * 6))
    assert "fedavg+feddig+multikrum" in out.getvalue()
    assert "…" not in out.getvalue()
    assert ("█" in out.getvalue() or "▇" in out.getvalue()) == (width == 200)


def test_the_final_value_says_what_it_is_the_mean_of() -> None:
    values = [0.2, 0.4, 0.495, 0.496, 0.515]
    history = History(Experiment(), [judged(t, value) for t, value in enumerate(values, 1)])
    assert history.final_text + history.final_words == "50.2% (mean of the last 3 tests)"
    assert History(Experiment(), history.records[:1]).final_words == ""


@pytest.mark.parametrize("command", [["report"], ["resume"], ["watch"]])
def test_an_experiment_is_no_run(command: list[str], small: Path) -> None:
    with pytest.raises(HoldfastError, match=r"e\.toml is an experiment, not a run; `holdfast run FILE"):
        CliRunner().invoke(app, [*command, str(small / "e.toml")], catch_exceptions=False)


def test_paths_may_be_text(small: Path) -> None:
    experiment = load(str(small / "e.toml"))
    holdfast.run(experiment, str(small / "run"))
    assert Run.open(str(small / "run")).experiment == experiment
