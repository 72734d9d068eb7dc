"""A worker process: it keeps its clients and performs what they are asked, one message after the other."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import torch

from holdfast.client import Client, perform
from holdfast.core.failures import code_of, full_text
from holdfast.core.files import Unwritable
from holdfast.core.types import Message, Reply
from holdfast.engines.arena import Arena, Packer
from holdfast.learning.device import share_device
from holdfast.learning.loop import train
from holdfast.learning.objective import TaskLoss
from holdfast.models.networks import has_convolutions
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import from_table

ARENA, STOP = b"arena", b"stop"  # the two messages that are not JSON
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's names of what mallopt sets
SHELF, MOST = 8 * 2**20, 32  # bytes, and replies, that may wait in a worker's arena for the moderator to take them
KEPT = 64 * 2**20  # bytes: larger blocks go back to the system when they are freed


def work(pipe: Connection, experiment: str, folder: Path | None, ids: list[int], workers: int) -> None:
    """Serve until told to stop, or until the moderator is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the moderator's to handle
    Thread(target=end_with_moderator, daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()
    with suppress(EOFError, OSError):
        try:
            clients = load(experiment, folder, ids, workers)
        except Exception as error:
            pipe.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
            return
        pipe.send_bytes(json.dumps({"ready": ids}).encode())
        serve(pipe, clients)


def keep_freed_memory() -> None:
    """Let glibc reuse the memory of a batch for the next: page faults took up to a third of a convolution's step."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(MMAP_THRESHOLD, KEPT)
        library.mallopt(TRIM_THRESHOLD, 4 * KEPT)


def end_with_moderator() -> None:
    """End at once when the moderator is gone, also in the middle of a job: a resumed run must not meet old workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def load(experiment: str, folder: Path | None, ids: list[int], workers: int) -> dict[int, Client]:
    """This worker's clients, with one workbench model for all of them."""
    plan = make_plan(from_table(json.loads(experiment)))
    share_device(plan.device, workers)
    model = plan.model()
    clients = {id: plan.client(id, model, folder) for id in ids}
    if plan.layout != "plain" and has_convolutions(model):
        try_first_batch(clients[ids[0]])
    return clients


def try_first_batch(client: Client) -> None:
    """Train on one batch and forget it: if torch crashes on this layout, the worker dies before it says "ready"."""
    few = client.train.take(torch.arange(min(client.learning.batch_size, len(client.train))))
    with suppress(Exception), torch.random.fork_rng(devices=[]):  # what is merely raised, the first job tells
        once = replace(client.learning, epochs=1, local_steps=None)
        train(client.model, few, once, torch.Generator(), TaskLoss(client.loss))
    client.model.zero_grad()


def serve(pipe: Connection, clients: dict[int, Client]) -> None:
    inbox: Arena | None = None
    outbox = Outbox(pipe)
    while (raw := pipe.recv_bytes()) != STOP:
        if raw == ARENA:
            size = int(pipe.recv_bytes())
            if inbox is not None:
                inbox.close()
            inbox = Arena(reduction.recv_handle(pipe), size)
            continue
        assert inbox is not None
        for letter in json.loads(raw):
            tensors = inbox.get(letter["layout"], copy=False)
            message = Message(letter["client"], letter["round"], letter["job"], tensors, letter["scalars"])
            try:
                parcel = Parcel.of(perform(clients[message.client], message))
            except Unwritable as error:  # the run's own disk: to go on without this client could not be resumed
                outbox.send_words({"unwritable": str(error)})
            except Exception as error:  # whatever else a client's job raises is that client's absence
                outbox.send_words({"error": code_of(error), "trace": full_text(error)})
            else:
                outbox.send(parcel)
        outbox.wait()


@dataclass(frozen=True)
class Parcel:
    """A reply, ready to be sent: whatever cannot travel has been found out."""

    packer: Packer
    letter: bytes

    @classmethod
    def of(cls, reply: Reply) -> Parcel:
        packer = Packer()
        letter = {"layout": packer.lay(reply.tensors), "scalars": reply.scalars, "seconds": reply.seconds}
        return cls(packer, json.dumps(letter).encode())


class Outbox:
    """Replies in the arena, one behind the other; where there is no more room, the moderator has to take them first.

    Each is told in a letter of its own, at once: if the process dies at the next client, nothing of it is lost.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._arena: Arena | None = None
        self._used = 0  # bytes of the arena
        self._waiting = 0  # replies that the moderator has not taken

    def send(self, parcel: Parcel) -> None:
        size = parcel.packer.size
        if self._arena is None or self._used + size > self._arena.size or self._waiting == MOST:
            self.wait()
        if self._arena is None or size > self._arena.size:
            if self._arena:
                self._arena.close()
            self._arena = Arena.create(max(size, SHELF))
            self._pipe.send_bytes(ARENA)
            self._pipe.send_bytes(str(self._arena.size).encode())
            reduction.send_handle(self._pipe, self._arena.handle, 0)
        parcel.packer.write(self._arena, self._used)
        self._tell(parcel.letter)
        self._used += size
        self._waiting += 1

    def send_words(self, letter: dict[str, str]) -> None:
        self._tell(json.dumps(letter).encode())

    def wait(self) -> None:
        """Until the moderator has taken all replies; it says how many it has taken since it last said so."""
        while self._waiting:
            said = self._pipe.recv_bytes()
            if said == STOP:
                raise EOFError  # nobody takes them any more
            self._waiting -= int(said)
        self._used = 0

    def _tell(self, letter: bytes) -> None:
        """When the reply was ready, by the clock of this machine; where it lies; and what it says."""
        self._pipe.send_bytes(f"{time.monotonic()} {self._used}\n".encode() + letter)
