"""FedTest: peers test each other's models, and good models get more weight (Ghaleb et al.). Line numbers: Algorithm 1.

    line 5        all clients train
    lines 6-9     clients send their models; K testers test each of them on their own held-out samples
    lines 10-12   testers send the accuracies, and their own models last
    line 13       score_i <- decay score_i + (1 - decay) mean over testers of accuracy_i      (the first time: the mean)
    line 14       weight_i = score_i^p / sum_j score_j^p,   p = 4
    line 16       other K testers for the next round

The paper leaves open who tests the testers' models, which come last. Here the testers test each other's too, but never
their own; with cross_test off a tester's model keeps its score of earlier rounds, or gets the mean of the others'.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from holdfast.context import Context
from holdfast.core.errors import HoldfastError
from holdfast.core.types import State, Tensors, Update, size
from holdfast.trust.base import Hearing, Judgement, Testing, Trust, judgement
from holdfast.trust.costs import Links, cheapest_testers, collection_seconds, cost_of_testing, read_links
from holdfast.trust.measures import ask_for_accuracies
from holdfast.trust.relayed import relay, signed_of
from holdfast.trust.testers import Manner, Reports, ask_testers, choose_testers

TESTERS = 5  # the paper's K
LEAST_POWER, MOST_POWER = 1.0, 16.0


@dataclass(frozen=True)
class FedTest(Trust):
    """Peers test each model; weights are the scores to the power of four (as published: lying testers break it)."""

    needs_classes: ClassVar[bool] = True

    testers: int = TESTERS  # K; the usual five are all where there are fewer
    power: float = 4.0  # p
    adapt: bool = False  # raise p when the models get worse, lower it when they get better (section V.B)
    decay: float = 0.5  # share of the old score
    choice: Manner = "random"
    cross_test: bool = True
    most: int = 200  # samples that a tester tests on
    links: str | None = None  # a file of rates: those test whom the others reach fastest (section V.A; costs.py)

    def __post_init__(self) -> None:
        if self.testers < 1 or self.most < 1:
            raise ValueError(f"testers and most must be at least 1, got {self.testers} and {self.most}.")
        if not 0 < self.power <= 64:
            raise ValueError(f"power must be in (0, 64], got {self.power}; as published: 4.")
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay, the share of the old score, must be in [0, 1), got {self.decay}.")
        if self.links is not None and self.choice != "random":
            raise ValueError(f"links choose the testers by their rates, so leave out choice, got {self.choice!r}.")

    def check(self, context: Context) -> None:
        if self.testers > max(TESTERS, context.clients):
            raise HoldfastError(f"trust 'fedtest': {self.testers} testers are more than the {context.clients} clients.")
        self.rates(context)

    def rates(self, context: Context) -> Links | None:
        return None if self.links is None else links_of(self.links, context.clients)

    def begin(self, clients: int) -> Tensors:
        return {
            "scores": torch.zeros(clients, dtype=torch.float64),
            "tested": torch.zeros(clients, dtype=torch.bool),
            "testers": torch.zeros(clients, dtype=torch.bool),
            "power": torch.tensor(self.power, dtype=torch.float64),
            "performance": torch.tensor(-1.0, dtype=torch.float64),
        }

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        testers = self.choose(updates, hearing.context, state)  # line 16 of the round before, among those who are here
        reports = self.ask(testers, updates, hearing, state)  # lines 6-12
        accuracy = mean_accuracies(reports.told, [update.client for update in updates])
        memory = self.remember(accuracy, testers, state.trust)  # line 13
        scores = scores_of(updates, memory)
        masses = [score ** float(memory["power"]) for score in scores.values()]  # line 14
        notes = [*reports.notes, *self.told_costs(testers, updates, hearing.context, size(state.model))]
        if not sum(masses) > 0:
            masses = [1.0] * len(updates)
            notes.append("no model has a score above zero, so all have the same weight in this round")
        judged = judgement(updates, masses, memory)
        return Judgement(
            updates,
            judged.weights,
            judged.say,
            memory,
            scores=scores,
            notes=notes,
            bytes_up=reports.bytes_up,
            bytes_down=reports.bytes_down,
        )

    def choose(self, updates: Sequence[Update], context: Context, state: State) -> list[int]:
        present = present_of(updates)
        rates = self.rates(context)
        if rates is not None and present:
            places = cheapest_testers(rates.among(present), min(self.testers, len(present)))
            return [present[place] for place in places]
        before = state.trust["testers"].nonzero().flatten().tolist()
        scores = state.trust["scores"].tolist()
        return choose_testers(self.choice, self.testers, present, before, scores, context.seed, state.round)

    def told_costs(
        self, testers: Sequence[int], updates: Sequence[Update], context: Context, model_bytes: int
    ) -> list[str]:
        """What the round costs in the paper's model, where the links are known."""
        present, rates = present_of(updates), self.rates(context)
        if rates is None or not testers:
            return []
        cost = cost_of_testing(len(present), len(testers), model_bytes)
        places = [present.index(tester) for tester in testers]
        seconds = collection_seconds(rates.among(present), places, model_bytes)
        return [
            f"testers, by their links: {', '.join(map(str, testers))}; "
            f"{cost.slots} slots, {cost.slots_to_test} of them until all others are tested, "
            f"{cost.bytes_up:,} bytes to the moderator, {cost.bytes_heard:,} heard by testers, "
            f"{seconds:.3g} s until all models are sent"
        ]

    def ask(self, testers: Sequence[int], updates: Sequence[Update], hearing: Hearing, state: State) -> Reports:
        signed = signed_of(hearing.received)
        updates = signed or updates  # nobody vouches for stand-ins
        clients = [update.client for update in updates]
        others = [client for client in clients if client not in testers]
        tested = {t: [c for c in (clients if self.cross_test else others) if c != t] for t in testers}
        testers = [tester for tester in testers if tested[tester]]
        sent = updates if self.cross_test else [update for update in updates if update.client in others]
        asked = (relay if signed else ask_for_accuracies)(state.model, state.buffers, sent)
        return ask_testers(hearing.federation, testers, asked, tested, state.round)

    def testing(self, round: int) -> Testing:
        return Testing("accuracy", self.most)

    def remember(self, accuracy: Mapping[int, float], testers: Sequence[int], memory: Tensors) -> Tensors:
        """Line 13: the scores with this round's accuracies in them."""
        scores, tested = memory["scores"].clone(), memory["tested"].clone()
        for client, value in accuracy.items():
            scores[client] = self.decay * scores[client] + (1 - self.decay) * value if tested[client] else value
            tested[client] = True
        chosen = torch.zeros_like(memory["testers"])
        chosen[list(testers)] = True
        power, performance = memory["power"], memory["performance"]
        if accuracy:
            now = torch.tensor(statistics.median(accuracy.values()), dtype=torch.float64)
            power = self.adapted(float(power), float(now), float(performance)) if self.adapt else power
            performance = now
        return {"scores": scores, "tested": tested, "testers": chosen, "power": power, "performance": performance}

    def adapted(self, power: float, now: float, before: float) -> torch.Tensor:
        """p one higher after a round in which the median model got worse, half of one lower after one that went well.

        >>> float(FedTest().adapted(4.0, now=0.5, before=0.6)), float(FedTest().adapted(4.0, now=0.6, before=0.5))
        (5.0, 3.5)
        """
        power += 1.0 if now < before else -0.5
        return torch.tensor(min(MOST_POWER, max(LEAST_POWER, power)), dtype=torch.float64)


def present_of(updates: Sequence[Update]) -> list[int]:
    """The clients that are there themselves."""
    return [update.client for update in updates if not update.synthetic]


@functools.lru_cache(maxsize=4)
def links_of(path: str, clients: int) -> Links:
    """The rates in a file, read once for a run."""
    return read_links(Path(path).expanduser(), clients)


def mean_accuracies(told: Mapping[int, Mapping[int, float]], clients: Sequence[int]) -> dict[int, float]:
    """The mean over testers of each client's accuracy; nothing of clients that nobody tested.

    >>> mean_accuracies({1: {2: 0.5}, 3: {2: 0.75, 1: 0.25}}, [1, 2, 3])
    {1: 0.25, 2: 0.625}
    """
    found = {c: [values[c] for values in told.values() if c in values] for c in clients}
    return {client: statistics.fmean(values) for client, values in found.items() if values}


def scores_of(updates: Sequence[Update], memory: Tensors) -> dict[int, float]:
    """The score of each client that sent an update; of one never tested, the mean of those who were."""
    clients = [update.client for update in updates]
    known = [float(memory["scores"][c]) for c in clients if memory["tested"][c]]
    usual = statistics.fmean(known) if known else 1.0
    return {c: float(memory["scores"][c]) if memory["tested"][c] else usual for c in clients}
