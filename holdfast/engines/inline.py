"""Everything in the calling process: slower, and easy to step through with a debugger."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from holdfast.client import Client, perform
from holdfast.core import Absent, Message, Reply
from holdfast.files import Unwritable

log = logging.getLogger("holdfast")


class Inline:
    """A federation of clients in this process."""

    def __init__(self, clients: Mapping[int, Client]) -> None:
        self._clients = clients

    @property
    def clients(self) -> Sequence[int]:
        return sorted(self._clients)

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        return [self._ask(message) for message in messages]

    def close(self) -> None:
        pass

    def _ask(self, message: Message) -> Reply | Absent:
        try:
            return perform(self._clients[message.client], message)
        except Unwritable:  # the run's own disk: to go on without this client could not be resumed
            raise
        except Exception as error:
            log.debug("client %s failed in round %s", message.client, message.round, exc_info=True)
            reason = f"failed in job {message.job!r} of round {message.round + 1}: {type(error).__name__}: {error}"
            return Absent(message.client, reason)
