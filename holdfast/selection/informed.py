"""Selections that go by what happened: sizes, losses, speed or first updates, and a bound on how long anybody waits.

    size             as likely as its share of the samples
    power-of-choice  candidates by size, then the largest last losses: rpow-d of Cho, Wang and Joshi, AISTATS 2022
    tiers            a tier of equally fast clients, the likelier the larger its loss, then some of it at random: after
                     TiFL (Chai et al., HPDC 2020), with losses for accuracies and `wait` for credits
    k-centres        groups around those whose first updates are farthest apart (Gonzalez 1985), one of each at random

Who was never asked comes first, and so does, whatever the rule, who has not been asked for `wait` rounds: nobody is
left out for ever. With `share` nobody is asked in more than that share of the rounds, while there are others to ask.
The loss that a client tells counts only if its update did, and it buys at most more turns, never more weight; sizes
count at most twice the median. Seconds are by the moderator's clock, and differ from run to run, so `tiers` does not
repeat its bits; a resumed run goes on with what was remembered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.types import State, Tensors, Update
from holdfast.core.validate import Sizes

SKETCH = 256  # numbers that are kept of a first update
TURNS = 4  # times the rounds in which all could be asked once: how long anybody waits, if nothing else is said


@dataclass(frozen=True)
class Heard:
    """What the moderator learnt about a client whose update counted."""

    update: Update
    loss: float | None
    seconds: float


@dataclass(frozen=True)
class Informed:
    """So many clients by what is remembered of them; `preferred` says whom, of those that are known."""

    needs_loss: ClassVar[bool] = False
    needs_updates: ClassVar[bool] = False  # of each client by itself

    count: int
    wait: int = field(default=0, kw_only=True)  # rounds after which a client's turn has come; 0: four turns of all
    share: float = field(default=1.0, kw_only=True)  # of the rounds, the most in which any client is asked

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {self.share}.")
        if self.count < 1 or self.wait < 0:
            raise ValueError(f"count must be at least 1 and wait not negative, got {self.count} and {self.wait}.")

    def __call__(self, clients: Sequence[int], state: State, generator: torch.Generator) -> Mapping[int, str]:
        if self.count > len(clients):
            raise HoldfastError(f"selection: {self.count} of {len(clients)} clients cannot be asked; ask fewer.")
        if self.share * len(clients) < self.count:
            raise HoldfastError(
                f"selection: {self.count} of {len(clients)} clients cannot be asked with nobody in more than "
                f"{self.share} of the rounds; ask fewer, or raise share."
            )
        asked = state.selection.get("asked", torch.full((max(clients) + 1,), -1))
        wait = self.wait or TURNS * math.ceil(len(clients) / self.count)
        order = [clients[place] for place in torch.randperm(len(clients), generator=generator).tolist()]
        order = self.within_share(order, state)
        chosen = {client: "never asked before" for client in order if asked[client] < 0}
        overdue = [client for client in order if client not in chosen and state.round - int(asked[client]) >= wait]
        for client in sorted(overdue, key=lambda client: int(asked[client])):
            chosen[client] = f"not asked for {state.round - int(asked[client])} rounds"
        chosen = dict(list(chosen.items())[: self.count])
        if left := self.count - len(chosen):
            others = [client for client in order if client not in chosen]
            chosen |= self.preferred(others, left, state, generator)
        return chosen

    def within_share(self, clients: list[int], state: State) -> list[int]:
        """Those who may have a turn; where they are too few, those with the fewest turns join them."""
        if "turns" not in state.selection:  # before round 1, and in runs of earlier versions
            return clients
        turns = {client: int(state.selection["turns"][client]) for client in clients}
        most = max(1.0, self.share * (state.round + 1))
        over = [client for client in clients if turns[client] + 1 > most]
        lacking = max(0, self.count - (len(clients) - len(over)))
        kept = sorted(over, key=lambda client: turns[client])[:lacking]
        return [client for client in clients if client not in over or client in kept]

    def preferred(
        self, clients: Sequence[int], count: int, state: State, generator: torch.Generator
    ) -> Mapping[int, str]:
        """At most so many of these clients, with the reason for each; all have been asked before."""
        raise NotImplementedError

    def remember(
        self, state: State, clients: Sequence[int], asked: Mapping[int, str], heard: Sequence[Heard]
    ) -> Tensors:
        """What is known after a round."""
        size = max(clients) + 1
        memory = {"asked": torch.full((size,), -1), "loss": torch.full((size,), math.nan)}
        memory["turns"] = torch.zeros(size, dtype=torch.int64)
        memory["seconds"] = torch.full((size,), math.nan)
        if self.needs_updates:
            memory["first"] = torch.full((size, SKETCH), math.nan)
        memory = {name: state.selection.get(name, tensor).clone() for name, tensor in memory.items()}
        memory["asked"][list(asked)] = state.round
        memory["turns"][list(asked)] += 1
        for one in heard:
            client = one.update.client
            if one.loss is not None and math.isfinite(one.loss):
                memory["loss"][client] = one.loss
            if 0 < one.seconds < math.inf:
                memory["seconds"][client] = one.seconds
            if self.needs_updates and memory["first"][client].isnan().any():
                memory["first"][client] = sketch(one.update.delta)
        return memory


@dataclass(frozen=True)
class BySize(Informed):
    """Each client as likely as its share of the samples; with trust = "uniform" the average is then without bias.

    >>> from dataclasses import replace
    >>> state = State(1, {}, {}, {}, {}, {}, claims={0: 10, 1: 10, 2: 20}, selection={"asked": torch.zeros(3)})
    >>> len(BySize(2)(range(3), state, torch.Generator()))
    2
    """

    def preferred(
        self, clients: Sequence[int], count: int, state: State, generator: torch.Generator
    ) -> Mapping[int, str]:
        return {client: f"by its size, {size}" for client, size in drawn_by_size(clients, count, state, generator)}


@dataclass(frozen=True)
class PowerOfChoice(Informed):
    """Of `candidates` drawn by size, those with the largest loss when they last trained."""

    needs_loss: ClassVar[bool] = True
    candidates: int = 0  # 0: twice as many as are asked

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates and self.candidates < self.count:
            raise ValueError(f"candidates must be at least count, got {self.candidates} and {self.count}.")

    def preferred(
        self, clients: Sequence[int], count: int, state: State, generator: torch.Generator
    ) -> Mapping[int, str]:
        among = max(count, self.candidates or 2 * self.count)
        loss = {client: known(state, "loss", client, -math.inf) for client, _ in
                drawn_by_size(clients, among, state, generator)}  # fmt: skip
        best = sorted(loss, key=lambda client: (-loss[client], client))[:count]
        return {client: f"its loss, {loss[client]:.3g}, is among the largest of {len(loss)}" for client in best}


@dataclass(frozen=True)
class Tiers(Informed):
    """Some clients of one tier, so that nobody waits for one that is much slower."""

    tiers: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tiers < 1:
            raise ValueError(f"tiers must be at least 1, got {self.tiers}.")

    def preferred(
        self, clients: Sequence[int], count: int, state: State, generator: torch.Generator
    ) -> Mapping[int, str]:
        seconds = {client: known(state, "seconds", client, math.inf) for client in clients}
        order = sorted(clients, key=lambda client: (seconds[client], client))
        tiers = [t.tolist() for t in torch.tensor(order).tensor_split(min(self.tiers, len(order)))]
        loss = [mean_of([known(state, "loss", client, math.nan) for client in tier]) for tier in tiers]
        chances = torch.zeros(len(tiers))
        for rank, number in enumerate(sorted(range(len(tiers)), key=lambda t: (-loss[t], t))):
            chances[number] = len(tiers) - rank  # the largest loss is the likeliest, in steps of one
        drawn = int(torch.multinomial(chances, 1, generator=generator))
        tier = tiers[drawn]
        some = [tier[place] for place in torch.randperm(len(tier), generator=generator)[:count].tolist()]
        return {client: f"of tier {drawn + 1} of {len(tiers)} by speed" for client in some}


@dataclass(frozen=True)
class KCentres(Informed):
    """One client of each of `count` groups whose members' first updates point the same way."""

    needs_updates: ClassVar[bool] = True

    def preferred(
        self, clients: Sequence[int], count: int, state: State, generator: torch.Generator
    ) -> Mapping[int, str]:
        members = sorted(clients)
        group = groups_around_centres(state.selection["first"][members].nan_to_num(), count)
        found = {}
        for number in range(count):
            inside = [client for client, own in zip(members, group, strict=True) if own == number]
            if inside:
                place = int(torch.randint(len(inside), (1,), generator=generator))
                found[inside[place]] = f"for group {number + 1} of {count}, {len(inside)} alike"
        return found


def drawn_by_size(
    clients: Sequence[int], count: int, state: State, generator: torch.Generator
) -> list[tuple[int, int]]:
    """So many clients without replacement, by their samples, and how many those are; unknown ones count as 1."""
    counted = Sizes().counted(state.claims)
    sizes = torch.tensor([float(counted.get(client, 1)) for client in clients])
    places = torch.multinomial(sizes, min(count, len(clients)), generator=generator).tolist()
    return [(clients[place], int(sizes[place])) for place in places]


def known(state: State, what: str, client: int, otherwise: float) -> float:
    """What is remembered of a client; `otherwise` where it never told."""
    value = float(state.selection[what][client]) if what in state.selection else math.nan
    return otherwise if math.isnan(value) else value


def mean_of(values: Sequence[float]) -> float:
    """The mean of those that are known; none: the lowest."""
    told = [value for value in values if not math.isnan(value)]
    return sum(told) / len(told) if told else -math.inf


def sketch(delta: Tensors) -> Tensor:
    """The direction of an update in a few numbers (a count sketch): angles stay about what they are.

    >>> round(float(sketch({"w": torch.ones(1000)}) @ sketch({"w": torch.ones(1000)})), 3)
    1.0
    """
    vector = torch.cat([delta[name].flatten() for name in sorted(delta)])
    generator = torch.Generator().manual_seed(len(vector))
    places = torch.randint(SKETCH, (len(vector),), generator=generator)
    signs = torch.randint(2, (len(vector),), generator=generator) * 2.0 - 1.0
    found = torch.zeros(SKETCH).index_add_(0, places, vector * signs)
    length: Tensor = found.norm()
    return found / length if length > 0 else found


def groups_around_centres(points: Tensor, count: int) -> list[int]:
    """The group of each point: centres are the first point, then whatever is farthest from all centres so far.

    >>> groups_around_centres(torch.tensor([[0.0], [1.0], [9.0], [10.0]]), 2)
    [0, 0, 1, 1]
    """
    nearest = (points - points[0]).norm(dim=1)
    group = torch.zeros(len(points), dtype=torch.int64)
    for number in range(1, min(count, len(points))):
        far = (points - points[int(nearest.argmax())]).norm(dim=1)
        closer = far < nearest
        group[closer] = number
        nearest = torch.minimum(nearest, far)
    return group.tolist()
