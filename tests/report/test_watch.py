"""The live page: on this machine only, pushed as a real run goes on, over when the run is."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import typer
from browser import browser, complaints, need_browser
from report_helpers import judged, make_run
from typer.testing import CliRunner

from holdfast.cli.reporting import watch
from holdfast.core.errors import HoldfastError
from holdfast.core.files import append_line
from holdfast.play import run
from holdfast.report.watch import Folder, has_stopped, serve, wait_until_finished
from holdfast.runs.experiment import from_table
from holdfast.runs.records import record_to_json


def events(address: str, most: int) -> list[tuple[str, str]]:
    """The first events of the stream, fewer if it ends."""
    found: list[tuple[str, str]] = []
    kind = ""
    with urllib.request.urlopen(f"{address}events", timeout=20) as stream:
        for raw in stream:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((kind, line.removeprefix("data: ")))
                if len(found) == most:
                    break
    return found


def test_a_new_round_is_pushed_and_the_end_is_told(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [judged(1, 0.25)], finished=False)
    seen: list[tuple[str, str]] = []
    with serve(folder, open_browser=False) as address:
        listener = threading.Thread(target=lambda: seen.extend(events(address, 99)))
        listener.start()
        wait_for(lambda: len(seen) == 0 and Folder(folder).mark())
        time.sleep(0.5)
        append_line(folder / "rounds.jsonl", record_to_json(judged(2, 0.75)))
        time.sleep(0.7)
    listener.join(5)
    assert [kind for kind, _ in seen] == ["payload", "payload", "end"]
    assert [json.loads(text)["runs"][0]["values"] for _, text in seen[:2]] == [[0.25], [0.25, 0.75]]


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def test_a_finished_run_ends_its_stream(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [judged(1, 0.5)])
    with serve(folder, open_browser=False) as address:
        assert [kind for kind, _ in events(address, 99)] == ["payload", "end"]
    wait_until_finished(folder)  # returns


def test_a_comparison_ends_with_its_results(tmp_path: Path) -> None:
    make_run(tmp_path / "one", [judged(1, 0.5)])
    assert not Folder(tmp_path).finished()
    (tmp_path / "results.json").write_text("{}")
    assert Folder(tmp_path).finished()


def test_a_run_whose_process_is_gone_has_stopped(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [judged(1, 0.5)], finished=False)
    rounds = folder / "rounds.jsonl"
    assert not has_stopped(folder), "a round has just come"
    os.utime(rounds, (0, 0))
    assert not has_stopped(folder), "this process, which began it, is there"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    append_line(folder / "environment.jsonl", {"pid": gone.pid})
    assert has_stopped(folder)
    assert Folder(folder).payload()["runs"][0]["stopped"]


def test_the_watch_command_ends_with_the_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [judged(1, 0.5)], finished=False)
    app = typer.Typer()
    app.command()(watch)
    threading.Timer(0.8, lambda: (folder / "model.safetensors").write_bytes(b"")).start()
    result = CliRunner().invoke(app, [str(folder), "--no-browser"])
    assert result.exit_code == 0
    assert "http://127.0.0.1:" in result.output
    assert "The run is finished" in result.output


def test_the_page_comes_before_the_run_begins(tmp_path: Path) -> None:
    with serve(tmp_path / "later", open_browser=False) as address:
        with urllib.request.urlopen(address) as answer:
            text = answer.read().decode()
        assert "connect-src 'self'" in text
        first = events(address, 1)
    assert json.loads(first[0][1]) == {"headline": [], "runs": [], "live": True}


def test_only_this_machine_and_only_the_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [judged(1, 0.5)], finished=False)
    with serve(folder, open_browser=False) as address:
        assert address.startswith("http://127.0.0.1:")
        for path in ("experiment.json", "../run/experiment.json", "events/"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(address + path)
        port = int(address.rstrip("/").rsplit(":", 1)[1])
        for host, status in ((f"evil.example:{port}", 403), (f"localhost:{port}", 200)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/", headers={"Host": host})
            assert connection.getresponse().status == status
            connection.close()
        with pytest.raises(HoldfastError, match=f"port {port}"), serve(folder, False, port):
            pass
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=2)


def test_connections_are_few_and_not_kept_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.report.serving.MOST", 3)
    monkeypatch.setattr("holdfast.report.watch.Handler.timeout", 1.0)
    folder = make_run(tmp_path / "run", [judged(1, 0.5)], finished=False)
    with serve(folder, open_browser=False) as address, ExitStack() as stack:
        port = int(address.rstrip("/").rsplit(":", 1)[1])
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)) for _ in range(4)]
        assert silent[3].recv(1) == b""  # one too many: turned away
        assert [one.recv(1) for one in silent[:3]] == [b""] * 3  # nothing asked in time: hung up
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert answer.status == 200
        monkeypatch.setattr("holdfast.report.watch.Handler.timeout", 60.0)  # on a loaded machine a second is short
        with socket.create_connection(("127.0.0.1", port), timeout=60) as endless:
            endless.sendall(b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n")
            assert b"414" in endless.recv(100)


def test_a_damaged_folder_is_said_not_hidden(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [judged(1, 0.5)], finished=False)
    (folder / "experiment.json").write_text("{}")
    with serve(folder, open_browser=False) as address:
        kind, text = events(address, 1)[0]
    assert kind == "trouble"
    assert "experiment.json is damaged" in json.loads(text)


def test_the_page_follows_a_real_run(tmp_path: Path) -> None:
    """Served before the run begins, as `holdfast run --watch` does; the browser sees its rounds come, and its end."""
    need_browser()
    folder = tmp_path / "run"
    experiment = from_table({"rounds": 9, "model": "linear", "workers": 0, "scenario": "sequential"})
    learner = threading.Thread(target=lambda: run(experiment, folder, lambda record: time.sleep(0.4)))
    seen: list[int] = []
    with browser(tmp_path / "profile") as driver, serve(folder, open_browser=False) as address:
        driver.get(address)
        assert (
            driver.execute_script("return document.querySelector('h1').textContent") == "Waiting for the first round."
        )
        learner.start()

        def over() -> bool:
            rounds = int(driver.execute_script("return runs.length ? runs[0].rounds.length : 0"))
            seen.extend([rounds] if rounds not in seen else [])
            return str(driver.execute_script("return document.getElementById('status').textContent")) == "finished"

        wait_for(over, 60)
        learner.join()
        assert seen[-1] == 9
        assert len([rounds for rounds in seen if 0 < rounds < 9]) >= 3
        assert driver.execute_script("return document.querySelectorAll('#metric-plot path.line').length") == 1
        assert driver.execute_script("return runs[0].scenario") == "sequential"
        assert complaints(driver) == []
