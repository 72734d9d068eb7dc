"""Takes replies from Flower's grid, each in a thread of its own.

A site that hangs in the middle of its upload would hold up whoever takes its reply, for minutes, and every other reply
that was taken in the same call. So each is taken by itself, and a round's deadline holds whatever a site does.
"""

from __future__ import annotations

from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Thread

from flwr.app import Message as Packet
from flwr.serverapp import Grid


class Puller:
    """Looks for replies without waiting for any of them."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._busy: set[str] = set()
        self._done: SimpleQueue[tuple[str, list[Packet] | Exception]] = SimpleQueue()

    def pull(self, numbers: Sequence[str]) -> list[Packet]:
        """Replies to these messages, as far as they have arrived since the last look; and look for the others."""
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
                Thread(target=self._take, args=(number,), daemon=True).start()
        return packets

    def _take(self, number: str) -> None:
        try:
            self._done.put((number, list(self._grid.pull_messages([number]))))
        except Exception as error:  # raised again in the thread that asks
            self._done.put((number, error))

    def _finished(self) -> list[tuple[str, list[Packet] | Exception]]:
        finished = []
        while True:
            try:
                finished.append(self._done.get_nowait())
            except Empty:
                return finished
