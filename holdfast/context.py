"""What the parts of a run may see of it: handed down to algorithms' callers, absences and trust rules, never back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from holdfast.algorithms.fedavg import FedAvg, shared
from holdfast.core.memory import Memory
from holdfast.core.names import called
from holdfast.core.randomness import rng
from holdfast.core.types import State, Tensors
from holdfast.core.validate import Sizes
from holdfast.data.task import Loss, Metric, Samples
from holdfast.learning.compress import Compression
from holdfast.learning.late import LateReplies
from holdfast.learning.schedules import Constant, Schedule, within
from holdfast.learning.server_optimizers import ServerOptimizer
from holdfast.learning.settings import Learning
from holdfast.learning.workload import Workload
from holdfast.secure_sum.options import SecureSum
from holdfast.selection import Everyone, Selection


@dataclass(frozen=True)
class About:
    """What a digest must agree on."""

    task: str = ""
    classes: int = 0  # 0: there are none
    encoder: str = ""  # fingerprint; empty: no features
    feature_shape: tuple[int, ...] = ()
    signed: bool = True  # whether features can be negative, as far as is known
    norm_bound: float | None = None  # no feature vector is longer
    kind: str = "classes"  # of targets, as kind_of reads it
    person: str | None = None  # the fact that says whose a sample is: promises are then for a patient
    shape: tuple[int, ...] = ()  # of a sample, before any features; empty: not known


@dataclass(frozen=True, kw_only=True)
class Owner:
    """One data owner, as far as what it releases is concerned."""

    id: int
    seed: int
    about: About = field(default_factory=About)
    memory: Memory = field(default_factory=Memory)  # its folder holds what it keeps, its policy and its ledger
    attack: Any = None  # what it does if it is hostile, in simulations


@dataclass(eq=False)
class Bench:
    """What the moderator computes with itself. It is overwritten by each use: what is kept in it saves work, and
    changes no result."""

    model: nn.Module = field(default_factory=nn.Identity)
    loss: Loss = nn.functional.cross_entropy
    about: About = field(default_factory=About)
    producer: nn.Module | None = None  # FedDig's guidance producer P_G, where the model needs one
    opened: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # a cache: digests, sealed and unpacked
    stretched: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # a cache: digests, unpacked and stretched
    scored: tuple[dict[int, Any], dict[bytes, Any]] = field(default_factory=lambda: ({}, {}))  # a cache: see panel.py


def no_samples(count: int) -> Samples:
    return Samples((torch.empty(0),), torch.empty(0, dtype=torch.int64))


@dataclass(frozen=True, kw_only=True)
class Context:
    """The settings of a run, and the moderator's own means."""

    algorithm: FedAvg
    learning: Learning
    rounds: int
    clients: int
    seed: int
    secret: int | None = None  # the system's, where sites are real: nobody can know the moderator's next draw
    bench: Bench = field(default_factory=Bench)
    max_norm: float | None = None
    schedule: Schedule = field(default_factory=Constant)
    sizes: Sizes = field(default_factory=Sizes)  # how many samples of each client may count
    server_optimizer: ServerOptimizer = field(default_factory=ServerOptimizer)
    secure: SecureSum | None = None  # whether the moderator learns the members' total alone
    compress: Compression = field(default_factory=Compression)  # what of an update is sent
    late: LateReplies = field(default_factory=LateReplies)  # what answers to earlier rounds are worth
    selection: Selection = field(default_factory=Everyone)
    workload: Workload = field(default_factory=Workload)  # how many steps each client takes
    poisson: bool = False  # whether clients draw their batches by chance, as DP-SGD does
    evaluate_every: int = 1  # rounds
    metrics: Sequence[Metric] = ()  # of the task
    names: tuple[str, ...] | None = None  # of the clients, for people to read
    own_samples: Callable[[int], Samples] = no_samples  # so many samples that the moderator holds itself

    def called(self, client: int) -> str:
        """What people call a client."""
        return called(self.names, client)

    def draw(self, round: int, purpose: str) -> torch.Generator:
        """What the moderator draws and nobody shall foresee: seeded in experiments, by the system at real sites."""
        return rng(self.seed if self.secret is None else self.secret, round, -1, purpose)

    def steps(self, samples: int) -> int:
        """The steps that a client with so many samples takes in a round."""
        return self.learning.steps(samples, self.poisson)

    def assigned(self, state: State, asked: Iterable[int]) -> dict[int, int]:
        """The steps of those who are to take others than usual in this round."""
        counted = self.sizes.counted(state.claims)
        return self.workload.assign({c: self.steps(counted[c]) for c in asked if c in counted}, state.pace)

    @property
    def keeps_home(self) -> bool:
        """Whether some weights or buffers stay at the clients."""
        named = (*self.bench.model.named_parameters(), *self.bench.model.named_buffers())
        return not all(self.algorithm.shares(name) for name, _ in named)

    def shared(self, model: Tensors, buffers: Tensors) -> dict[str, Tensors]:
        """What of a model travels."""
        return {"model": shared(self.algorithm, model), "buffers": shared(self.algorithm, buffers)}

    def expected(self, state: State) -> dict[str, Tensors]:
        """Tensors of the names, shapes and types of an update's."""
        common = self.shared(state.model, state.buffers)
        return {"delta": common["model"], "buffers": common["buffers"], "extra": self.algorithm.extra(common["model"])}

    def frozen(self) -> list[str]:
        """The weights that no update may move."""
        names = (name for name, _ in self.bench.model.named_parameters())
        return [name for name in names if self.algorithm.shares(name) and not self.learning.factor(name)]

    def recalls(self, state: State, client: int) -> int | None:
        """Which version of what it keeps at home a client is to test with, if it keeps any."""
        return state.accepted.get(client, -1) if self.keeps_home else None

    def learning_in(self, round: int) -> Learning:
        lr = self.learning.lr * self.schedule(round, self.rounds)
        return replace(self.learning, lr=lr, within=within(self.schedule, round, self.rounds))
