"""A stranger's way from README to a report of their own pictures, with commands that README and --help show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from warm import call

EXAMPLES = Path(__file__).parents[2] / "examples"


Call = Callable[..., str]


@pytest.fixture
def holdfast(warm_commands: dict[str, str]) -> Call:
    def command(folder: Path, *words: str) -> str:
        done = call(warm_commands, folder, "holdfast", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return command


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_examples_run(holdfast: Call, example: Path, tmp_path: Path) -> None:
    told = holdfast(tmp_path, "run", str(example), "--json", "--out", "run", "--set", "rounds=2")
    assert json.loads(told)["final_accuracy"] > 0.2


def test_own_npz_to_a_report_of_feddig_against_fedavg(holdfast: Call, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 4, 700)
    x = random.integers(0, 120, (700, 16, 16))
    for number, label in enumerate(y):  # a bright bar: across or down, in one half or the other
        place = 3 + 7 * (label % 2) + random.integers(0, 3)
        x[number, place, :] += 45 * (label < 2)
        x[number, :, place] += 45 * (label >= 2)
    np.savez(
        tmp_path / "bars.npz",
        x_train=x[:500].astype("uint8"),
        y_train=y[:500],
        x_test=x[500:].astype("uint8"),
        y_test=y[500:],
    )
    assert "npz" in holdfast(tmp_path, "tasks")
    comparison = [
        "compare",
        "--task",
        "bars.npz",
        "--partition",
        "shards:1",
        "--rounds",
        "12",
        "--set",
        "model=features",
    ]
    told = holdfast(
        tmp_path, *comparison, "--method", "fedavg,feddig", "--scenario", "sequential", "--out", "runs/bars", "--json"
    )
    final = {row["method"]: row["final_accuracy"] for row in json.loads(told)["rows"]}
    assert final["fedavg+feddig"] > final["fedavg"] + 0.05
    holdfast(tmp_path, "report", "runs/bars", "--out", "bars.html")
    page = (tmp_path / "bars.html").read_text()
    assert "FedDig" in page
    assert "://" not in page.split("<body")[0].replace("http://www.w3.org", "")
