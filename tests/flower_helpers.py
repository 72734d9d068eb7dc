"""What the tests of the Flower engine share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp

from holdfast.engines.flower.inprocess import InProcessGrid
from holdfast.engines.flower.moderator import play_over
from holdfast.engines.flower.site import client_app
from holdfast.experiment import Experiment
from holdfast.runs import History


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
