"""Runs of earlier versions, stopped in the middle: this version reads them, reports them and brings them to their end.

fixtures/runs holds them as commit 92b8202 left them: `fedavg` after 2 of its 4 rounds, `feddig-jury` (with SCAFFOLD,
clients that leave and a free rider) after 3 of its 6.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import holdfast
from holdfast.cli import main
from holdfast.core.files import Store
from holdfast.runs.experiment import of_today

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"


@pytest.fixture(params=["fedavg", "feddig-jury"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy that may be written to."""
    return Path(shutil.copytree(RUNS / request.param, tmp_path / request.param))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_an_old_run_is_reported(old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["holdfast", "report", str(old)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert not end.value.code, said.err
    reached = statistics.mean(line["accuracy"] for line in lines(old))  # over the last three rounds, here all
    assert f" {100 * reached:.1f} % " in said.out
    assert (old / "report.html").read_text().startswith("<!doctype html>")


def test_an_old_run_goes_on_to_its_end(old: Path) -> None:
    before = lines(old)
    first = holdfast.load(old / "experiment.json")
    history = holdfast.resume(old)
    assert history.experiment == first
    assert [record.round for record in history.records] == list(range(1, first.rounds + 1))
    assert [line["round"] for line in lines(old)] == list(range(first.rounds))  # it counts on as it began, from 0
    assert history.accuracy[: len(before)] == [line["accuracy"] for line in before]
    # FedDig's server step is gentler than it was, and all members have left by the end: no worse is enough.
    assert history.accuracy[-1] > 0.9 * history.accuracy[len(before) - 1]
    notes = [note for record in history.records[len(before) :] for note in record.notes]
    assert not [note for note in notes if "damaged" in note or "missing" in note or "afresh" in note]
    assert all(torch.isfinite(tensor).all() for tensor in load_file(old / "model.safetensors").values())
    assert holdfast.resume(old).accuracy == history.accuracy  # a finished run is only read


def test_a_run_that_counted_its_rounds_from_0_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """A run of today, rewritten as the version before counted: from 0, in its records and in its scenario."""
    keys = {"task": "fashion-mini", "samples": 80, "model": "linear", "rounds": 4, "workers": 0}
    wanted = holdfast.Experiment(**keys, scenario={"name": "intervals", "away": [[1, 2, 4]]})

    def stop(record: Any) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        holdfast.run(wanted, tmp_path / "old", stop)
    assert [line["round"] for line in lines(tmp_path / "old")] == [1, 2]
    earlier = [{**line, "round": line["round"] - 1} for line in lines(tmp_path / "old")]
    (tmp_path / "old" / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in earlier))
    table = json.loads((tmp_path / "old" / "experiment.json").read_text())
    assert table["schema"] == 3
    table |= {"schema": 1, "scenario": {"name": "intervals", "away": [[1, 1, 3]]}}
    Store(tmp_path / "old").write("experiment.json", json.dumps(table).encode())

    assert holdfast.load(tmp_path / "old" / "experiment.json") == wanted
    resumed, straight = holdfast.resume(tmp_path / "old"), holdfast.run(wanted, tmp_path / "new")
    assert [record.round for record in resumed.records] == [1, 2, 3, 4]
    assert [sorted(record.absent) for record in resumed.records] == [[], [1], [1], []]
    assert [dict(record.metrics) for record in resumed.records] == [dict(record.metrics) for record in straight.records]
    assert [line["round"] for line in lines(tmp_path / "old")] == [0, 1, 2, 3]
    assert [line["round"] for line in lines(tmp_path / "new")] == [1, 2, 3, 4]
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("old", "new")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


def test_the_digests_of_an_old_run_stand_in_for_those_who_have_left(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(RUNS / "feddig-jury", tmp_path / "run"))
    digests = {path.name: path.read_bytes() for path in (folder / "digests").iterdir()}
    last = holdfast.resume(folder).records[-1]
    assert sorted(last.absent) == [0, 1, 2, 3]
    assert set(last.stand_ins) <= set(last.absent)
    assert last.stand_ins
    assert {path.name: path.read_bytes() for path in (folder / "digests").iterdir()} == digests


def test_a_network_that_was_not_named_keeps_the_width_it_had() -> None:
    was = {"schema": 2, "absence": "feddig:spd=8", "model": "auto"}
    assert of_today(was, "experiment.json")[0]["model"] == "features"
    assert of_today({**was, "schema": 3}, "experiment.json")[0]["model"] == "auto"
    for changes in ({"absence": "none"}, {"algorithm": "oneshot:lda"}, {"model": "full"}):
        assert of_today({**was, **changes}, "experiment.json")[0]["model"] == {**was, **changes}["model"]
