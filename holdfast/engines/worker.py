"""A worker process: it keeps its clients and performs what they are asked, one message after the other."""

from __future__ import annotations

import json
import signal
import traceback
from contextlib import suppress
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from holdfast.client import Client, perform
from holdfast.core import Message, Reply
from holdfast.engines.arena import Arena, Packer
from holdfast.experiment import from_table
from holdfast.plan import make_plan

ARENA, STOP = b"arena", b"stop"  # the two messages that are not JSON


def work(pipe: Connection, experiment: str, folder: Path | None, ids: list[int]) -> None:
    """Serve until told to stop, or until the moderator is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the moderator's to handle
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):
        try:
            clients = load(experiment, folder, ids)
        except Exception as error:
            pipe.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
            return
        pipe.send_bytes(json.dumps({"ready": ids}).encode())
        serve(pipe, clients)


def load(experiment: str, folder: Path | None, ids: list[int]) -> dict[int, Client]:
    """This worker's clients, with one workbench model for all of them."""
    plan = make_plan(from_table(json.loads(experiment)))
    model = plan.model()
    return {id: plan.client(id, model, folder) for id in ids}


def serve(pipe: Connection, clients: dict[int, Client]) -> None:
    inbox: Arena | None = None
    outbox = Outbox(pipe)
    while (raw := pipe.recv_bytes()) != STOP:
        if raw == ARENA:
            size = int(pipe.recv_bytes())
            inbox = Arena(reduction.recv_handle(pipe), size)
            continue
        assert inbox is not None
        for id, letter in json.loads(raw).items():
            tensors = inbox.get(letter["layout"], copy=False)
            message = Message(int(id), letter["round"], letter["job"], tensors, letter["scalars"])
            try:
                reply = perform(clients[message.client], message)
            except Exception as error:  # whatever a client's job raises is that client's absence
                outbox.send_error(error)
                continue
            outbox.send(reply)
        outbox.wait()


class Outbox:
    """Replies, one at a time in the arena: the next is written when the moderator has taken the last."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._arena: Arena | None = None
        self._taken = True

    def send(self, reply: Reply) -> None:
        packer = Packer()
        layout = packer.lay(reply.tensors)
        self.wait()
        if self._arena is None or packer.size > self._arena.size:
            if self._arena:
                self._arena.close()
            self._arena = Arena.create(packer.size)
            self._pipe.send_bytes(ARENA)
            self._pipe.send_bytes(str(self._arena.size).encode())
            reduction.send_handle(self._pipe, self._arena.handle, 0)
        packer.write(self._arena)
        letter = {"layout": layout, "scalars": reply.scalars, "seconds": reply.seconds}
        self._pipe.send_bytes(json.dumps(letter).encode())
        self._taken = False

    def send_error(self, error: Exception) -> None:
        self.wait()
        text = f"{type(error).__name__}: {error}"
        self._pipe.send_bytes(json.dumps({"error": text, "trace": traceback.format_exc()}).encode())

    def wait(self) -> None:
        if not self._taken:
            self._pipe.recv_bytes()
            self._taken = True
