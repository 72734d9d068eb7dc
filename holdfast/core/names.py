"""What people call clients, and how they count."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Called = Callable[[int], str]


def called(names: Sequence[str] | None, client: int) -> str:
    """A client's own name, or its number.

    >>> called(("North", "South"), 1), called(None, 1)
    ('South', 'client 1')
    """
    return names[client] if names else f"client {client}"


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "round"), plural(1200, "round")
    ('1 round', '1,200 rounds')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def numbered(client: int) -> str:
    return called(None, client)
