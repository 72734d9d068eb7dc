"""A stranger's way from README to a report of their own pictures, with commands that README and --help show."""

from __future__ import annotations

import json
import re
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


def wards(patients: int) -> str:
    """A CSV of four hospitals, with cells that nobody filled in."""
    random = np.random.default_rng(7)
    lines = ["hospital,patient_id,age,bmi,crp,smoker,readmitted"]
    for number in range(patients):
        age, bmi, crp = random.normal(62, 12), random.normal(27, 5), np.exp(random.normal(1.5, 1))
        smoker = random.choice(["yes", "no", "former"])
        again = random.random() < 1 / (1 + np.exp(-(0.1 * (age - 62) + 0.8 * np.log(crp / 4) + (smoker == "yes"))))
        cells = [f"{age:.0f}", "" if number % 7 == 0 else f"{bmi:.1f}", "NA" if number % 5 == 0 else f"{crp:.1f}"]
        site = ("St. Mary", "Nordklinik", "Hôpital Sud", "General")[number % 4]
        lines.append(",".join([site, f"P{number}", *cells, smoker, "yes" if again else "no"]))
    return "\n".join(lines) + "\n"


def test_a_csv_of_four_hospitals_to_a_report_one_leaves_and_a_new_patient(holdfast: Call, tmp_path: Path) -> None:
    """docs/tables.md without Python: a draft, a check, a run that one hospital leaves, its report, new patients."""
    (tmp_path / "wards.csv").write_text(wards(480))
    assert "Wrote schema.toml" in holdfast(
        tmp_path, "data", "schema", "wards.csv", "--target", "readmitted", "--site", "hospital", "--out", "schema.toml"
    )
    assert "This file fits." in holdfast(tmp_path, "data", "check", "--schema", "schema.toml", "wards.csv")
    study = 'task = "schema.toml"\ndata = "wards.csv"\nabsence = "feddig"\nrounds = 8\nlr = 0.2\n'
    (tmp_path / "study.toml").write_text(f'{study}scenario = "forever:Nordklinik"\n')
    told = holdfast(tmp_path, "check", "study.toml")
    assert "Nordklinik  ██······" in told
    told = holdfast(tmp_path, "run", "study.toml", "--out", "runs/wards")
    assert "On the data of those who are away: AUROC 0." in told
    told = holdfast(tmp_path, "report", "runs/wards", "--out", "wards.html")
    told = " ".join(told.split())
    assert "when Nordklinik left. On the data of those who are away: AUROC 0." in told
    assert re.search(r"AUROC 0\.\d+, from \d+ records only\.", told)
    own = json.loads((tmp_path / "runs/wards/rounds.jsonl").read_text().splitlines()[-1])["client_metrics"]["auroc"]
    assert sorted(own) == ["0", "1", "2", "3"]
    assert min(own.values()) > 0.5
    elsewhere = tmp_path / "elsewhere"  # another machine: the model's file and new patients, nothing of the study
    elsewhere.mkdir()
    holdfast(tmp_path, "export", "runs/wards", "--safetensors", "elsewhere/wards.safetensors")
    (elsewhere / "new.csv").write_text("age,bmi,crp,smoker\n30,22,0.5,no\n90,,60,yes\n")
    holdfast(elsewhere, "predict", "wards.safetensors", "new.csv", "--out", "predictions.csv")
    rows = (elsewhere / "predictions.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows[1:]] == ["no", "yes"], rows


def test_ten_of_a_hundred_clients_a_round_with_fedadam(holdfast: Call, tmp_path: Path) -> None:
    """docs/tutorial.md: some are asked in each round, and who was not asked is not away."""
    asked = ["selection=uniform:10", "server_optimizer=adam:0.01", "evaluate_every=3", "samples=2000"]
    (tmp_path / "many.toml").write_text('task = "fashion-mini"\nclients = 100\nrounds = 6\nmodel = "features"\n')
    words = [word for key in asked for word in ("--set", key)]
    told = holdfast(tmp_path, "run", "many.toml", "--out", "runs/many", *words)
    assert "away" not in told
    records = [json.loads(line) for line in (tmp_path / "runs/many/rounds.jsonl").read_text().splitlines()]
    assert [len(record["asked"]) for record in records] == [10] * 6
    assert len({client for record in records for client in record["asked"]}) > 30
    assert records[-1]["metrics"]["accuracy"] > 0.25
