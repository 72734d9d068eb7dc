"""Images and texts at real sites: description, experiment and own records are enough; the moderator needs nobody's."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import GENEROUS, environment, marked, wait_until
from PIL import Image
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.core.errors import HoldfastError
from holdfast.flower import client_app
from holdfast.flower.deploy.app import write_app
from holdfast.flower.deploy.local import local
from holdfast.flower.deploy.policy import fingerprint_of
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.flower.engine.moderator import play_over
from holdfast.play import run
from holdfast.runs.experiment import Experiment, load
from holdfast.runs.history import History
from holdfast.runs.store import Run

NAMES = ["north", "south"]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment without data, and a folder of pictures at each of two sites; the south has one class only."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    (tmp_path / "xrays.toml").write_text('[images]\nclasses = ["normal", "ill"]\nsize = 16\nchannels = 1\n')
    text = 'task = "images:xrays.toml"\nnames = ["north", "south"]\nrounds = 3\nlr = 0.1\nbatch_size = 8\n'
    (tmp_path / "study.toml").write_text(text + 'absence = "feddig"\n')
    (tmp_path / "policy.toml").write_text("min_records = 5\n")
    chance = np.random.default_rng(0)
    for site, classes in (("north", ("normal", "ill")), ("south", ("ill",))):
        for label in classes:
            for number in range(30):
                pixels = chance.integers(0, 99, (20, 20)).astype(np.uint8)
                pixels[:, :10] += np.uint8(150 if label == "ill" else 0)
                path = tmp_path / "pictures" / site / label / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)
    return tmp_path


def over(study: Path, experiment: Experiment, settings: dict[str, Any] | None = None) -> History:
    configs = {
        100 + i: {
            "site": name,
            "folder": str(study / "sites" / name),
            "records": str(study / "pictures" / name),
            "policy": str(study / "policy.toml"),
        }
        for i, name in enumerate(NAMES)
    }
    told = {"out": str(study / "run"), "sites": ",".join(NAMES), **(settings or {})}
    return play_over(InProcessGrid(client_app(experiment), configs), experiment, told)


def test_sites_learn_from_their_own_pictures(study: Path) -> None:
    experiment = load(study / "study.toml", [f"test={study / 'pictures' / 'north'}"])
    history = over(study, experiment)
    last = history.records[-1]
    assert (last.absent, last.refused) == ({}, {})
    assert history.final_accuracy > 0.9
    assert fingerprint_of(experiment) == fingerprint_of(load(study / "study.toml"))
    assert history.state is not None
    assert sorted(history.state.digests) == [0, 1]


def test_a_broken_picture_costs_one_site_its_part(study: Path, caplog: pytest.LogCaptureFixture) -> None:
    (study / "pictures" / "south" / "ill" / "7.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    history = over(study, load(study / "study.toml"))
    assert list(history.records[-1].absent) == [1]
    assert "7.png cannot be read as a picture" in caplog.text  # in the site's own log
    written = [path.read_text(errors="replace") for path in (study / "run").rglob("*") if path.is_file()]
    assert not any("7.png" in text for text in written)


def test_a_dry_run_reads_the_pictures(study: Path) -> None:
    words = ["site", "check", "north", str(study / "study.toml"), "--policy", str(study / "policy.toml"), "--images"]
    said = CliRunner().invoke(app, [*words, str(study / "pictures" / "north")])
    assert said.exit_code == 0, said.output
    assert "60 records in 2 of the classes, each of 1 x 16 x 16 values" in said.output
    assert "the digest, once" in said.output
    (study / "pictures" / "north" / "ill" / "7.png").write_bytes(b"broken")
    said = CliRunner().invoke(app, [*words, str(study / "pictures" / "north")])
    assert said.exit_code == 1
    assert "7.png cannot be read as a picture" in said.output
    assert "one step" not in said.output


def test_the_app_carries_the_description_and_no_data(study: Path) -> None:
    experiment = load(study / "study.toml")
    folder = write_app(study / "app", experiment)
    (written,) = folder.rglob("experiment.toml")
    assert fingerprint_of(load(written)) == fingerprint_of(experiment)
    assert str(study / "pictures") not in "\n".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    (study / "xrays.toml").write_text('[images]\nclasses = ["normal", "ill"]\nsize = 24\nchannels = 1\n')
    assert fingerprint_of(load(written)) != fingerprint_of(experiment)  # another agreement


def test_what_is_missing_is_one_sentence(study: Path) -> None:
    with pytest.raises(HoldfastError, match="has no records on this machine"):
        run(load(study / "study.toml"))
    (study / "xrays.toml").write_text('[images]\nclasses = ["normal", "ill"]\n')
    with pytest.raises(HoldfastError, match="it must say size and channels"):
        run(load(study / "study.toml"))
    (study / "xrays.toml").write_text("[images]\nsize = 16\nchannels = 1\n")
    with pytest.raises(HoldfastError, match="in the description the classes"):
        run(load(study / "study.toml"))


def test_texts_at_sites(study: Path) -> None:
    (study / "reports.toml").write_text('[text]\nclasses = ["heart", "lung"]\n')
    for name in NAMES:
        lines = [f"{word} number {n},{word}" for n in range(40) for word in ("heart", "lung")]
        (study / "pictures" / name / "own.csv").write_text("\n".join(["text,label", *lines]))
    text = (study / "study.toml").read_text().replace("images:xrays.toml", "text:reports.toml")
    (study / "texts.toml").write_text(text)
    experiment = load(study / "texts.toml", [f"test={study / 'pictures' / 'north' / 'own.csv'}"])
    configs = {
        100 + i: {
            "site": name,
            "folder": str(study / "s" / name),
            "records": str(study / "pictures" / name / "own.csv"),
            "policy": str(study / "policy.toml"),
        }
        for i, name in enumerate(NAMES)
    }
    grid = InProcessGrid(client_app(experiment), configs)
    history = play_over(grid, experiment, {"out": str(study / "texts"), "sites": ",".join(NAMES)})
    assert history.final_accuracy > 0.9


@pytest.mark.slow
def test_over_real_processes(study: Path, marker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each site is a `holdfast flower site --images` that is told of its own folder; the moderator of none."""
    for name, value in environment(marker).items():
        monkeypatch.setenv(name, value)
    written = write_app(study / "app", load(study / "study.toml", ["rounds=1"]))
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "flower", "site"]
    with local(study / "try", [], secure=False) as here, ExitStack() as sites:
        for name in NAMES:
            words = [name, "--superlink", f"127.0.0.1:{here.port}", "--folder", str(study / name), "--insecure"]
            words += ["--images", str(study / "pictures" / name), "--policy", str(study / "policy.toml")]
            site = subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            sites.callback(site.wait, GENEROUS)
            sites.callback(site.send_signal, signal.SIGTERM)
        here.begin(written, **{"out": str(study / "run"), "sites": ",".join(NAMES), "deadline-least": GENEROUS})
        wait_until(lambda: here.processes["moderator"].poll() is not None, "the run ends", 2 * GENEROUS)
    [record] = Run.open(study / "run").records()
    assert (record.absent, record.refused) == ({}, {})
    assert sorted(record.weights) == [0, 1]
    assert len(list((study / "run" / "digests").glob("*"))) == 2
    assert not marked(marker)
