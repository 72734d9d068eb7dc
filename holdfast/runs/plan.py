"""An experiment with everything chosen, loaded and dealt out: what `make_plan` makes and the engines play."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.algorithms.fedavg import at_home, shared
from holdfast.client import Client
from holdfast.core.memory import Memory
from holdfast.core.randomness import rng
from holdfast.core.types import State, Tensors
from holdfast.data.task import Samples, Task
from holdfast.encoders import Encoder
from holdfast.learning.augment import Augment
from holdfast.method import Method
from holdfast.models.networks import Layout, initialise
from holdfast.privacy.dp_sgd import Guard
from holdfast.privacy.gate import named_policy
from holdfast.privacy.ledger import read_policy
from holdfast.runs.early_stopping import Stop
from holdfast.runs.experiment import Experiment
from holdfast.runs.start_weights import first_tensors
from holdfast.scenarios import Changed, Scenario, Stage


@dataclass(frozen=True)
class Plan:
    """An experiment with everything chosen, loaded and dealt out."""

    experiment: Experiment
    task: Task
    method: Method
    scenario: Scenario
    stage: Stage
    attack: Any  # None: nobody is hostile
    hostile: tuple[int, ...]
    parts: list[tuple[Tensor, Tensor, Tensor]]  # for each client: train, validation, test
    build: Callable[[], nn.Module]
    layout: Layout
    prepare: Callable[[Samples], Samples]  # raw samples -> what the model reads
    device: torch.device
    guard: Guard | None = None  # protects updates
    stop: Stop | None = None  # when it may end early
    encoder: Encoder | None = None  # of a model that reads features
    augment: Augment | None = None  # of the images that clients train on

    def client(self, id: int, model: nn.Module, folder: Path | None) -> Client:
        """One client with its own samples; the model is the workbench of whoever computes for it."""
        train, validation = (self.task.train.take(part) for part in self.parts[id][:2])
        method, seed = self.method, self.experiment.seed
        attack = self.attack if id in self.hostile else None
        poisoned, later = None, None
        if isinstance(self.scenario, Changed) and id == self.stage.find(self.scenario.client):
            train, other = halves(train)
            later = self.prepare(other)
        if attack is not None and "data" in attack.kind:
            poisoned = self.prepare(attack.poison(train, self.task.classes, rng(seed, -1, id, "poison")))
        return Client(
            id=id,
            seed=seed,
            about=method.bench.about,
            memory=Memory(folder and folder / "clients" / f"{id:04d}", keep=2 * self.experiment.checkpoint_every + 2),
            attack=attack,
            train=self.prepare(train),
            validation=self.prepare(validation),
            model=model,
            loss=self.task.loss,
            metrics=self.task.metrics,
            learning=method.learning,
            schedule=method.schedule,
            rounds=method.rounds,
            algorithm=method.algorithm,
            absence=method.absence,
            compress=method.compress,
            poisoned=poisoned,
            guard=self.guard,
            secure=method.secure,
            augment=self.augment,
            trust=method.trust,
            interval_from=self.interval_from,
            home=self.home(),
            later=later,
            later_from=self.scenario.back(self.stage) if isinstance(self.scenario, Changed) else 0,
        )

    def encode_ahead(self, threads: int) -> None:
        """Let a costly encoder see what the clients will read, before worker processes do so one by one."""
        if self.encoder is None or not self.encoder.costly:
            return
        rows = torch.cat([rows for train, validation, _ in self.parts for rows in (train, validation)])
        self.encoder.encode_ahead(self.task.train.inputs[0], rows, threads)

    @property
    def interval_from(self) -> int:
        """The first round whose test may be the last one: from it on intervals are told."""
        return 0 if self.stop is not None else self.experiment.rounds - 1

    def home(self) -> Tensors:
        """What stays at each client, as it is before its first training."""
        if not self.method.keeps_home:
            return {}
        weights, buffers = first_tensors(self.model(), self.experiment.start)
        return at_home(self.method.algorithm, {**weights, **buffers})

    def model(self) -> nn.Module:
        """A model with the first weights of the run, on its device."""
        return initialise(self.build, self.experiment.seed, self.layout).to(self.device)

    def start(self) -> State:
        """The state before round 1; a policy that cannot be read would be a refusal by every client in every round."""
        named = self.method.absence.named_policy if self.guard is None else self.guard.options.policy
        if named is not None:
            read_policy(named_policy(named))
        return self.first_state(self.experiment.start)

    def first_state(self, start: str | None = None) -> State:
        """The state before round 1, with the weights of this file; sites rehearse without, since they are sent them."""
        weights, buffers = first_tensors(self.model(), start)
        method = self.method
        common = shared(method.algorithm, weights)
        return State(
            round=0,
            model=weights,
            buffers=buffers,
            algorithm=method.algorithm.begin(common),
            absence=method.absence.begin(method),
            trust=method.trust.begin(method.clients),
            server_optimizer=method.server_optimizer.begin(common),
        )


def halves(samples: Samples) -> tuple[Samples, Samples]:
    """Two halves of some samples by their targets, as many in one as in the other."""
    targets, half = samples.labels.reshape(len(samples), -1)[:, 0], len(samples) // 2
    order = targets.argsort(stable=True)
    return samples.take(order[:half]), samples.take(order[half : 2 * half])
