"""What the tests of the Flower engine share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from engine_helpers import pictures
from flwr.app import Message as Packet
from flwr.clientapp import ClientApp
from torch import nn

from holdfast.engines.flower.codec import decode, encode
from holdfast.engines.flower.inprocess import InProcessGrid
from holdfast.engines.flower.moderator import play_over
from holdfast.engines.flower.site import client_app
from holdfast.experiment import Experiment
from holdfast.runs import History
from holdfast.tasks import Task


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.001)


def nodes(folder: Path, count: int, **more: Any) -> dict[int, dict[str, Any]]:
    """Node configs of so many sites."""
    return {100 + i: {"partition-id": i, "folder": str(folder / f"site-{i}"), **more} for i in range(count)}


def in_process(folder: Path, experiment: Experiment, **changes: Any) -> InProcessGrid:
    """The experiment's sites as nodes of an in-process grid."""
    return InProcessGrid(client_app(experiment), nodes(folder, experiment.clients, **changes))


def play(folder: Path, experiment: Experiment, grid: InProcessGrid | None = None, **settings: Any) -> History:
    chosen = {"out": str(folder / "run"), **{key.replace("_", "-"): value for key, value in settings.items()}}
    return play_over(grid or in_process(folder, experiment), experiment, chosen)


def spoil(app: ClientApp, change: Callable[[Any, Any], Any]) -> ClientApp:
    """An app whose replies pass through change(packet, reply)."""
    return lambda packet, context: change(packet, app(packet, context))  # type: ignore[return-value]


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
