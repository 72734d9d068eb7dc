"""What testing costs in a round: bytes and time slots, with models broadcast from device to device or relayed.

The paper's model (Ghaleb et al., section III): each client has a resource block of its own. In the first N - K slots
the clients that do not test send their models, heard by the moderator and all testers at once; the K testers send
theirs, with the accuracies, in the last K. A transmission is as fast as its slowest listener (section V.A), so good
testers are those that the others reach well.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import HoldfastError, nearest
from holdfast.core.tables import read_table

LINKS = ("up", "between")  # the keys of a file of links
BYTES = 4  # of one accuracy
EXACT = 20_000  # sets of testers that are all looked at; beyond it, the best by exchanging one at a time


@dataclass(frozen=True)
class Cost:
    """A round's cost on top of nothing: models and accuracies, without the broadcast of the new model."""

    slots: int  # resource blocks, one after the other
    slots_to_test: int  # of these, until the last model is tested
    bytes_up: int  # to the moderator
    bytes_down: int  # from the moderator to testers
    bytes_heard: int  # by testers directly from other clients


def cost_of_testing(
    clients: int, testers: int, model_bytes: int, relayed: bool = False, cross_test: bool = False
) -> Cost:
    """The cost of a round with K testers of N clients; FedAvg's is that with no testers.

    With cross_test, which needs the moderator's relay, the testers test each other's models as well.

    >>> cost_of_testing(20, 5, 1000)
    Cost(slots=20, slots_to_test=15, bytes_up=20300, bytes_down=0, bytes_heard=75000)
    >>> cost_of_testing(20, 5, 1000, relayed=True)
    Cost(slots=20, slots_to_test=15, bytes_up=20300, bytes_down=75000, bytes_heard=0)
    """
    if not 0 <= testers <= clients or clients < 1 or model_bytes < 0:
        raise HoldfastError(f"cost of testing: {testers} testers of {clients} clients are not possible; ask fewer.")
    if cross_test and not relayed:
        raise HoldfastError("cost of testing: testers send their models last, so only a relay lets others test them.")
    tested = (clients - 1) if cross_test else (clients - testers)
    models = testers * tested * model_bytes
    return Cost(
        slots=clients,
        slots_to_test=clients if cross_test else clients - testers,
        bytes_up=clients * model_bytes + testers * tested * BYTES,
        bytes_down=models if relayed else 0,
        bytes_heard=0 if relayed else models,
    )


@dataclass(frozen=True)
class Links:
    """Rates in bytes a second: of each client to the moderator, and between clients (sender, listener)."""

    up: Sequence[float]
    between: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        n = len(self.up)
        if len(self.between) != n or any(len(row) != n for row in self.between):
            raise HoldfastError(f"links: rates between {n} clients need {n} rows of {n} numbers.")
        rates = [*self.up, *(r for i, row in enumerate(self.between) for j, r in enumerate(row) if i != j)]
        if not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise HoldfastError("links: every rate must be a number above zero, in bytes a second.")

    def among(self, clients: Sequence[int]) -> Links:
        """The links of some clients, numbered by their place among them."""
        return Links([self.up[i] for i in clients], [[self.between[i][j] for j in clients] for i in clients])


def read_links(path: Path, clients: int) -> Links:
    """The links in a file, JSON or TOML: `up`, a rate for each client; `between`, a row of rates for each sender."""
    table = read_table(path)
    for key in table:
        if key not in LINKS:
            raise HoldfastError(f"{path}: there is no key {key!r}; {nearest(key, LINKS)}")
    up, between = table.get("up"), table.get("between")
    rows = [up, *between] if isinstance(between, list) else []
    if not rows or not all(isinstance(row, list) and all(type(rate) in (int, float) for rate in row) for row in rows):
        raise HoldfastError(f"{path}: links need up, a list of numbers, and between, a list of such lists.")
    try:
        links = Links(rows[0], rows[1:])
    except HoldfastError as error:
        raise HoldfastError(f"{path}: {error}") from None
    if len(links.up) != clients:
        raise HoldfastError(f"{path}: it tells the links of {len(links.up)} clients, and the experiment has {clients}.")
    return links


def collection_seconds(links: Links, testers: Sequence[int], model_bytes: int) -> float:
    """The time until all models have been sent, one slot after the other, each as fast as its slowest listener.

        sum over i not testing of  s / min(up_i, min over testers t of between_it)  +  sum over testers of  s / up_t

    >>> links = Links(up=[10, 10, 10], between=[[0, 5, 1], [5, 0, 5], [1, 5, 0]])
    >>> collection_seconds(links, [1], 10), collection_seconds(links, [0], 10)
    (5.0, 13.0)
    """
    if unknown := [tester for tester in testers if not 0 <= tester < len(links.up)]:
        raise HoldfastError(f"links: they tell of clients 0 to {len(links.up) - 1}, and tester {unknown[0]} is none.")
    total = 0.0
    for client, up in enumerate(links.up):
        heard = [] if client in testers else [links.between[client][tester] for tester in testers]
        total += model_bytes / min([up, *heard])
    return total


def cheapest_testers(links: Links, testers: int, candidates: Sequence[int] | None = None) -> list[int]:
    """K testers with the shortest collection of models: the best of all sets, or of exchanges where there are many.

    >>> cheapest_testers(Links(up=[10, 10, 10], between=[[0, 5, 1], [5, 0, 5], [1, 5, 0]]), 1)
    [1]
    """
    candidates = range(len(links.up)) if candidates is None else sorted(candidates)
    if not 0 < testers <= len(candidates):
        raise HoldfastError(f"tester selection: {testers} testers of {len(candidates)} candidates are not possible.")

    def seconds(chosen: Iterable[int]) -> float:
        return collection_seconds(links, list(chosen), 1)

    if math.comb(len(candidates), testers) <= EXACT:
        return sorted(min(itertools.combinations(candidates, testers), key=seconds))
    chosen: list[int] = []
    for _ in range(testers):  # greedy, then exchanges as long as one helps
        chosen.append(min((c for c in candidates if c not in chosen), key=lambda c: seconds([*chosen, c])))
    best, improved = seconds(chosen), True
    while improved:
        improved = False
        for place, new in itertools.product(range(testers), candidates):
            trial = [*chosen[:place], new, *chosen[place + 1 :]]
            if new not in chosen and (found := seconds(trial)) < best:
                chosen, best, improved = trial, found, True
    return sorted(chosen)
