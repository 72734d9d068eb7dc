"""What people call clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Called = Callable[[int], str]


def called(names: Sequence[str] | None, client: int) -> str:
    """A client's own name, or its number.

    >>> called(("North", "South"), 1), called(None, 1)
    ('South', 'client 1')
    """
    return names[client] if names else f"client {client}"


def numbered(client: int) -> str:
    return called(None, client)
