"""Which node of Flower's speaks for which client.

With keys, the moderator has registered each key under a site's name, and Flower vouches for it. Without keys a node
says itself which site it is, and shows a token that it drew once and keeps on its disk: the first to claim a site owns
it, a node that returns shows the same token, and another node with another token is refused. The bonds are written down
in the run folder, so they also hold for a moderator that was restarted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from holdfast.core.errors import HoldfastError, brief, plain
from holdfast.core.files import write_file
from holdfast.core.tables import read_table


class Sites:
    """The sites of a run, and the nodes that speak for them."""

    def __init__(self, names: Sequence[str], bonds: Path | None = None) -> None:
        check_unique(names)
        self._names = list(names)
        self._bonds = bonds
        self._tokens: dict[str, str] = read_table(bonds) if bonds and bonds.exists() else {}
        self._nodes: dict[int, int] = {}  # client -> node
        self._by_key: set[str] = set()  # sites whose node Flower vouches for
        self.refused: dict[int, str] = {}  # node -> why

    def node_of(self, client: int) -> int | None:
        return self._nodes.get(client)

    def knows(self, node: int) -> bool:
        """Whether the node has been given a site, or been refused one."""
        return node in self._nodes.values() or node in self.refused

    def name_of(self, client: int) -> str:
        return self._names[client]

    @property
    def connected(self) -> dict[str, bool]:
        """Each site's name, and whether a node speaks for it."""
        return {name: client in self._nodes for client, name in enumerate(self._names)}

    @property
    def missing(self) -> list[str]:
        return [name for client, name in enumerate(self._names) if client not in self._nodes]

    def registered(self, node: int, name: str) -> None:
        """A node whose key the moderator registered under this name."""
        if name in self._names:
            self._by_key.add(name)
            self._nodes[self._names.index(name)] = node
        else:
            self.refused[node] = f"its key is registered for {name!r}, which is no site of this run"

    def claim(self, node: int, name: object, token: object) -> None:
        """A node without a registered name says which site it is."""
        if not isinstance(name, str) or not isinstance(token, str) or not token.isascii():
            self.refused[node] = "it does not say, in plain words, which site it is"
            return
        if name not in self._names:
            known = plain(", ".join(self._names))
            self.refused[node] = f"it claims to be {brief(name)}, which is no site of this run ({known})"
            return
        if name in self._by_key:
            self.refused[node] = f"it claims to be {name!r}, but the key of {name!r} is another node's"
            return
        seal = hashlib.sha256(token.encode()).hexdigest()
        if self._tokens.setdefault(name, seal) != seal:
            self.refused[node] = f"it claims to be {name!r}, which another node was first to claim"
            return
        if self._bonds is not None:
            write_file(self._bonds, json.dumps(self._tokens, indent=1).encode())
        self._nodes[self._names.index(name)] = node

    def forget(self, node: int) -> None:
        """The node is gone from Flower's list; should it come back, it is looked at anew."""
        self._nodes = {client: other for client, other in self._nodes.items() if other != node}
        self.refused.pop(node, None)


def usual_names(clients: int) -> list[str]:
    """Names of sites that were given none.

    >>> usual_names(2)
    ['site-0', 'site-1']
    """
    return [f"site-{client}" for client in range(clients)]


def check_names(names: Sequence[str]) -> None:
    """Refuse names that cannot be names of files, and those that are there twice.

    >>> check_names(["north", "site-1"])
    >>> check_names(["../x"])
    Traceback (most recent call last):
    holdfast.core.errors.HoldfastError: '../x' cannot be a site's name; use letters, digits, '.', '_' and '-'.
    """
    if not names:
        raise HoldfastError("There must be at least one site.")
    for name in names:
        if not is_name(name):
            raise HoldfastError(f"{name!r} cannot be a site's name; use letters, digits, '.', '_' and '-'.")
    check_unique(names)


def is_name(name: str) -> bool:
    return re.fullmatch(r"\w[\w.-]*", name) is not None


def check_unique(names: Sequence[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise HoldfastError(f"sites: {twice[0]!r} is there twice in {', '.join(names)}; each site needs its own name.")
