"""A run's model elsewhere: the same predictions from the run, from its file alone, and from ONNX; and its numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import typer
from report_helpers import judged, make_run, record
from typer.testing import CliRunner

from holdfast.cli.reporting import export, predict
from holdfast.core.errors import HoldfastError
from holdfast.core.files import Damaged
from holdfast.data.named import EMBEDDED_FILE
from holdfast.play import run
from holdfast.report.logs import write_mlflow, write_tensorboard
from holdfast.report.run_data import read_story
from holdfast.runs.experiment import from_table
from holdfast.runs.export import export_onnx, export_safetensors, load_model, need
from holdfast.runs.new_samples import read_samples
from holdfast.runs.records import scalars

MODELS = {
    "linear": {"model": "linear"},
    "auto": {},  # the convolutional one
    "features": {"absence": "feddig"},
    "full": {"model": "full", "absence": "feddig"},
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of one's own: 120 pictures of bright halves, left or right."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 60, (120, 12, 12), dtype=np.uint8)
    y = np.arange(120) % 2
    x[y == 0, :, :6] += 120
    x[y == 1, :, 6:] += 120
    path = tmp_path_factory.mktemp("data") / "halves.npz"
    names = np.array(["left", "right"])
    np.savez_compressed(path, x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:], class_names=names)
    return path


@pytest.fixture(scope="module", params=list(MODELS))
def trained(request: pytest.FixtureRequest, small: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    keys = {"task": str(small), "rounds": 1, "clients": 2, "partition": "iid", "workers": 0, "batch_size": 8}
    out = tmp_path_factory.mktemp("runs") / request.param
    return run(from_table({**keys, **MODELS[request.param]}), out)


def test_predictions_are_those_of_the_run(trained: Any, small: Path) -> None:
    """The accuracy that the run measured comes out again, to the sample, from the file alone."""
    x, y = read_samples(small)
    assert y is not None
    model = load_model(trained.folder)
    found = model.predict(x)
    assert found.shape == (40, 2)
    assert found.sum(1) == pytest.approx(np.ones(40), abs=1e-5)
    assert (found.argmax(1) == y).mean() == pytest.approx(trained.accuracy[-1], abs=1e-6)
    assert model.class_names == ("left", "right")


def test_a_file_alone_is_enough(trained: Any, small: Path, tmp_path: Path) -> None:
    """Another folder, another process, no data."""
    export_safetensors(trained.folder, tmp_path / "model.safetensors")
    x, _ = read_samples(small)
    assert np.array_equal(load_model(tmp_path / "model.safetensors").predict(x), load_model(trained.folder).predict(x))


def test_floats_and_bytes_are_the_same_pictures(trained: Any, small: Path) -> None:
    x, _ = read_samples(small)
    model = load_model(trained.folder)
    assert model.predict((x / 255).astype(np.float32)) == pytest.approx(model.predict(x), abs=1e-5)


@pytest.mark.parametrize("trained", ["auto", "full"], indirect=True)  # each takes seconds: convolutions, and an encoder
def test_onnx_gives_the_same_probabilities(trained: Any, small: Path, tmp_path: Path) -> None:
    """Against the reference evaluator of the ONNX project, for another number of samples than it was traced with."""
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    export_onnx(trained.folder, tmp_path / "model.onnx")
    x, _ = read_samples(small)
    machine = ReferenceEvaluator(str(tmp_path / "model.onnx"))
    model = load_model(trained.folder)
    for count in (1, 5):
        (found,) = machine.run(None, {"x": (x[:count, None] / 255).astype(np.float32)})
        assert found == pytest.approx(model.predict(x[:count]), abs=1e-5)
    assert [one.name for one in machine.proto_.graph.output] == ["probabilities"]
    assert {one.key: one.value for one in machine.proto_.metadata_props}["class_names"] == "left\nright"


# Refusals


@pytest.fixture(scope="module")
def linear(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = {"task": str(small), "rounds": 1, "clients": 2, "partition": "iid", "workers": 0, "model": "linear"}
    history = run(from_table(keys), tmp_path_factory.mktemp("linear") / "run")
    assert history.folder is not None
    return history.folder


def test_samples_of_another_shape_are_refused(linear: Path) -> None:
    with pytest.raises(HoldfastError, match=r"shape \(1, 9, 9\).*trained on \(1, 12, 12\)"):
        load_model(linear).predict(np.zeros((2, 9, 9), dtype=np.uint8))


def test_what_is_no_model_is_refused(linear: Path, tmp_path: Path) -> None:
    unfinished = make_run(tmp_path / "going", [judged(1, 0.5)], finished=False)
    (tmp_path / "torn.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    (tmp_path / "torn2.safetensors").write_bytes((linear / "model.safetensors").read_bytes()[:-9])
    safetensors.torch.save_file({"w": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "folder").mkdir()
    for path, words in (
        (unfinished, "is not finished"),
        (tmp_path / "folder", "is not a run"),
        (tmp_path / "lost", "does not exist"),
        (tmp_path / "torn2.safetensors", "not a whole safetensors file"),
        (tmp_path / "other.safetensors", "does not say how it is built"),
    ):
        with pytest.raises(HoldfastError, match=words):
            load_model(path)


def test_a_model_that_was_tampered_with_is_refused(linear: Path, tmp_path: Path) -> None:
    data = bytearray((linear / "model.safetensors").read_bytes())
    data[-1] ^= 1
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("experiment.json", "manifest.jsonl"):
        (copy / name).write_bytes((linear / name).read_bytes())
    (copy / "model.safetensors").write_bytes(data)
    with pytest.raises(Damaged, match="is damaged"):
        load_model(copy)


def test_weights_that_do_not_fit_are_refused(linear: Path, tmp_path: Path) -> None:
    with safetensors.safe_open(linear / "model.safetensors", "pt") as file:
        facts = file.metadata()
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"1.weight": torch.zeros(3, 3), "1.bias": torch.zeros(2)}, path, facts)
    with pytest.raises(HoldfastError, match="does not fit the model linear"):
        load_model(path)


def test_an_encoder_of_another_version_is_refused(small: Path, tmp_path: Path) -> None:
    keys = {"task": str(small), "rounds": 1, "clients": 2, "partition": "iid", "workers": 0, "model": "features"}
    history = run(from_table(keys), tmp_path / "run")
    assert history.folder is not None
    with safetensors.safe_open(history.folder / "model.safetensors", "pt") as file:
        facts = {**file.metadata(), "encoder_fingerprint": "0" * 64}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    safetensors.torch.save_file(tensors, tmp_path / "other.safetensors", facts)
    with pytest.raises(HoldfastError, match="features of another encoder"):
        load_model(tmp_path / "other.safetensors")


def test_samples_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("no")
    np.savez(tmp_path / "keys.npz", pictures=np.zeros((1, 2)))
    np.savez(tmp_path / "uneven.npz", x=np.zeros((3, 2)), y=np.zeros(2, dtype=int))
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    for name, words in (
        ("lost.npz", "does not exist"),
        ("one.npy", "holds one array only"),
        ("text.npz", "not a readable npz"),
        ("objects.npz", "Python objects"),
        ("keys.npz", "neither the key x nor x_test"),
        ("uneven.npz", "2 labels in y for 3 samples in x"),
    ):
        with pytest.raises(HoldfastError, match=words):
            read_samples(tmp_path / name)


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(HoldfastError, match="needs nosuchpackage: pip install nosuchpackage"):
        need("json", "nosuchpackage")


# Numbers for other tools


def test_every_number_of_a_round_has_a_name() -> None:
    one = judged(1, 0.5, scores={1: 2.0}, absent={0: "away"}, class_accuracy=[0.5, None, 1.0])
    found = dict(scalars(one, ["zero", "one"]))
    assert found["class_accuracy/zero"] == 0.5
    assert found["class_accuracy/2"] == 1.0
    assert "class_accuracy/one" not in found
    assert (found["scores/1"], found["weights/1"], found["clients/absent"]) == (2.0, 0.75, 1.0)
    assert "accuracy" not in dict(scalars(record(1, loss=None), []))


def test_tensorboard_reads_the_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    story = read_story(make_run(tmp_path / "mine", [judged(1, 0.25), judged(2, 0.75)]))
    write_tensorboard(story, tmp_path / "events")
    events = EventAccumulator(str(tmp_path / "events" / "mine"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("accuracy")] == [(1, 0.25), (2, 0.75)]
    assert [one.value for one in events.Scalars("seconds/server_step")] == [0.125, 0.125]
    with pytest.raises(HoldfastError, match="is not empty"):
        write_tensorboard(story, tmp_path / "events")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(HoldfastError, match="Cannot write"):
        write_tensorboard(story, tmp_path / "file")


@pytest.mark.filterwarnings("ignore")
def test_mlflow_takes_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)
    story = read_story(make_run(tmp_path / "mine", [judged(1, 0.25), judged(2, 0.75)], lr=0.5))
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    id = write_mlflow(story, uri)
    client = MlflowClient(tracking_uri=uri)
    found = client.get_run(id)
    assert (found.info.status, found.info.run_name, found.data.params["lr"]) == ("FINISHED", "mine", "0.5")
    history = client.get_metric_history(id, "accuracy")
    assert [(one.step, one.value) for one in history] == [(1, 0.25), (2, 0.75)]
    assert found.data.metrics["final_accuracy"] == 0.5


# The commands


def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(export)
    made.command()(predict)
    return made


def test_the_predict_command(linear: Path, small: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app(), ["predict", str(linear), str(small), "--out", str(tmp_path / "p.npz")])
    assert shown.exit_code == 0
    assert "40 samples, 20 of them shown; AUROC" in shown.output
    saved = np.load(tmp_path / "p.npz")
    assert saved["probabilities"].shape == (40, 2)
    assert saved["class_names"].tolist() == ["left", "right"]
    x, y = read_samples(small)
    np.savez(tmp_path / "bare.npz", x=x)
    result = CliRunner().invoke(app(), ["predict", str(linear), str(tmp_path / "bare.npz"), "--json"])
    told = json.loads(result.stdout)
    assert told["accuracy"] is None
    assert [row["class"] for row in told["predictions"]] == [["left", "right"][c] for c in saved["classes"]]
    np.savez(tmp_path / "many.npz", x=x, y=y + 5)
    refused = CliRunner().invoke(app(), ["predict", str(linear), str(tmp_path / "many.npz")])
    assert "label 6 is out of range" in str(refused.exception)


def test_the_export_command(linear: Path, tmp_path: Path) -> None:
    nothing = CliRunner().invoke(app(), ["export", str(linear)])
    assert "Say what to export" in str(nothing.exception)
    result = CliRunner().invoke(app(), ["export", str(linear), "--safetensors", str(tmp_path / "m.safetensors")])
    assert result.exit_code == 0
    assert (tmp_path / "m.safetensors").read_bytes() == (linear / "model.safetensors").read_bytes()


def test_the_embedded_task_can_be_predicted() -> None:
    x, y = read_samples(EMBEDDED_FILE)
    assert y is not None
    assert (x.shape, len(y)) == ((1000, 28, 28), 1000)


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, holdfast.cli.reporting; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
