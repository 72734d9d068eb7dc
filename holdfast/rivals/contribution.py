"""What each client adds (after FedCCEA: Shyn et al., arXiv 2106.02310): leave one out, and its curve of removal.

    c_i  = v(all) - v(all but i)                                        v: what a federation of these clients reaches
    area = sum_k [ v(all but the k of the least c) - v(all but the k of the most c) ]

FedCCEA fits a network from the clients' data sizes to the accuracy and reads contributions off it; only its abstract
was read, and it needs many runs. What is kept is its measure, the area between the curves of removal: large where those
whom c calls valuable are. With n clients this takes up to 3 n - 1 runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Value = Callable[[frozenset[int]], float]  # who takes part -> what they reach


def leave_one_out(value: Value, clients: int) -> dict[int, float]:
    """What each client adds to the others.

    >>> worth = {0: 5.0, 1: 2.0, 2: 1.0}
    >>> leave_one_out(lambda there: sum(worth[c] for c in there), 3)
    {0: 5.0, 1: 2.0, 2: 1.0}
    """
    everyone = frozenset(range(clients))
    whole = value(everyone)
    return {client: whole - value(everyone - {client}) for client in range(clients)}


def removal(value: Value, contributions: Mapping[int, float], least_first: bool) -> list[float]:
    """What is reached with nobody removed, then one, then two, down to one who is left."""
    order = sorted(contributions, key=lambda client: contributions[client], reverse=not least_first)
    return [value(frozenset(order[gone:])) for gone in range(len(order))]


def area_between(value: Value, contributions: Mapping[int, float]) -> float:
    """The area between the two curves of removal.

    Removing worth 1 leaves 7, then 5; removing worth 5 leaves 3, then 1: (7 - 3) + (5 - 1) = 8.

    >>> worth = {0: 5.0, 1: 2.0, 2: 1.0}
    >>> area_between(lambda there: sum(worth[c] for c in there), worth)
    8.0
    """
    least, most = (removal(value, contributions, first) for first in (True, False))
    return sum(a - b for a, b in zip(least, most, strict=True))
