"""The bench of the hand-derived tests: clients whose loss is L_i(w) = (w - m_i)^2 / 2, so that every step is known.

A client has n samples x = 1 with label m_i; the model is w x; with batches of one it takes n steps an epoch, each with
the gradient w - m_i. The helpers come first, then tests of the bench itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from holdfast.absence import AbsencePolicy
from holdfast.algorithms.fedavg import FedAvg
from holdfast.client import Client
from holdfast.context import About
from holdfast.context import Bench as Workbench
from holdfast.core.types import State
from holdfast.core.validate import Sizes
from holdfast.data.kinds import Regression
from holdfast.data.task import Samples
from holdfast.engines.inline import Inline
from holdfast.engines.staged import Staged
from holdfast.learning.schedules import Constant, Schedule
from holdfast.learning.settings import Learning
from holdfast.method import Method
from holdfast.record import Record
from holdfast.round import play_round
from holdfast.scenarios import Intervals, Stage
from holdfast.trust import TRUSTS

torch.set_num_threads(1)  # for tensors this small, more threads only wait for each other


class OneWeight(nn.Module):
    """y = w x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def half_square(output: Tensor, labels: Tensor) -> Tensor:
    return (output - labels).square().mean() / 2


@dataclass
class Bench:
    """A federation on quadratics; `play` runs one round of it and keeps what happened."""

    algorithm: FedAvg
    targets: Sequence[float]  # m_i
    samples: Sequence[int]  # n_i, which with batches of one is also the number of steps
    learning: Learning
    away: tuple[tuple[int, int, int], ...] = ()
    rounds: int = 8
    schedule: Schedule = Constant()
    state: State = field(init=False)
    record: Record = field(init=False)

    def __post_init__(self) -> None:
        self.clients = {
            id: quadratic_client(id, target, count, self.learning, self.algorithm)
            for id, (target, count) in enumerate(zip(self.targets, self.samples, strict=True))
        }
        stage = Stage(self.rounds, self.samples, seed=0)
        self.federation = Staged(Inline(self.clients), Intervals(self.away), stage, "away")
        trust = TRUSTS[self.algorithm.weights]()
        count = len(self.samples)
        self.method = Method(
            algorithm=self.algorithm,
            absence=AbsencePolicy(),
            trust=trust,
            learning=self.learning,
            rounds=self.rounds,
            clients=count,
            seed=0,
            sizes=Sizes(self.samples),
            bench=Workbench(OneWeight(), half_square, About()),
            schedule=self.schedule,
        )
        model = {"w": torch.zeros(1)}
        self.state = State(0, model, {}, self.algorithm.begin(model), {}, trust.begin(count))

    def play(self) -> float:
        """One round; the model after it."""
        self.state, self.record = play_round(self.state, self.federation, self.method)
        return self.w

    @property
    def w(self) -> float:
        return float(self.state.model["w"])

    @property
    def server(self) -> float:
        """The moderator's memory."""
        return float(self.state.algorithm["w"])

    def memory(self, client: int) -> float:
        """A client's memory as of the last round in which its update counted."""
        return float(self.clients[client].memory.read(self.state.accepted[client])["w"])

    @property
    def weights(self) -> Mapping[int, float]:
        return self.record.weights


def quadratic_client(id: int, target: float, count: int, learning: Learning, algorithm: FedAvg) -> Client:
    data = Samples((torch.ones(count, 1),), torch.full((count, 1), target))
    return Client(
        id=id, seed=0, train=data, validation=data, model=OneWeight(), loss=half_square, metrics=Regression().metrics,
        learning=learning, algorithm=algorithm,
    )  # fmt: skip


def plain(lr: float, momentum: float = 0.0, epochs: int = 1) -> Learning:
    return Learning(epochs=epochs, batch_size=1, lr=lr, momentum=momentum)
