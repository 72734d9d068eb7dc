"""`holdfast flower up`: interrupted, it leaves no process and no port behind; once more, it goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

from engine_helpers import GENEROUS, environment, marked, wait_until

from holdfast.flower.deploy.local import listens
from holdfast.runs.store import Run

COMMAND = [sys.executable, "-c", "from holdfast.cli import main; main()", "flower", "up"]
EXPERIMENT = """
task = "flower_helpers:unhurried"
partition = "iid"
model = "mlp:8"
rounds = 2
batch_size = 32
"""


def up(folder: Path, marker: str) -> subprocess.Popen[str]:
    (folder / "few.toml").write_text(EXPERIMENT)
    command = [*COMMAND, str(folder / "few.toml"), "--sites", "1", "--out", str(folder / "try")]
    variables = {**environment(marker), "HOLDFAST_TRAINING": str(folder)}
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def port_of(folder: Path) -> int:
    config = tomllib.loads((folder / "try" / "flower" / "home" / "config.toml").read_text())
    return int(config["superlink"]["up"]["address"].rpartition(":")[2])


def test_interrupted_it_leaves_nothing_behind_and_once_more_it_goes_on(tmp_path: Path, marker: str) -> None:
    first = up(tmp_path, marker)
    wait_until(lambda: list(tmp_path.glob("training-*")), "the site trains")
    assert listens(port_of(tmp_path))
    first.send_signal(signal.SIGTERM)  # as Ctrl-C; SIGINT is ignored by what a shell starts in the background
    said, _ = first.communicate(timeout=GENEROUS)
    assert first.returncode not in (0, None), said
    assert not marked(marker)
    assert not listens(port_of(tmp_path))

    second = up(tmp_path, marker)
    said, _ = second.communicate(timeout=GENEROUS)
    assert second.returncode == 3, said  # as `holdfast run` would: two rounds taught this model nothing
    assert "Failed: the final model is no better than guessing" in said
    assert "Everything is down again" in said
    assert [record.round for record in Run.open(tmp_path / "try" / "run").records()] == [1, 2]
    assert not marked(marker)
    assert not listens(port_of(tmp_path))
