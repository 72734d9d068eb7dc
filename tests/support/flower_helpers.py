"""What the tests of the Flower engine share."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from engine_helpers import pictures
from flwr.app import Context
from flwr.app import Message as Packet
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from holdfast.core.types import Message
from holdfast.data.task import Task
from holdfast.flower.deploy.site import client_app
from holdfast.flower.engine.codec import decode, encode
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.flower.engine.moderator import engine_over, play_over, read_settings
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment, load
from holdfast.runs.history import History


class Clock:
    """Time that passes only when somebody sleeps; what is to happen at some time happens then."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[tuple[float, Callable[[], object]]] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.001)
        due = [event for event in self.events if event[0] <= self.now]
        self.events = [event for event in self.events if event[0] > self.now]
        for _, happen in due:
            happen()


def nodes(folder: Path, count: int, **more: Any) -> dict[int, dict[str, Any]]:
    """Node configs of so many sites; the tasks of tests are small."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rehearsal.toml").write_text("min_records = 0\n")
    more = {"policy": str(folder / "rehearsal.toml"), **more}
    return {100 + i: {"partition-id": i, "folder": str(folder / f"site-{i}"), **more} for i in range(count)}


def in_process(folder: Path, experiment: Experiment, **changes: Any) -> InProcessGrid:
    """The experiment's sites as nodes of an in-process grid."""
    return InProcessGrid(client_app(experiment), nodes(folder, experiment.clients, **changes))


def play(folder: Path, experiment: Experiment, grid: InProcessGrid | None = None, **settings: Any) -> History:
    chosen = {"out": str(folder / "run"), **{key.replace("_", "-"): value for key, value in settings.items()}}
    return play_over(grid or in_process(folder, experiment), experiment, chosen)


class Spoilt(ClientApp):
    """An app whose replies pass through change(packet, reply)."""

    def __init__(self, app: ClientApp, change: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._app, self._change = app, change

    def __call__(self, packet: Packet, context: Context) -> Packet:
        return self._change(packet, self._app(packet, context))  # type: ignore[no-any-return]


def nosy(file: Path) -> ServerApp:
    """A moderator that plays, then asks for a job that nobody knows, and writes down what it hears."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = read_settings(context.run_config)
        wanted, out = load(file), Path(settings["out"])
        play_over(grid, wanted, settings)
        federation = engine_over(grid, settings)(make_plan(wanted), None)
        answers = federation.ask([Message(client, 9, "tell me everything") for client in range(wanted.clients)])
        (out / "heard.json").write_text(json.dumps([answer.reason for answer in answers]))  # type: ignore[union-attr]

    return app


class Gate:
    """Stands between a site and its SuperLink; once shut, the next upload stops in the middle, and waits there."""

    SURELY_AN_UPLOAD = 1 << 15  # bytes up with none down in between: other requests have far fewer

    def __init__(self, port: int) -> None:
        self.shut, self.held = threading.Event(), threading.Event()
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            theirs, _ = self._server.accept()
            with suppress(OSError):  # the SuperLink is down: the site hangs up
                ours = socket.create_connection(("127.0.0.1", self._port))
                burst = [0]
                threading.Thread(target=self._up, args=(theirs, ours, burst), daemon=True).start()
                threading.Thread(target=self._down, args=(ours, theirs, burst), daemon=True).start()

    def _up(self, site: socket.socket, link: socket.socket, burst: list[int]) -> None:
        with suppress(OSError), closing(link):
            while data := site.recv(1 << 12):
                burst[0] += len(data)
                if self.shut.is_set() and burst[0] > self.SURELY_AN_UPLOAD:
                    self.held.set()
                else:
                    link.sendall(data)

    def _down(self, link: socket.socket, site: socket.socket, burst: list[int]) -> None:
        with suppress(OSError), closing(site):
            while data := link.recv(1 << 16):
                burst[0] = 0
                site.sendall(data)


def unhurried_loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Each step of training leaves a file `training-PID` where HOLDFAST_TRAINING says, and takes a while."""
    if torch.is_grad_enabled():
        Path(os.environ["HOLDFAST_TRAINING"], f"training-{os.getpid()}").touch()
        time.sleep(0.3)
    return nn.functional.cross_entropy(output, labels)


def unhurried() -> Task:
    """Pictures that are trained on slowly enough to be killed in the middle."""
    return replace(pictures(), loss=unhurried_loss)


def hostile(packet: Any, reply: Any) -> Any:
    """What four ill-behaved sites answer to `train`: not a number, wrong shapes, far too much, another question's."""
    if packet.metadata.message_type != "train.job":
        return reply
    letter = decode(reply.content)
    tensors = dict(letter.tensors)
    name = next(key for key in tensors if key.startswith("delta/"))
    if letter.client == 0:
        tensors[name] = tensors[name] * float("nan")
    elif letter.client == 1:
        tensors[name] = torch.zeros(3, 5)
    elif letter.client == 2:
        tensors["extra/giant"] = torch.zeros(1_000_000)
    else:
        letter = replace(letter, round=letter.round - 1)
    return Packet(encode(replace(letter, tensors=tensors)), reply_to=packet)
