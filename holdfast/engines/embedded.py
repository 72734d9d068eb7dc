"""The embedded engine: clients in worker processes on this machine, one thread each, as many as there are cores.

A client's data stay in its worker. Weights go through shared memory (`arena.py`); the rest is JSON over a pipe.
A worker handles one message after the other: it computes while the moderator takes its last replies out of the arena.
"""

from __future__ import annotations

import heapq
import json
import logging
import multiprocessing.connection
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.core.failures import absence, write_down
from holdfast.core.types import LARGE, Absent, Message, Reply
from holdfast.engines.arena import Arena, Packer
from holdfast.engines.forking import forking
from holdfast.engines.worker import ARENA, STOP, work
from holdfast.runs.experiment import Experiment

log = logging.getLogger("holdfast")
CRASHES = [-number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)]


TOGETHER = 4  # small replies


class Crashed(HoldfastError):
    """A worker process died of its own computation before it was ready."""


@dataclass(frozen=True)
class Asked:
    """A message, its place among those asked together, and how it is told to a worker."""

    place: int
    message: Message
    letter: dict[str, Any]


@dataclass
class Worker:
    """A worker process as the moderator sees it."""

    clients: list[int]
    process: BaseProcess
    pipe: Connection
    knows_arena: bool = False
    replies: Arena | None = None
    pending: list[Asked] = field(default_factory=list)  # what it has not answered yet; it is at the first
    since: float = 0.0  # when it took up that first one
    took: float = 0.0  # seconds, for its last reply
    lent: int = 0  # replies that lie in its arena and are read, or being read


class Embedded:
    """A federation of worker processes."""

    def __init__(self, experiment: Experiment, sizes: Sequence[int], folder: Path | None, workers: int) -> None:
        if sys.platform == "win32":
            raise HoldfastError("Worker processes need Linux or macOS; set workers = 0.")
        self._experiment = json.dumps(experiment.as_json())
        self._patience = experiment.patience
        self._folder = folder
        self._clients = range(len(sizes))
        self._context = forking()
        self._arena = Arena.create(1)
        self._workers: list[Worker] = []
        shares = share_out(sizes, workers)
        self._count = len(shares)
        try:
            for clients in shares:
                self._workers.append(self._start(clients))
            for worker in self._workers:
                self._greet(worker)
        except BaseException:  # Ctrl-C too: nobody else knows of the workers yet
            self.close()
            raise

    @property
    def clients(self) -> Sequence[int]:
        return self._clients

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        self._post(messages)
        answers: dict[int, Reply | Absent] = {}
        while waiting := [worker for worker in self._workers if worker.pending]:
            answers |= self._hear(waiting)
        return [answers[place] for place in range(len(messages))]

    def each(self, messages: Sequence[Message]) -> Iterator[Reply | Absent]:
        """The tensors of a reply lie in the arena of its worker, which waits with its next one until this is taken."""
        self._post(messages)
        answers: dict[int, Reply | Absent] = {}
        for place, message in enumerate(messages):
            while place not in answers:
                worker = next(worker for worker in self._workers if message.client in worker.clients)
                answers |= self._hear([worker], copy=False)
            try:
                yield answers.pop(place)
            finally:
                self._give_back(worker)

    def _post(self, messages: Sequence[Message]) -> None:
        packer = Packer()
        asked = [Asked(place, m, letter_of(m, packer)) for place, m in enumerate(messages)]
        self._make_room(packer.size)
        packer.write(self._arena)
        if packer.size >= LARGE:
            self._arena.let_go()
        for worker in self._workers:
            own = set(worker.clients)
            self._send(worker, [one for one in asked if one.message.client in own])

    def _hear(self, waiting: Sequence[Worker], copy: bool = True) -> dict[int, Reply | Absent]:
        """What the first of these workers to say something say; one with which patience has ended is absent."""
        ready = multiprocessing.connection.wait([w.pipe for w in waiting], self._time_left(waiting))
        answers: dict[int, Reply | Absent] = {}
        if copy:
            time.sleep(gathering(waiting))
        for worker in waiting:
            if worker.pipe in ready:
                answers |= self._receive(worker, copy)
                while copy and not worker.pipe.closed and worker.pending and worker.pipe.poll():
                    answers |= self._receive(worker, copy)
                if copy:
                    self._give_back(worker)
            elif self._time_left([worker]) == 0:
                worker.process.kill()
                answers |= self._bury(worker, f"no answer within {self._patience:g} s: its process was ended")
        return answers

    def _time_left(self, workers: Sequence[Worker]) -> float | None:
        """Seconds until the patience with one of these workers ends; none: it has no end."""
        if self._patience is None:
            return None
        return max(0.0, min(worker.since for worker in workers) + self._patience - time.monotonic())

    def close(self) -> None:
        """End the workers; one that is busy is not waited for."""
        for worker in self._workers:
            with suppress(OSError):
                worker.pipe.send_bytes(STOP)
        patience = time.monotonic() + 0.5  # for all of them together
        for worker in self._workers:
            end(worker, max(0.0, patience - time.monotonic()))
            worker.pipe.close()
            if worker.replies:
                worker.replies.close()
        self._workers = []
        self._arena.close()

    def _start(self, clients: list[int]) -> Worker:
        ours, theirs = self._context.Pipe()
        arguments = (theirs, self._experiment, self._folder, clients, self._count)
        process = self._context.Process(target=work, args=arguments, name=f"holdfast-worker-{clients[0]}", daemon=True)
        with nullcontext() if "__main__:" in self._experiment else without_script():
            process.start()
        theirs.close()
        return Worker(clients, process, ours)

    def _greet(self, worker: Worker) -> None:
        """Wait until the worker has loaded its clients."""
        try:
            hello = json.loads(worker.pipe.recv_bytes())
        except (EOFError, OSError):
            end(worker, 0.5)
            if worker.process.exitcode in CRASHES:
                raise Crashed(
                    f"A worker process crashed at its first batch ({ending(worker)}); if the model is your own, look "
                    "at it with workers = 0."
                ) from None
            raise HoldfastError(
                f"A worker process ended at its start ({ending(worker)}); set workers = 0 to find out why. (A script "
                'whose own objects the experiment names must start it under `if __name__ == "__main__":`.)'
            ) from None
        if "error" in hello:
            raise HoldfastError(f"A worker process could not load its clients: {hello['error']}")

    def _make_room(self, size: int) -> None:
        if size > self._arena.size:
            self._arena.close()
            self._arena = Arena.create(size + size // 4)
            for worker in self._workers:
                worker.knows_arena = False

    def _send(self, worker: Worker, asked: list[Asked]) -> None:
        worker.pending, worker.since = asked, time.monotonic()
        if not asked:
            return
        try:
            if not worker.knows_arena:
                worker.pipe.send_bytes(ARENA)
                worker.pipe.send_bytes(str(self._arena.size).encode())
                reduction.send_handle(worker.pipe, self._arena.handle, worker.process.pid)
                worker.knows_arena = True
            worker.pipe.send_bytes(json.dumps([one.letter for one in asked]).encode())
        except OSError:
            pass  # the worker is dead: reading from it will say so

    def _receive(self, worker: Worker, copy: bool) -> dict[int, Reply | Absent]:
        try:
            raw = worker.pipe.recv_bytes()
            if raw == ARENA:
                size = int(worker.pipe.recv_bytes())
                handle = reduction.recv_handle(worker.pipe)
                if worker.replies:
                    worker.replies.close()
                worker.replies = Arena(handle, size)
                return {}
        except (EOFError, OSError):
            return self._bury(worker)
        head, _, said = raw.partition(b"\n")
        letter, ready, begin = json.loads(said), float(head.split()[0]), int(head.split()[1])
        if "unwritable" in letter:
            raise HoldfastError(letter["unwritable"])
        first = worker.pending.pop(0)
        place, message, worker.took, worker.since = first.place, first.message, ready - worker.since, ready
        if "error" in letter:
            write_down(self._folder, message, letter["trace"])
            return {place: absence(message, letter["error"])}
        tensors = worker.replies.get(letter["layout"], copy, begin) if worker.replies else {}
        worker.lent += 1
        return {place: Reply(message.client, tensors, letter["scalars"], letter["seconds"], worker.took)}

    def _give_back(self, worker: Worker) -> None:
        """The replies of the worker that were read are taken: it may use their place again."""
        if worker.lent:
            if worker.replies and worker.replies.size >= LARGE:
                worker.replies.let_go()
            with suppress(OSError):
                worker.pipe.send_bytes(str(worker.lent).encode())
            worker.lent = 0

    def _bury(self, worker: Worker, reason: str | None = None) -> dict[int, Reply | Absent]:
        """A worker died or hangs: the client it was at is absent, and a new worker is asked the rest."""
        end(worker, 0.5)
        reason = reason or f"its worker process died ({ending(worker)})"
        at, *rest = worker.pending
        log.warning("Client %s: %s. A new worker takes its place.", at.message.client, reason)
        worker.pipe.close()
        if worker.replies:
            worker.replies.close()
        fresh = self._start(worker.clients)
        self._workers[self._workers.index(worker)] = fresh
        self._greet(fresh)
        self._send(fresh, rest)
        return {at.place: Absent(at.message.client, reason)}


def letter_of(message: Message, packer: Packer) -> dict[str, Any]:
    """A message as JSON can say it; its tensors are laid into the arena."""
    layout = packer.lay(message.tensors)
    return {
        "client": message.client,
        "round": message.round,
        "job": message.job,
        "scalars": message.scalars,
        "layout": layout,
    }


def gathering(workers: Sequence[Worker]) -> float:
    """Seconds in which small replies gather, so that the moderator does not take a core from a worker for each of them:
    what a worker takes for four, at most 5 ms; none where one of them is almost done."""
    if any(len(worker.pending) < 2 * TOGETHER for worker in workers):
        return 0.0
    return min(0.005, TOGETHER * min(worker.took for worker in workers))


@contextmanager
def without_script() -> Iterator[None]:
    """Keep a new process from importing the user's script: where that has no main guard, it would run once more."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def share_out(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Clients for each worker: the largest first, each to the worker with the least to do.

    >>> share_out([34, 24, 24, 18], 2)
    [[0, 3], [1, 2]]
    """
    loads: list[tuple[int, int, list[int]]] = [(0, w, []) for w in range(min(workers, len(sizes)))]
    for client in sorted(range(len(sizes)), key=lambda c: -sizes[c]):
        load, w, clients = heapq.heappop(loads)
        heapq.heappush(loads, (load + sizes[client], w, [*clients, client]))
    return [sorted(clients) for _, _, clients in sorted(loads, key=lambda item: item[1])]


def end(worker: Worker, patience: float) -> None:
    """Wait a little for a worker to end by itself, then end it."""
    worker.process.join(timeout=patience)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()


def ending(worker: Worker) -> str:
    code = worker.process.exitcode
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
