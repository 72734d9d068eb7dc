"""Everything in the calling process: slower, and easy to step through with a debugger."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.client import Client, perform
from holdfast.core.failures import absence, code_of, full_text, write_down
from holdfast.core.files import Unwritable
from holdfast.core.types import Absent, Message, Reply


class Inline:
    """A federation of clients in this process."""

    def __init__(self, clients: Mapping[int, Client], folder: Path | None = None) -> None:
        self._clients, self._folder = clients, folder

    @property
    def clients(self) -> Sequence[int]:
        return sorted(self._clients)

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        return [self._ask(message) for message in messages]

    def each(self, messages: Sequence[Message]) -> Iterator[Reply | Absent]:
        return map(self._ask, messages)

    def close(self) -> None:
        pass

    def _ask(self, message: Message) -> Reply | Absent:
        start = time.perf_counter()
        try:
            reply = perform(self._clients[message.client], message)
            return replace(reply, took=time.perf_counter() - start)
        except Unwritable:  # the run's own disk: to go on without this client could not be resumed
            raise
        except Exception as error:
            write_down(self._folder, message, full_text(error))
            return absence(message, code_of(error))
