"""Runs whose files are damaged, missing or held by another: a sentence, or the same bits by another way."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from engine_helpers import GENEROUS, assert_same_run, child, experiment, wait_until

from holdfast.core.errors import HoldfastError
from holdfast.core.failures import SENTENCES
from holdfast.engines.inline import Inline
from holdfast.play import resume, run
from holdfast.runs.history import History
from holdfast.runs.store import Run

Damage = Callable[[Path], None]


class Stopped(Exception):
    """Raised by a test's watcher, to stop a run where the test wants it."""


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = pytest.mark.parametrize("damage", [flip, truncate, empty])


@pytest.fixture(scope="module")
def reference() -> History:
    return run(experiment(algorithm="scaffold", rounds=5))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SCAFFOLD run that stopped after 4 of its 5 rounds."""
    folder = tmp_path_factory.mktemp("template") / "out"

    def watch(record: object) -> None:
        if len(Run.open(folder).records()) == 4:
            raise Stopped

    with pytest.raises(Stopped):
        run(experiment(algorithm="scaffold", rounds=5), folder, watch)
    return folder


@pytest.fixture
def stopped(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "out")
    return tmp_path / "out"


def notes(history: History) -> str:
    return "\n".join(note for record in history.records for note in record.notes)


def test_a_stopped_run_has_two_checkpoints_and_resumes_without_a_note(stopped: Path, reference: History) -> None:
    assert sorted(path.name for path in (stopped / "checkpoints").iterdir()) == [
        "000003.safetensors",
        "000004.safetensors",
    ]
    history = resume(stopped)
    assert_same_run(history, reference)
    assert notes(history) == ""


@DAMAGES
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_used(
    damage: Damage, stopped: Path, reference: History
) -> None:
    damage(stopped / "checkpoints" / "000004.safetensors")
    history = resume(stopped)
    assert_same_run(history, reference)
    first = history.records[3].notes
    assert str(stopped / "checkpoints" / "000004.safetensors") + " is damaged" in first[0]
    assert "set aside as 000004.safetensors.damaged" in first[0]
    assert first[1] == "The run goes on from the checkpoint of round 3, the newest that is whole."
    assert (stopped / "checkpoints" / "000004.safetensors.damaged").exists()


@DAMAGES
def test_with_both_checkpoints_damaged_the_run_starts_afresh_and_says_so(
    damage: Damage, stopped: Path, reference: History
) -> None:
    damage(stopped / "checkpoints" / "000004.safetensors")
    damage(stopped / "checkpoints" / "000003.safetensors")
    history = resume(stopped)
    assert_same_run(history, reference)
    assert "000004.safetensors.damaged" in notes(history)
    assert "000003.safetensors.damaged" in notes(history)
    assert history.records[0].notes[-1] == "No checkpoint is whole, so the run starts afresh."


@DAMAGES
def test_a_damaged_experiment_is_a_sentence(damage: Damage, stopped: Path) -> None:
    damage(stopped / "experiment.json")
    with pytest.raises(HoldfastError, match=r"experiment.json is damaged: its SHA-256 is not in manifest.jsonl"):
        resume(stopped)


def test_a_missing_manifest_is_a_sentence(stopped: Path) -> None:
    (stopped / "manifest.jsonl").unlink()
    with pytest.raises(HoldfastError, match=r"experiment.json is damaged"):
        resume(stopped)


@DAMAGES
def test_a_damaged_memory_is_named_and_the_client_starts_with_an_empty_one(damage: Damage, stopped: Path) -> None:
    damage(stopped / "clients" / "0001" / "000003.safetensors")
    history = resume(stopped)
    (note,) = history.records[4].notes
    assert note == f"client 1: {SENTENCES['memory-lost']}"
    said = (stopped / "failures.log").read_text()
    assert said.startswith("the memory of round 4 is damaged; set aside as ")
    assert said.rstrip().endswith("000003.safetensors.damaged; client 1 starts with an empty one")


def test_a_missing_memory_is_named(stopped: Path) -> None:
    shutil.rmtree(stopped / "clients" / "0002")
    assert notes(resume(stopped)) == f"client 2: {SENTENCES['memory-lost']}"


def test_a_damaged_manifest_line_costs_the_file_it_names_and_nothing_else(stopped: Path, reference: History) -> None:
    manifest = stopped / "manifest.jsonl"
    lines = manifest.read_text().splitlines()
    assert "000004" in lines[-1]
    manifest.write_text("\n".join([*lines[:-1], lines[-1][:40] + "#" + lines[-1][41:]]) + "\n")
    history = resume(stopped)
    assert_same_run(history, reference)
    assert "000004.safetensors is damaged" in notes(history)


@pytest.mark.parametrize("line", ['{"file": "x"', "[1, 2]", "null", "7", '"text"', "\x00\x00", "{}", '{"round": "x"}'])
def test_an_odd_line_in_any_jsonl_file_does_no_harm(line: str, stopped: Path, reference: History) -> None:
    for name in ("manifest.jsonl", "rounds.jsonl", "environment.jsonl", "clients/0000/manifest.jsonl"):
        path = stopped / name
        path.write_text(line + "\n" + path.read_text() + line)  # the last without an end of line: torn
    history = resume(stopped)
    assert_same_run(history, reference)


def test_a_damaged_line_of_a_round_is_named(stopped: Path, reference: History) -> None:
    path = stopped / "rounds.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = lines[1].replace('"absent"', '"absurd"')
    path.write_text("\n".join(lines) + "\n")
    history = resume(stopped)
    assert [record.round for record in history.records] == [1, 3, 4, 5]
    assert notes(history) == "rounds.jsonl is damaged: what it said of round 2 is lost."
    assert history.accuracy == [a for round, a in enumerate(reference.accuracy) if round != 1]


def test_files_of_killed_writers_are_removed(stopped: Path, reference: History) -> None:
    left = [stopped / ".rounds.jsonl.1.tmp", stopped / "clients" / "0000" / ".000004.safetensors.1.tmp"]
    for path in left:
        path.write_bytes(b"half")
    assert_same_run(resume(stopped), reference)
    assert not any(path.exists() for path in left)


def test_a_finished_run_is_only_read(stopped: Path, reference: History, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = resume(stopped)
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.suffix in (".safetensors", ".json")}
    monkeypatch.setattr(Inline, "ask", lambda self, messages: pytest.fail("a finished run was played"))
    again = resume(stopped)
    assert again.records == finished.records
    assert_same_run(again, reference)
    assert before == {p: p.read_bytes() for p in stopped.rglob("*") if p.suffix in (".safetensors", ".json")}


@pytest.mark.parametrize("damage", [Path.unlink, flip, truncate])
def test_the_model_of_a_finished_run_is_written_again_when_lost(
    damage: Damage, stopped: Path, reference: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume(stopped)
    path = stopped / "model.safetensors"
    whole = path.read_bytes()
    damage(path)
    monkeypatch.setattr(Inline, "ask", lambda self, messages: pytest.fail("a finished run was played"))
    assert_same_run(resume(stopped), reference)
    assert path.read_bytes() == whole


def test_the_final_model_holds_the_weights_of_the_last_state(stopped: Path, reference: History) -> None:
    resume(stopped)
    model = safetensors.torch.load_file(stopped / "model.safetensors")
    assert reference.state is not None
    assert model.keys() == reference.state.model.keys()
    assert all(torch.equal(model[name], tensor) for name, tensor in reference.state.model.items())


def test_a_folder_that_is_not_empty_is_refused(stopped: Path, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"is not empty; `holdfast resume .*` goes on with a run"):
        run(experiment(), stopped)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(HoldfastError, match="is not empty"):
        run(experiment(), tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]
    with pytest.raises(HoldfastError, match=r"letter.txt is a file; --out names a new folder"):
        run(experiment(), tmp_path / "mine" / "letter.txt")


def test_what_is_no_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"is not a run: it has no experiment.json"):
        resume(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_run_of_another_schema_is_refused(stopped: Path) -> None:
    from holdfast.core.files import Store

    table = json.loads((stopped / "experiment.json").read_text())
    Store(stopped).write("experiment.json", json.dumps({**table, "schema": 99}).encode())
    with pytest.raises(HoldfastError, match="another version of Holdfast"):
        resume(stopped)


def hold(folder: Path, ready: Path) -> None:
    def watch(record: object) -> None:
        ready.touch()
        wait_until(lambda: not ready.exists(), "the test to let go")

    resume(folder, watch)


def test_two_processes_do_not_work_on_one_folder(stopped: Path, tmp_path: Path, reference: History) -> None:
    ready = tmp_path / "ready"
    other = child(hold, stopped, ready)
    try:
        wait_until(ready.exists, "the other process to play")
        with pytest.raises(HoldfastError, match=r"Another process is at work on .*; wait for it or end it first"):
            resume(stopped)
        with pytest.raises(HoldfastError, match="is not empty"):
            run(experiment(), stopped)
        ready.unlink()
        other.join(GENEROUS)
        assert other.exitcode == 0
    finally:
        other.kill()
        other.join()
    assert_same_run(resume(stopped), reference)


def test_two_processes_that_start_in_one_folder_do_not_mix_their_runs(tmp_path: Path) -> None:
    """The second looked when the folder was still empty, and then finds it locked: it must not write anything."""
    (tmp_path / "out").mkdir()
    with open(tmp_path / "out" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(HoldfastError, match="Another process is at work"):
            run(experiment(), tmp_path / "out")
        assert not (tmp_path / "out" / "experiment.json").exists()


def test_an_error_lets_go_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook: the error is kept, and the same process resumes."""

    def stop(record: object) -> None:
        raise Stopped

    with pytest.raises(Stopped) as kept:
        run(experiment(rounds=3), tmp_path / "out", stop)
    assert kept.value is not None
    with pytest.raises(Stopped):
        resume(tmp_path / "out", stop)
    assert_same_run(resume(tmp_path / "out"), run(experiment(rounds=3)))


@pytest.mark.parametrize("algorithm", ["adabest", "mime"])
def test_a_run_whose_first_round_nobody_answers_is_saved_and_goes_on(tmp_path: Path, algorithm: str) -> None:
    # what these remember is then still what they began with: two names for one tensor
    nobody = {"name": "intervals", "away": [[client, 1, 2] for client in range(4)]}
    wanted = experiment(algorithm=algorithm, scenario=nobody, rounds=2)
    history = run(wanted, tmp_path / "run")
    assert [len(record.weights) for record in history.records] == [0, 4]


def test_a_finished_run_whose_records_are_lost_is_a_sentence(tmp_path: Path) -> None:
    run(experiment(rounds=1), tmp_path / "run")
    (tmp_path / "run" / "rounds.jsonl").unlink()
    with pytest.raises(HoldfastError, match="says nothing of any round"):
        resume(tmp_path / "run")
