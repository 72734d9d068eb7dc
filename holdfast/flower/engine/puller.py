"""Takes replies from Flower's grid, each in a thread of its own.

A site that hangs in the middle of its upload would hold up whoever takes its reply, for minutes, and every other reply
that was taken in the same call. So each is taken by itself, and a round's deadline holds whatever a site does.

Large replies are taken one after the other: Flower needs three times the size of one to put it together. A look that
takes longer than PATIENCE loses its turn to the next, and who waits for its turn is not late for that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Condition, Thread

from flwr.app import Message as Packet
from flwr.serverapp import Grid

PATIENCE = 60.0  # seconds


class Turn:
    """Held by one at a time, until it is given back or patience has ended."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._free = Condition()
        self._holder: str | None = None
        self._since = 0.0  # when the holder took it
        self._waiting = 0
        self._queued, self._noted = 0.0, time.monotonic()

    def take(self, who: str) -> None:
        with self._free:
            self._wait(1)
            while self._holder is not None and (left := self._since + self._patience - time.monotonic()) > 0:
                self._free.wait(left)
            self._wait(-1)
            self._holder, self._since = who, time.monotonic()

    def give_back(self, who: str) -> None:
        with self._free:
            if self._holder == who:
                self._holder = None
                self._free.notify()

    def queued(self) -> float:
        """Seconds since this was last asked in which somebody waited for a turn."""
        with self._free:
            self._wait(0)
            queued, self._queued = self._queued, 0.0
            return queued

    def _wait(self, more: int) -> None:
        now = time.monotonic()
        self._queued += now - self._noted if self._waiting else 0.0
        self._noted = now
        self._waiting += more


class Puller:
    """Looks for replies without waiting for any of them."""

    def __init__(self, grid: Grid, patience: float = PATIENCE) -> None:
        self._grid = grid
        self._busy: set[str] = set()
        self._done: SimpleQueue[tuple[str, list[Packet] | Exception]] = SimpleQueue()
        self.turn = Turn(patience)

    def pull(self, numbers: Sequence[str], in_turn: bool = False) -> list[Packet]:
        """Replies to these messages, as far as they have arrived since the last look; and look for the others.

        in_turn: one after the other; the next is taken when `turn` is given back for the reply before.
        """
        packets = []
        for number, found in self._finished():
            self._busy.discard(number)
            if isinstance(found, Exception):
                raise found
            packets += found
        arrived = {packet.metadata.reply_to_message_id for packet in packets}
        for number in numbers:
            if number not in self._busy and number not in arrived:
                self._busy.add(number)
                Thread(target=self._take, args=(number, in_turn), daemon=True).start()
        return packets

    def _take(self, number: str, in_turn: bool) -> None:
        if in_turn:
            self.turn.take(number)
        try:
            found = list(self._grid.pull_messages([number]))
            if not found:
                self.turn.give_back(number)
            self._done.put((number, found))
        except Exception as error:  # raised again in the thread that asks
            self.turn.give_back(number)
            self._done.put((number, error))

    def _finished(self) -> list[tuple[str, list[Packet] | Exception]]:
        finished = []
        while True:
            try:
                finished.append(self._done.get_nowait())
            except Empty:
                return finished
