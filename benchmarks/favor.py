"""FAVOR's double DQN over episodes, on a task of seconds: what it saves, and what it costs to learn.

    python benchmarks/favor.py [--seed 0,1,2] [--episodes 150] [--clients 10]

fashion-mini, 600 samples, Dirichlet 0.1, a hidden layer on public features. An episode is a federation from the start:
one client a round while the agent learns (as printed), at most 20 rounds. Then 3 clients a round are asked, by Q, by
chance, or one of each of 3 groups of like first updates (k-centres), for 10 rounds. The target and the rewards are of
100 samples of the moderator's own; accuracies are of the test set.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from saved import save
from torch import Tensor

from holdfast.core.tensors import flat
from holdfast.core.types import Reply, State, unpack, weighted_sum
from holdfast.data.task import Samples, right_or_wrong
from holdfast.models.networks import fill
from holdfast.play import this_machine
from holdfast.rivals.favor import Agent, Components, reward, state_of
from holdfast.round import train_messages
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment
from holdfast.selection.informed import groups_around_centres, sketch

PARTS, LONGEST, ASKED, ROUNDS, TARGET = 5, 20, 3, 10, 0.65


class Game:
    """A federation that can be played from the start again and again."""

    def __init__(self, clients: int, seed: int) -> None:
        keys: Any = {"task": "fashion-mini", "samples": 600, "partition": "dirichlet:0.1", "model": "features"}
        self.plan = make_plan(Experiment(clients=clients, seed=seed, rounds=LONGEST, workers=0, lr=0.05, **keys))
        self.federation = this_machine(self.plan, None)
        self.start, self.clients, self.model = self.plan.start(), clients, self.plan.model()
        self.names = list(self.start.model)
        own = self.plan.method.own_samples(100)
        self.own, self.test = own, self.plan.prepare(self.plan.task.test)
        self.first = self.train(self.start, range(clients))
        self.vectors = {c: flat({n: self.start.model[n] + d[n] for n in self.names}, self.names) for c, (d, _) in
                        self.first.items()}  # fmt: skip
        self.components = Components.of(torch.stack(list(self.vectors.values())), PARTS)
        self.scale = float(self.components.of_models(torch.stack(list(self.vectors.values()))).std())

    def train(self, state: State, asked: Sequence[int]) -> dict[int, tuple[dict[str, Tensor], int]]:
        replies = self.federation.ask(train_messages(state, asked, self.plan.method))
        told = [reply for reply in replies if isinstance(reply, Reply)]
        return {r.client: (unpack(r.tensors, "delta"), int(r.scalars["samples"])) for r in told}

    def step(self, state: State, asked: Sequence[int], last: dict[int, Tensor]) -> State:
        """One round of FedAvg; `last` keeps each client's model."""
        found = self.train(state, asked)
        total = sum(count for _, count in found.values())
        for client, (delta, _) in found.items():
            last[client] = flat({n: state.model[n] + delta[n] for n in self.names}, self.names)
        shift = weighted_sum([d for d, _ in found.values()], [count / total for _, count in found.values()])
        return replace(state, round=state.round + 1, model={n: state.model[n] + shift[n] for n in self.names})

    def accuracy(self, state: State, samples: Samples) -> float:
        fill(self.model.eval(), state.model, state.buffers)
        inputs, labels = samples.batch(torch.arange(len(samples)))
        with torch.inference_mode():
            return float(right_or_wrong(self.model(*inputs), labels).mean())

    def seen(self, state: State, last: dict[int, Tensor]) -> Tensor:
        models = [last[client] for client in range(self.clients)]
        return state_of(self.components, flat(state.model, self.names), models) / self.scale


def learn(game: Game, agent: Agent, episodes: int) -> int:
    """Train the agent; answers with the rounds that this took."""
    rounds = 0
    for episode in range(episodes):
        state, last, explore = game.start, dict(game.vectors), max(0.05, 1 - episode / (0.7 * episodes))
        before = game.seen(state, last)
        for _ in range(LONGEST):
            asked = agent.ask(before, explore)
            state = game.step(state, [asked], last)
            reached = game.accuracy(state, game.own)
            after, over = game.seen(state, last), reached >= TARGET
            agent.remember(before, asked, reward(reached, TARGET), after, over)
            agent.learn()
            before, rounds = after, rounds + 1
            if over:
                break
    return rounds


def use(game: Game, choose: Callable[[Tensor], Sequence[int]]) -> list[float]:
    """The test accuracy round by round."""
    state, last, found = game.start, dict(game.vectors), []
    for _ in range(ROUNDS):
        state = game.step(state, sorted(choose(game.seen(state, last))), last)
        found.append(game.accuracy(state, game.test))
    return found


def by_chance(clients: int, chance: torch.Generator, seen: Tensor) -> Sequence[int]:
    found: list[int] = torch.randperm(clients, generator=chance)[:ASKED].tolist()
    return found


def one_of_each(groups: Sequence[Sequence[int]], chance: torch.Generator, seen: Tensor) -> Sequence[int]:
    return [group[int(torch.randint(len(group), (), generator=chance))] for group in groups]


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("--seed", default="0,1,2")
    options.add_argument("--episodes", type=int, default=150)
    options.add_argument("--clients", type=int, default=10)
    wanted = options.parse_args()
    torch.set_num_threads(1)
    curves: dict[str, list[list[float]]] = {}
    for seed in map(int, wanted.seed.split(",")):
        start, game = time.process_time(), Game(wanted.clients, seed)
        chance = torch.Generator().manual_seed(seed)
        agent = Agent((wanted.clients + 1) * PARTS, wanted.clients, seed=seed)
        rounds = learn(game, agent, wanted.episodes)
        spent = time.process_time() - start
        groups = groups_around_centres(torch.stack([sketch(d) for d, _ in game.first.values()]), ASKED)
        inside = [[c for c, own in enumerate(groups) if own == g] for g in range(ASKED)]
        ways: dict[str, Callable[[Tensor], Sequence[int]]] = {
            "double DQN": partial(agent.best, count=ASKED),
            "by chance": partial(by_chance, wanted.clients, chance),
            "k-centres": partial(one_of_each, inside, chance),
        }
        for name, way in ways.items():
            curves.setdefault(name, []).append(use(game, way))
        told = ", ".join(f"{name} {100 * curves[name][-1][-1]:.1f}" for name in ways)
        print(
            f"seed {seed}: {rounds} rounds and {spent:.0f} s of one core to learn; after {ROUNDS}: {told}", flush=True
        )
    cells: dict[tuple[str, str], list[float]] = {}
    for name, found in curves.items():
        last, mean = [c[-1] for c in found], [statistics.fmean(c) for c in found]
        spread = statistics.stdev(last) if len(last) > 1 else 0.0
        over = 100 * statistics.fmean(mean)
        print(f"{name:11} {100 * statistics.fmean(last):.1f} ± {100 * spread:.1f}; mean over rounds {over:.1f}")
        cells[name, f"after {ROUNDS} rounds"] = [100 * value for value in last]
        cells[name, f"mean over the {ROUNDS} rounds"] = [100 * value for value in mean]
    save("favor", cells, [int(seed) for seed in wanted.seed.split(",")], corner=f"{ASKED} of {wanted.clients} asked")


if __name__ == "__main__":
    main()
