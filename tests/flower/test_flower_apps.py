"""The app that is written for `flwr run`, keys and certificates, and the command line."""

from __future__ import annotations

import json
import shlex
import ssl
import subprocess
import tomllib
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from engine_helpers import experiment
from typer.testing import CliRunner

from holdfast.cli.flower import flower_app, last_line
from holdfast.core.errors import HoldfastError
from holdfast.flower.deploy.app import experiment_toml, write_app
from holdfast.flower.deploy.keeper import load_own
from holdfast.flower.deploy.keys import make_keys
from holdfast.flower.deploy.local import Local, free_port, listens
from holdfast.flower.deploy.policy import fingerprint_of
from holdfast.flower.engine.moderator import read_settings
from holdfast.runs.experiment import Experiment, from_table, load


def test_flower_takes_the_app_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the bundle is written to
    app = write_app(tmp_path / "my-app", experiment())
    assert "warn" not in Local(tmp_path).flwr(["build", "--app", str(app)]).lower()
    [bundle] = tmp_path.glob("*.fab")
    assert bundle.stat().st_size > 500
    config = tomllib.loads((app / "pyproject.toml").read_text())
    assert read_settings(config["tool"]["flwr"]["app"]["config"])["gather"] == 120.0
    assert config["project"]["dependencies"] == ["holdfast[flower]"]
    protected = write_app(tmp_path / "protected", experiment(protect="dp-sgd"))
    assert "holdfast[flower,dp]" in (protected / "pyproject.toml").read_text()


def test_the_app_loads_and_carries_the_same_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = experiment(algorithm={"name": "fedprox", "mu": 0.5}, scenario={"name": "intervals", "away": [[1, 1, 3]]})
    app = write_app(tmp_path / "same", wanted)
    assert fingerprint_of(load(app / "app_same" / "experiment.toml")) == fingerprint_of(wanted)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    assert load_own(app)._registered_funcs.keys() == {"train.job", "evaluate.job", "query.job", "query.hello"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"absence": "feddig:spd=8"},
        {"partition": "iid"},
        {"max_norm": 3.5},
        {"samples": 100, "schedule": "cosine:warmup=2"},
        {"optimizer": {"name": "adam", "keep": True}, "clip_norm": 1.0},
    ],
)
def test_an_experiment_survives_the_way_through_toml(changes: dict[str, object]) -> None:
    wanted = from_table(changes)
    assert from_table(tomllib.loads(experiment_toml(wanted))) == wanted


def test_a_sites_data_folder_does_not_change_the_fingerprint() -> None:
    assert fingerprint_of(Experiment(data="/here")) == fingerprint_of(Experiment(data="/there"))
    assert fingerprint_of(Experiment(task="/here/x.npz")) == fingerprint_of(Experiment(task="/there/x.npz"))
    assert fingerprint_of(Experiment(lr=0.1)) != fingerprint_of(Experiment(lr=0.2))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write_app(tmp_path / "app", experiment())
    with pytest.raises(HoldfastError, match="is not empty; name a new folder"):
        write_app(tmp_path / "app", experiment())
    make_keys(tmp_path / "keys", ["a"])
    with pytest.raises(HoldfastError, match="keys are not overwritten"):
        make_keys(tmp_path / "keys", ["b"])


def test_certificates_verify_and_keys_are_private(tmp_path: Path) -> None:
    make_keys(tmp_path, ["north", "south"], ["moderator.example", "10.1.2.3"])
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(name.value) for name in names} == {
        "localhost", "127.0.0.1", "::1", "moderator.example", "10.1.2.3",
    }  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    for name in ("ca.key", "server.key", "north.key", "south.key"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    private = serialization.load_ssh_private_key((tmp_path / "north.key").read_bytes(), None)
    public = serialization.load_ssh_public_key((tmp_path / "north.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == public
    assert (tmp_path / "north.pub").read_bytes() != (tmp_path / "south.pub").read_bytes()


def test_the_command_line_writes_apps_and_keys(tmp_path: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(flower_app, ["new", str(tmp_path / "mine"), "--set", "rounds=3"])
    assert done.exit_code == 0, done.output
    file = tmp_path / "mine" / "app_mine" / "experiment.toml"
    assert load(file).rounds == 3
    assert runner.invoke(flower_app, ["fingerprint", str(file)]).output.strip() in done.output.replace("\n", "")
    done = runner.invoke(flower_app, ["keys", str(tmp_path / "keys"), "--name", "north", "--name", "south"])
    assert done.exit_code == 0, done.output
    assert "--name south" in done.output
    assert (tmp_path / "keys" / "south.key").exists()


def test_what_is_printed_can_be_pasted(tmp_path: Path) -> None:
    done = CliRunner().invoke(flower_app, ["new", str(tmp_path / "bad name!")])
    assert done.exit_code == 0, done.output
    [line] = [line for line in done.output.splitlines() if line.startswith("Try it out: ")]
    assert Path(shlex.split(line)[-1]).name == "experiment.toml"
    assert Path(shlex.split(line)[-1]).exists()
    done = CliRunner().invoke(flower_app, ["keys", str(tmp_path / "my keys"), "--sites", "1"])
    [line] = [line for line in done.output.splitlines() if "flwr supernode register" in line]
    assert Path(shlex.split(line)[3]).exists()


def test_a_site_without_keys_must_say_insecure(tmp_path: Path) -> None:
    done = CliRunner().invoke(flower_app, ["site", "north", "--superlink", "127.0.0.1:1", "--folder", str(tmp_path)])
    assert isinstance(done.exception, HoldfastError)
    assert "--insecure" in str(done.exception)


def test_ports_and_logs(tmp_path: Path) -> None:
    assert not listens(free_port())
    log = tmp_path / "log"
    log.write_text("Traceback\n  File x\n    Error\nholdfast.errors.HoldfastError: no site [x]: why\n\nfor more\n")
    assert last_line(log) == "no site [x]: why"
    log.write_text("Traceback\n  File x\nKeyError: 'a'\nfor more\n")
    assert last_line(log) == "KeyError: 'a'"
    log.write_text("start\n Error: no port\nfor more information\n")
    assert last_line(log) == "Error: no port"
    log.write_text("")
    assert last_line(log) == "it logged nothing"


class Dropped(Local):
    """A federation without processes: the moderator has ended, and Flower says this of its runs."""

    def __init__(self, folder: Path, statuses: list[str]) -> None:
        super().__init__(folder)
        self.statuses, self.begun = statuses, 0
        self.home.mkdir()
        self.log("moderator").write_text("httpx.ReadTimeout: timed out\n")

    def begin(self, app: Path, **settings: object) -> subprocess.Popen[bytes]:
        self.begun += 1
        self._begun = app, settings
        self.processes["moderator"] = subprocess.Popen(["true"])
        self.processes["moderator"].wait()
        return self.processes["moderator"]

    def flwr(self, *commands: list[str]) -> str:
        return json.dumps({"runs": [{"status": status} for status in self.statuses]})


def test_a_run_that_flower_dropped_is_begun_again_and_one_that_failed_is_not(tmp_path: Path) -> None:
    here = Dropped(tmp_path, ["finished:failed", "running"])
    here.begin(tmp_path / "app", out="run")
    assert here.goes_on(tmp_path / "run")
    assert here.begun == 1  # its log is no longer followed, but it plays: no second moderator beside it
    here.statuses = ["finished:failed"]
    assert [here.goes_on(tmp_path / "run") for _ in range(3)] == [True, True, False]
    assert here.begun == 3
    here._again = 2
    here.log("moderator").write_text("ServerApp raised an exception\nholdfast.errors.HoldfastError: No site joined\n")
    assert not here.goes_on(tmp_path / "run")
    assert here.begun == 3


def test_a_run_that_is_finished_is_over(tmp_path: Path) -> None:
    here = Dropped(tmp_path, [])
    here.begin(tmp_path / "app")
    (tmp_path / "model.safetensors").touch()
    assert not here.goes_on(tmp_path)


OWN = """
import torch
from own_width import WIDTH
from holdfast import Samples, Task


def task():
    labels = torch.arange(240) % 3
    points = torch.nn.functional.one_hot(labels, 4) + 0.1 * torch.randn(240, 4, generator=torch.manual_seed(0))
    return Task("own", Samples((points,), labels), Samples((points,), labels), tuple("abc"), model=network)


def network():
    return torch.nn.Sequential(torch.nn.Linear(4, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 3))
"""


@pytest.fixture
def own_study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "own_part.py").write_text(OWN)
    (folder / "own_width.py").write_text("WIDTH = 8\n")
    (folder / "e.toml").write_text(
        'task = "own_part:task"\nclients = 2\npartition = "iid"\nrounds = 2\nbatch_size = 8\nlr = 0.2\n'
    )
    return folder


def test_the_app_carries_the_users_own_modules(own_study: Path, tmp_path: Path) -> None:
    app = write_app(tmp_path / "carried", load(own_study / "e.toml"))
    assert (app / "app_carried" / "own_part.py").read_text() == OWN
    assert (app / "app_carried" / "own_width.py").exists()
    assert str(own_study) not in (app / "app_carried" / "experiment.toml").read_text()
    assert load(app / "app_carried" / "experiment.toml").modules == str(app / "app_carried")
    (own_study / "client_app.py").write_text("def task(): ...\n")
    with pytest.raises(HoldfastError, match=r"client_app.py is what the app calls a file of its own"):
        write_app(tmp_path / "clash", load(own_study / "e.toml", ["task=client_app:task"]))
    assert not (tmp_path / "clash").exists()
