"""A moderator that writes its letters to one site by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Message as Packet

from holdfast.core.types import State, Tensors, pack
from holdfast.flower.deploy.policy import fingerprint_of
from holdfast.flower.deploy.site import client_app
from holdfast.flower.engine.codec import Letter, decode, encode
from holdfast.flower.engine.federation import OTHER, TYPES
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment


class Curious:
    """A moderator that writes its letters to one site by hand."""

    def __init__(self, folder: Path, wanted: Experiment, policy: str = "min_records = 0", **more: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "policy.toml").write_text(policy.format(fingerprint=fingerprint_of(wanted)))
        self.site = folder / "site-0"
        config = {"site": "site-0", "folder": str(self.site), "policy": str(folder / "policy.toml")}
        self.grid = InProcessGrid(client_app(wanted, **more), {100: config})
        self.experiment = fingerprint_of(wanted)
        self.state: State = make_plan(wanted).start()

    @property
    def model(self) -> Tensors:
        return pack(model=self.state.model, buffers=self.state.buffers)

    def ask(self, job: str, tensors: Tensors, scalars: Mapping[str, Any] | None = None, **more: Any) -> Letter:
        about = {"client": 0, "round": 0, "experiment": self.experiment, **more}
        letter = Letter(job=job, tensors=tensors, scalars=dict(scalars or {}), **about)
        packet = Packet(encode(letter), dst_node_id=100, message_type=TYPES.get(job, OTHER))
        [reply] = self.grid.send_and_receive([packet])
        return decode(reply.content)

    def train(self, **more: Any) -> Letter:
        scalars = {"accepted": -1, "lr": 0.05, "digest": False}
        return self.ask("train", self.model, scalars | more.pop("scalars", {}), **more)

    def test(self, changes: Mapping[int, Tensors], **more: Any) -> Letter:
        deltas = {f"delta/{client}": delta for client, delta in changes.items()}
        return self.ask("test", self.model | pack(**deltas), **more)

    def book(self) -> list[dict[str, Any]]:
        [path] = self.site.glob("*/book.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]
