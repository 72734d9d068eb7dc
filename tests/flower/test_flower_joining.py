"""What is checked before anything starts, and what a site's terminal says of its way to the SuperLink."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from engine_helpers import GENEROUS, environment, experiment, marked, wait_until
from flower_helpers import Spoilt, hostile, nodes, play
from rich.console import Console
from typer.testing import CliRunner

from holdfast.cli.flower import flower_app, follow
from holdfast.core.errors import HoldfastError
from holdfast.flower.deploy.joining import News
from holdfast.flower.deploy.keys import certificate, make_keys, new_key
from holdfast.flower.deploy.local import Local, free_port
from holdfast.flower.deploy.site import client_app
from holdfast.flower.engine.inprocess import InProcessGrid

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from holdfast.cli import main; main()", "flower"]


def refused(words: list[str]) -> str:
    done = CliRunner().invoke(flower_app, words)
    assert isinstance(done.exception, HoldfastError), (done.exception, done.output)
    return str(done.exception)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--name", "../x"], "'../x' cannot be a site's name"),
        (["--name", "a/b"], "'a/b' cannot be a site's name"),
        (["--name", ""], "'' cannot be a site's name"),
        (["--name", "a", "--name", "a"], "'a' is there twice"),
        (["--name", "ca"], "A site cannot be called 'ca'"),
        (["--sites", "0"], "at least one site"),
        (["--days", "0"], "1 to 36500 days, not for 0"),
        (["--days", "10000000"], "not for 10000000"),
        (["--host", "bad host name"], "'bad host name' is no name or address of a machine"),
        (["--host", "moderator.example:9092"], "without a port"),
    ],
)
def test_keys_that_make_no_sense_are_not_made(tmp_path: Path, words: list[str], sentence: str) -> None:
    assert sentence in refused(["keys", str(tmp_path / "keys"), *words])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"--superlink": "nonsense"}, "'nonsense' is not HOST:PORT"),
        ({"--superlink": "127.0.0.1:99999"}, "is not HOST:PORT"),
        ({"--superlink": "https://moderator.example:9092"}, "is not HOST:PORT"),
        ({"--key": "keys/ca.crt"}, "ca.crt is no site's private key"),
        ({"--key": "keys/ca.key"}, "ca.key is no site's private key"),
        ({"--key": "keys"}, "keys is no site's private key"),
        ({"--ca": "keys/north.key"}, "north.key is no certificate"),
        ({"--ca": "old.crt"}, "old.crt has run out on"),
    ],
)
def test_a_site_that_can_never_work_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_keys(Path("keys"), ["north"])
    key = new_key()
    old = certificate("old", key, "old", key, 0, ())  # it held for the last five minutes
    Path("old.crt").write_bytes(old.public_bytes(serialization.Encoding.PEM))
    given = {"--superlink": "127.0.0.1:1", "--folder": "here", "--ca": "keys/ca.crt", "--key": "keys/north.key"}
    assert sentence in refused(["site", "north", *(word for pair in {**given, **changes}.items() for word in pair)])
    assert not Path("here").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--half", "foo"], "half is 'foo'"),
        (["--enough", "9"], "enough is 9, but there are 3 sites"),
        (["--enough", "-1"], "enough is -1"),
    ],
)
def test_up_refuses_what_makes_no_sense_before_anything_is_up(tmp_path: Path, words: list[str], sentence: str) -> None:
    (tmp_path / "few.toml").write_text('task = "fashion-mini"\n')
    out = tmp_path / "try"
    assert sentence in refused(["up", str(tmp_path / "few.toml"), "--sites", "3", "--out", str(out), *words])
    assert not out.exists()


class Over(Local):
    """A federation whose run has ended."""

    def goes_on(self, out: Path) -> bool:
        return False


def test_up_closes_as_run_does(tmp_path: Path) -> None:
    wanted = experiment(clients=5, partition="iid", rounds=1)
    grid = InProcessGrid(Spoilt(client_app(wanted), hostile), nodes(tmp_path, 5))
    history = play(tmp_path, wanted, grid, max_bytes=100_000)
    said = Console(file=StringIO(), width=1000)
    follow(said, Over(tmp_path), wanted, tmp_path / "run")
    lines = said.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert any("client 0's update was refused: " in line for line in lines)
    assert "note client 0: refused 1 time" in lines
    assert lines[-2].startswith(f"fedavg under none: accuracy {history.final_accuracy:.1%} after 1 round in ")
    assert lines[-1] == f"Everything it wrote is in {tmp_path / 'run'}"


LOG = """
\x1b[92mINFO \x1b[0m:      Starting Flower SuperNode
\x1b[91mERROR \x1b[0m:     Exit Code: 305
Failed to initialize the connection to the SuperLink.
[code: 2004] Failed to activate SuperNode.

For more information, visit: <...>
INFO:     Shutting down
The SuperNode ended with code 1; it is started again.
"""


def test_the_news_of_a_site_are_said_once(tmp_path: Path) -> None:
    log = tmp_path / "site-0.log"
    log.write_text("SuperNode ID: 1\n")  # of an earlier try
    news = News(log, "site-0", "there:1")
    assert news.read() == []
    with open(log, "a") as file:
        file.write(LOG + LOG + "WARNING : Connection attempt fai")
        file.flush()
        [said] = news.read()
        assert "site-0: the SuperNode ended with code 1 and is started again." in said
        assert "Failed to activate SuperNode. Its key is not registered" in said
        assert said.endswith(f"Its log: {log}")
        file.write("led, retrying\nConnection attempt failed, retrying\nFlower's own way is used, seconds slower.\n")
        file.write("Connection successful\nSuperNode ID: 2\n")
        file.flush()
        away, slower, there = news.read()
    assert slower == "site-0: Flower's own way is used, seconds slower."
    assert "the SuperLink at there:1 cannot be reached; it keeps trying" in away
    assert there == "site-0 is at work: the SuperLink at there:1 has let it in."


def test_a_site_says_that_its_superlink_cannot_be_reached(tmp_path: Path, marker: str) -> None:
    link = f"127.0.0.1:{free_port()}"
    command = [*COMMAND, "site", "site-0", "--superlink", link, "--folder", str(tmp_path / "here"), "--insecure"]
    said = tmp_path / "said"
    with open(said, "wb") as file:
        site = subprocess.Popen(command, env=environment(marker), stdout=file, stderr=subprocess.STDOUT)
    wait_until(lambda: f"the SuperLink at {link} cannot be reached; it keeps trying" in said.read_text(), "it says so")
    site.send_signal(signal.SIGTERM)
    site.wait(GENEROUS)
    assert "is at work" not in said.read_text()
    assert not marked(marker)


def commands(page: str, program: str) -> list[list[str]]:
    """The arguments of each command line of a page that starts this program."""
    text = (ROOT / page).read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith(f"{program} ")]


def options(words: list[str]) -> dict[str, str]:
    """The options of a command line, each with what follows it."""
    return {a: b for a, b in pairwise([*words, ""]) if a.startswith("--")}


def known(program: str) -> set[str]:
    """The options that a program of Flower's says it has."""
    path = Path(sys.executable).parent / program
    said = subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z-]+", said))


def test_flower_understands_the_supernodes_of_the_pages_and_those_of_one_machine_have_ports_of_their_own() -> None:
    here = [options(words) for words in commands("examples/flower-quickstart/README.md", "flower-supernode")]
    assert [node["--node-config"] for node in here] == ["partition-id=0", "partition-id=1", "partition-id=2"]
    assert len({node["--port"] for node in here}) == 3
    [plain] = [options(words) for words in commands("docs/real-sites.md", "flower-supernode")]
    assert plain["--root-certificates"]
    assert plain["--auth-supernode-private-key"]
    assert known("flower-supernode") >= {*here[0], *plain}


@pytest.mark.parametrize("page", ["docs/real-sites.md", "examples/flower-quickstart/README.md"])
def test_each_page_that_starts_a_superlink_says_all_that_flwr_needs(page: str) -> None:
    [words] = commands(page, "flower-superlink")
    assert "--disable-runtime-dependency-installation" in words
    assert known("flower-superlink") >= {*options(words)}
    name = commands(page, "flwr run")[0][2]  # run APP NAME
    assert f"[superlink.{name}]" in (ROOT / page).read_text()
