"""The heads of sites' ledgers (privacy/chain.py) that the moderator has seen: kept with the run, returned to them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from flwr.app import ConfigRecord
from flwr.app import Message as Packet

from holdfast.core.files import write_file
from holdfast.core.tables import read_table

HEADS = "heads.json"


class Heads:
    """The last head of each site; none of one that has no ledger."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: dict[str, str] = read_table(path) if path and path.exists() else {}
        self._new = False

    def of(self, client: int) -> str:
        return str(self._seen.get(str(client), ""))

    def saw(self, client: int, packet: Packet) -> None:
        """Take the head from a reply that was read as one."""
        words = packet.content.get("words")
        head = words.get("head") if isinstance(words, ConfigRecord) else None
        if isinstance(head, str) and re.fullmatch("[0-9a-f]{64}", head) and head != self.of(client):
            self._seen[str(client)], self._new = head, True

    def keep(self) -> None:
        """Write down what is new."""
        if self._new and self._path is not None:
            write_file(self._path, json.dumps(self._seen, indent=1).encode())
            self._new = False
