"""The command line as a user meets it: real processes for the ways in, one sentence for what goes wrong."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from holdfast.attacks.adversary import choose_hostile
from holdfast.cli import main
from holdfast.runs.store import Run

HOLDFAST = [sys.executable, "-c", "from holdfast.cli import main; main()"]


def holdfast(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    command = [*HOLDFAST, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=240)


def here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The same in this process, which has torch already."""
    out, error, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        patch.setattr(sys, "argv", ["holdfast", *map(str, arguments)])
        patch.setattr(sys, "path", [*sys.path])
        patch.setenv("COLUMNS", "100")
        patch.setenv("NO_COLOR", "1")
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess([], code, out.getvalue(), error.getvalue())


@pytest.fixture(scope="session")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own npz: four blobs in six dimensions."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(4, 6)) * 3
    y = random.integers(0, 4, 500)
    x = (centres[y] + random.normal(size=(500, 6))).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    np.savez(path, x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=y[400:])
    return path


@pytest.fixture
def experiment(tmp_path: Path, blobs: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(
        f'task = "{blobs}"\nclients = 3\npartition = "iid"\nrounds = 6\nmodel = "linear"\n'
        'scenario = {name = "intervals", away = [[1, 3, 5]]}\n'
    )
    return path


def test_help_fits_a_screen_and_does_not_wait_for_torch() -> None:
    code = "import sys\nsys.argv = ['holdfast', '--help']\nfrom holdfast.cli import main\ntry:\n    main()\nfinally:\n"
    code += "    sys.stderr.write(str('torch' in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}
    )
    assert done.stderr == "False"
    assert len(done.stdout.splitlines()) <= 50
    for command in ("run", "resume", "compare", "check", "partition", "tasks", "methods"):
        assert command in done.stdout


def test_run_leaves_a_folder_and_resume_reads_it(experiment: Path, tmp_path: Path) -> None:
    done = holdfast("run", experiment, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    folder = tmp_path / "run"
    assert {"experiment.json", "environment.jsonl", "rounds.jsonl", "model.safetensors", "manifest.jsonl"} <= {
        path.name for path in folder.iterdir()
    }
    records = Run.open(folder).records()
    assert [sorted(record.absent) for record in records] == [[], [], [1], [1], [], []]
    assert records[-1].accuracy is not None
    assert records[-1].accuracy > 0.8
    again = here("resume", folder, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["accuracy"] == [record.accuracy for record in records]


OWN = """
from dataclasses import dataclass

from holdfast.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class Mine(FedAvg):
    pass
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_own_parts_are_found_in_the_current_folder(workers: int, experiment: Path, tmp_path: Path) -> None:
    """By the command itself, whose own folder Python takes for the first place to look; in worker processes too."""
    (tmp_path / "mine.py").write_text(OWN)
    command = [str(Path(sys.executable).parent / "holdfast"), "run", str(experiment), "--json", "--out", "out"]
    changes = ["--set", "algorithm=mine:Mine", "--set", f"workers={workers}", "--set", "rounds=1"]
    done = subprocess.run([*command, *changes], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "mine:Mine"


def heed_interrupts() -> None:
    """Where the tests themselves run in the background, shells have children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupted_run_ends_at_once_and_resumes(experiment: Path, tmp_path: Path) -> None:
    command = [*HOLDFAST, "run", str(experiment), "--out", str(tmp_path / "run"), "--set", "rounds=4000"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )
    rounds = tmp_path / "run" / "rounds.jsonl"
    deadline = time.monotonic() + 120
    while not (rounds.exists() and rounds.read_bytes().count(b"\n") > 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "holdfast resume" in out
    assert Run.open(tmp_path / "run").last_state() is not None


def test_compare_prints_one_json_object(blobs: Path, tmp_path: Path) -> None:
    arguments = [
        "compare",
        "--task",
        blobs,
        "--clients",
        3,
        "--partition",
        "iid",
        "--rounds",
        4,
        "--set",
        "model=linear",
    ]
    arguments += ["--scenario", "none,sequential", "--method", "fedavg,fedprox:0.1", "--seed", "0,1", "--json"]
    done = here(*arguments, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {(r["method"], r["scenario"], r["seed"]) for r in rows} == {
        (m, s, seed) for m in ("fedavg", "fedprox:0.1") for s in ("none", "sequential") for seed in (0, 1)
    }
    for row in rows:
        assert len(row["accuracy"]) == 4
        assert row["final_accuracy"] == pytest.approx(np.mean(row["accuracy"][-3:]))
        assert row["bytes_down"] > 0
        assert row["seconds"] > 0
    assert (tmp_path / "out" / "curves.png").stat().st_size > 5_000
    before = sorted(path.stat().st_mtime_ns for path in tmp_path.glob("out/*/model.safetensors"))
    again = here(*arguments, "--out", tmp_path / "out")
    assert json.loads(again.stdout)["rows"] == rows
    assert sorted(path.stat().st_mtime_ns for path in tmp_path.glob("out/*/model.safetensors")) == before


def test_check_shows_who_is_away(experiment: Path) -> None:
    done = here("check", experiment)
    assert done.returncode == 0, done.stderr
    assert "client 1 ██··██" in done.stdout
    assert "can be run" in done.stdout


def test_check_and_run_say_who_is_hostile(experiment: Path, tmp_path: Path) -> None:
    changes = ["--set", "attack=signflip", "--set", "attackers=2", "--set", "rounds=1"]
    told = json.loads(here("run", experiment, *changes, "--json", "--out", tmp_path / "run").stdout)
    assert told["hostile"] == list(choose_hostile(3, 2, 0))
    assert (told["without_effect"], told["backdoor_success"]) == (None, None)
    assert (
        ", ".join(f"client {one}" for one in told["hostile"]) + ": signflip"
        in here("check", experiment, *changes).stdout
    )


@pytest.mark.parametrize(
    ("attack", "sentence"),
    [
        ("relayer", "attack 'relayer': the model has no two layers that follow each other"),
        ("backdoor:size=99", "attack 'backdoor': needs images of at least 99 x 99 points"),
        ("labelflip:7-9", "attack 'labelflip': pair '7-9' is out of range for 4 classes."),
        ("torch:pi", "attack: torch:pi is no attack: it needs a kind"),
        ("torch:get_num_threads", "attack: get_num_threads failed: TypeError"),
        ("alie", "attack 'alie': no z follows from 2 hostile clients of 3; say one, as in alie:1.5."),
        ("falsedigest", "attack 'falsedigest' has no effect: absence 'none' takes no digests."),
        ("nonsense", "attack 'nonsense' has no effect: the algorithm's own weights ask no testers"),
        ("liar:honest", "attack 'liar:honest' has no effect"),
        ("random:since=6", "attack 'random since=6' has no effect: it begins after 6 rounds, and the run has 6."),
        ("random:since=-1", "since, the number of honest rounds before it, must not be negative, got -1."),
    ],
)
def test_check_refuses_the_attacks_that_run_refuses(
    experiment: Path, tmp_path: Path, attack: str, sentence: str
) -> None:
    changes = ["--set", f"attack={attack}", "--set", "attackers=2"]
    for done in (here("check", experiment, *changes), here("run", experiment, *changes, "--out", tmp_path / "never")):
        assert done.returncode == 1
        assert sentence in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "never").exists()


def test_partition_prints_and_saves_a_picture(experiment: Path, tmp_path: Path) -> None:
    done = here("partition", experiment, "--out", tmp_path / "p.png")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", ["tasks", "methods"])
def test_lists(command: str) -> None:
    done = here(command)
    assert done.returncode == 0, done.stderr
    assert ("fashion-mini" if command == "tasks" else "scaffold") in done.stdout


def test_methods_of_one_kind_with_their_options() -> None:
    done = here("methods", "attack")
    assert done.returncode == 0, done.stderr
    assert "labelflip" in done.stdout
    assert "since=0, until=None" in " ".join(done.stdout.split())
    assert "manner=seven (or negative, nan, inf, missing, unknown, random)" in " ".join(done.stdout.split())
    assert "scaffold" not in done.stdout
    wrong = here("methods", "atack")
    assert wrong.returncode != 0
    assert "did you mean 'attack'?" in wrong.stderr


def test_a_preset_is_shown_as_a_file_would_have_it() -> None:
    assert 'encoder = "autoencoder"' in here("methods").stdout


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("lrr=0.1", "there is no key 'lrr'; did you mean 'lr'?"),
        ("rounds=many", "rounds: expected a whole number, got 'many'."),
        ("rounds=0", "rounds must be at least 1, got 0."),
        ("algorithm=fedporx", "algorithm: 'fedporx' is not known; did you mean 'fedprox'?"),
        ("algorithm=fedprox:nu=1", "algorithm: 'fedprox' has no option 'nu'; did you mean 'mu'?"),
        ("partition=dirichlet:-1", "partition: 'dirichlet': mu must"),
        ("scenario=dropout:1.5", "scenario: 'dropout': p must be a probability"),
        ("task=nowhere.npz", "nowhere.npz"),
        ("absence=feddig", "feature"),
        ("model=cnn", "model 'cnn' takes pictures"),
        ("model=mlp:0", "model: 'mlp': hidden must be at least 1, got 0."),
        ("model=cnn:width=0", "model: 'cnn': width must be at least 1, got 0."),
        ("algorithm=fedprox:mu=1,mu=2", "names 'mu' twice"),
        ("names=,b,c", "names must be 3 different texts"),
        ("names=a,b\nx,c", r"names: 'b\nx' must be one line of printable characters."),
        ("clients=401", "401"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_happens(
    experiment: Path, tmp_path: Path, change: str, sentence: str
) -> None:
    done = here("run", experiment, "--set", change, "--out", tmp_path / "never")
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "never").exists()


def test_debug_shows_the_traceback(experiment: Path) -> None:
    done = holdfast("--debug", "run", experiment, "--set", "lrr=1")
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_the_environment_may_set_the_workers(experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["run", experiment, "--json", "--set", "rounds=1", "--out"]
    monkeypatch.setenv("HOLDFAST_WORKERS", "many")
    assert "HOLDFAST_WORKERS must be a whole number, got 'many'" in here(*arguments, tmp_path / "refused").stderr
    monkeypatch.setenv("HOLDFAST_WORKERS", "0")
    assert json.loads(here(*arguments, tmp_path / "played").stdout)["final_accuracy"] > 0
