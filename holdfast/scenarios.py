"""Who is away, and when: a pure function of the round, the clients' sizes and the seed.

A scenario is called as scenario(round, stage), the round counted from 0, and answers with the clients that are away. A
user's own is any such function, named by import path. One with a method `delays(stage)` says of some clients how many
rounds late they answer, whenever they are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import rng


@dataclass(frozen=True)
class Stage:
    """What a scenario may look at."""

    rounds: int
    sizes: Sequence[int]  # training samples of each client
    seed: int
    names: Sequence[str] = ()

    @property
    def clients(self) -> range:
        return range(len(self.sizes))

    @property
    def largest(self) -> int:
        return max(self.clients, key=lambda client: self.sizes[client])

    def find(self, client: int | str | None) -> int:
        """A client by its name or number; without one, the largest.

        >>> stage = Stage(3, [10, 30, 20], 0, ("north", "south", "east"))
        >>> stage.find("east"), stage.find("0"), stage.find(None)
        (2, 0, 1)
        """
        if client is None:
            return self.largest
        if client in self.names:
            return self.names.index(str(client))
        if (isinstance(client, int) or client.isdecimal()) and int(client) in self.clients:
            return int(client)
        known = f"known: {', '.join(self.names)}" if self.names else f"clients are 0 to {len(self.sizes) - 1}"
        raise HoldfastError(f"scenario: there is no client {client!r}; {known}.")


Scenario = Callable[[int, Stage], Collection[int]]


@dataclass(frozen=True)
class Nobody:
    """Nobody is away."""

    def __call__(self, round: int, stage: Stage) -> Collection[int]:
        return ()


@dataclass(frozen=True)
class Temporary:
    """The largest client, or the one named, is away from 1/6 to 1/3 of the run.

    >>> [t for t in range(12) if Temporary()(t, Stage(12, [10, 30, 20], seed=0))]
    [2, 3]
    """

    client: str | None = None

    def __call__(self, round: int, stage: Stage) -> Collection[int]:
        client = stage.find(self.client)
        return [client] if stage.rounds / 6 <= round < stage.rounds / 3 else ()


@dataclass(frozen=True)
class Changed(Temporary):
    """As temporary, and the client comes back with other records: it had half of its own, by target, then the rest."""

    def back(self, stage: Stage) -> int:
        """The round, counted from 0, from which it has the other half."""
        return -(-stage.rounds // 3)


@dataclass(frozen=True)
class Forever:
    """The largest client, or the one named, leaves at 1/6 of the run and never returns."""

    client: str | None = None

    def __call__(self, round: int, stage: Stage) -> Collection[int]:
        client = stage.find(self.client)
        return [client] if round >= stage.rounds / 6 else ()


@dataclass(frozen=True)
class Never:
    """The largest client, or the one named, has left before it sent anything: nothing of it can stand in.

    >>> [Never()(t, Stage(3, [10, 30, 20], seed=0)) for t in range(3)]
    [[1], [1], [1]]
    """

    client: str | None = None

    def __call__(self, round: int, stage: Stage) -> Collection[int]:
        return [stage.find(self.client)]


@dataclass(frozen=True)
class Sequential:
    """All clients leave for ever, a quarter of them, in random order, at 1/3, 1/2, 2/3 and 5/6 of the run.

    >>> [len(Sequential()(t, Stage(6, [10, 30, 20, 10], seed=0))) for t in range(6)]
    [0, 0, 1, 2, 3, 4]
    """

    def __call__(self, round: int, stage: Stage) -> Collection[int]:
        n = len(stage.sizes)
        order = torch.randperm(n, generator=rng(stage.seed, -1, -1, "who leaves first")).tolist()
        quarters = sum(6 * round >= (2 + k) * stage.rounds for k in range(4))
        return order[: -(-quarters * n // 4)]


@dataclass(frozen=True)
class Group:
    """Two groups at different times: the first half alone for a third of the run, then the second half alone.

    >>> [list(Group()(t, Stage(3, [1, 1, 1, 1], seed=0))) for t in range(3)]
    [[2, 3], [0, 1], [0, 1]]
    """

    def __call__(self, round: int, stage: Stage) -> Collection[int]:
        half = (len(stage.sizes) + 1) // 2
        return stage.clients[half:] if 3 * round < stage.rounds else stage.clients[:half]


@dataclass(frozen=True)
class Dropout:
    """Each client is away with probability p, each round anew."""

    p: float = 0.3

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError(f"p must be a probability, got {self.p}.")

    def __call__(self, round: int, stage: Stage) -> Collection[int]:
        draws = torch.rand(len(stage.sizes), generator=rng(stage.seed, round, -1, "who drops out"))
        return [client for client in stage.clients if draws[client] < self.p]


@dataclass(frozen=True)
class Arrival:
    """Clients join one after the other: a quarter is there at first, others come at 1/6, 1/3 and 1/2 of the run.

    >>> [len(Arrival()(t, Stage(6, [10, 30, 20, 10], seed=0))) for t in range(6)]
    [3, 2, 1, 0, 0, 0]
    """

    def __call__(self, round: int, stage: Stage) -> Collection[int]:
        n = len(stage.sizes)
        order = torch.randperm(n, generator=rng(stage.seed, -1, -1, "who comes first")).tolist()
        quarters = 1 + sum(6 * round >= k * stage.rounds for k in (1, 2, 3))
        return order[-(-quarters * n // 4) :]


@dataclass(frozen=True)
class Markov:
    """Who is there stays with probability `stay`, who is away returns with `back`; at first all are there."""

    stay: float = 0.8
    back: float = 0.2

    def __post_init__(self) -> None:
        for name, value in (("stay", self.stay), ("back", self.back)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be a probability, got {value}.")

    def __call__(self, round: int, stage: Stage) -> Collection[int]:
        there = torch.ones(len(stage.sizes), dtype=torch.bool)
        for t in range(1, round + 1):
            draws = torch.rand(len(stage.sizes), generator=rng(stage.seed, t, -1, "who stays and who returns"))
            there = draws < torch.where(there, self.stay, self.back)
        return [client for client in stage.clients if not there[client]]


@dataclass(frozen=True)
class RoundRobin:
    """In each round the next `present` clients are there, and all others are away.

    >>> [list(RoundRobin(2)(t, Stage(3, [1, 1, 1], seed=0))) for t in range(3)]
    [[2], [1], [0]]
    """

    present: int = 1

    def __post_init__(self) -> None:
        if self.present < 1:
            raise ValueError(f"present must be at least 1, got {self.present}.")

    def __call__(self, round: int, stage: Stage) -> Collection[int]:
        n = len(stage.sizes)
        there = {(round * self.present + k) % n for k in range(self.present)}
        return [client for client in stage.clients if client not in there]


@dataclass(frozen=True)
class Slow:
    """A share of the clients answers so many rounds late, always; `late` says whether their updates count.

    >>> [len(Slow(0.5, delay=3).delays(Stage(3, [1] * clients, seed=0))) for clients in (1, 4)]
    [1, 2]
    """

    share: float = 0.3
    delay: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or self.delay < 1:
            raise ValueError(
                f"share must be above 0 and at most 1, and delay at least 1, got {self.share} and {self.delay}."
            )

    def __call__(self, round: int, stage: Stage) -> Collection[int]:
        return ()

    def delays(self, stage: Stage) -> dict[int, int]:
        """The rounds that each slow client needs."""
        n = len(stage.sizes)
        order = torch.randperm(n, generator=rng(stage.seed, -1, -1, "who is slow")).tolist()
        return dict.fromkeys(sorted(order[: max(1, int(self.share * n + 0.5))]), self.delay)


@dataclass(frozen=True)
class Intervals:
    """A list of (client, first round away, first round back): its name or number, and rounds counted from 1.

    >>> [list(Intervals(((1, 2, 4),))(t, Stage(5, [1, 1], seed=0))) for t in range(5)]
    [[], [1], [1], [], []]
    """

    away: tuple[tuple[int | str, int, int], ...]

    def __post_init__(self) -> None:
        for client, first, back in self.away:
            if (isinstance(client, int) and client < 0) or not 1 <= first < back:
                told = "is not a client, the first round away (counted from 1) and the first round back"
                raise ValueError(f"[{client}, {first}, {back}] {told}.")

    def __call__(self, round: int, stage: Stage) -> Collection[int]:
        spans = [(stage.find(client), first, back) for client, first, back in self.away]  # all, also those not yet away
        return [client for client, first, back in spans if first <= round + 1 < back]


@dataclass(frozen=True)
class Trace:
    """As `intervals`, from a CSV file: a line for each absence, client,first,back; other lines begin with #."""

    path: str

    def __post_init__(self) -> None:
        self.intervals()

    def intervals(self) -> Intervals:
        return Intervals(read_trace(Path(self.path)))

    def __call__(self, round: int, stage: Stage) -> Collection[int]:
        return self.intervals()(round, stage)


@dataclass(frozen=True)
class Through:
    """Sites reached only through another: [site, through whom] in links; who is away by `base` cuts off those behind.

    The topology of collaborative FL (Chen, Poor, Saad, Cui, 2020; not read), in which a device without a line of its
    own hands its model to a neighbour; that neighbours average what they hear is left out.

    >>> base = "intervals:away=[[0, 2, 3]]"
    >>> [list(Through(((2, 1), (1, 0)), base)(t, Stage(3, [1, 1, 1, 1], seed=0))) for t in range(3)]
    [[], [0, 1, 2], []]
    """

    links: tuple[tuple[int, int], ...]
    base: str = "markov"

    def __post_init__(self) -> None:
        for site, through in self.links:
            if min(site, through) < 0 or site == through:
                raise ValueError(f"[{site}, {through}] is not a client and another one through which it is reached.")
        choose(SCENARIOS, Choice.parse(self.base, "scenario.base"), "scenario.base")

    def __call__(self, round: int, stage: Stage) -> Collection[int]:
        away = set(choose(SCENARIOS, Choice.parse(self.base, "scenario.base"), "scenario.base")(round, stage))
        while behind := {site for site, through in self.links if through in away} - away:
            away |= behind
        return sorted(away)


@cache
def read_trace(path: Path) -> tuple[tuple[int, int, int], ...]:
    """Read once in a run: who is away does not change on the way."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the trace {path} cannot be read ({type(error).__name__}).") from error
    away = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        cells = line.split(",")
        if len(cells) != 3 or not all(cell.strip().isdecimal() for cell in cells):
            raise ValueError(f"{path}, line {number}: expected three whole numbers, client,first,back.")
        away.append((int(cells[0]), int(cells[1]), int(cells[2])))
    return tuple(away)


SCENARIOS: dict[str, type] = {
    "none": Nobody,
    "temporary": Temporary,
    "changed": Changed,
    "forever": Forever,
    "never": Never,
    "sequential": Sequential,
    "group": Group,
    "dropout": Dropout,
    "arrival": Arrival,
    "markov": Markov,
    "round-robin": RoundRobin,
    "slow": Slow,
    "intervals": Intervals,
    "trace": Trace,
    "through": Through,
}


def delays_of(scenario: Scenario, stage: Stage) -> dict[int, int]:
    """How many rounds late some clients answer, if the scenario says so."""
    delays = getattr(scenario, "delays", None)
    return {} if delays is None else dict(delays(stage))
