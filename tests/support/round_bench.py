"""The bench of the round's tests: three clients on a small network with BatchNorm, and a way to spoil replies.

The helpers come first, then tests of the bench itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from holdfast.absence import AbsencePolicy
from holdfast.algorithms import ALGORITHMS
from holdfast.algorithms.fedavg import FedAvg
from holdfast.client import Client
from holdfast.context import About, Bench
from holdfast.core.types import Absent, Federation, Message, Reply, State, Tensors
from holdfast.data.kinds import Classes
from holdfast.data.task import Samples
from holdfast.engines.inline import Inline
from holdfast.learning.settings import Learning
from holdfast.method import Method
from holdfast.models.networks import buffers_of, initialise, weights_of
from holdfast.record import Record
from holdfast.round import play_round
from holdfast.trust import TRUSTS

torch.set_num_threads(1)  # for tensors this small, more threads only wait for each other

SIZES = (6, 8, 11)  # with batches of four: 2, 2 and 3 steps, none of them on a single sample
ALGORITHM_NAMES = [name for name, kind in ALGORITHMS.items() if not kind.one_message]
Spoil = Callable[[Reply], Reply | Absent]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


def make_clients(algorithm: FedAvg, learning: Learning, sizes: Sequence[int] = SIZES) -> dict[int, Client]:
    clients = {}
    for id, count in enumerate(sizes):
        generator = torch.Generator().manual_seed(100 + id)
        data = Samples((torch.randn(count, 2, generator=generator),), torch.arange(count) % 2)
        loss = nn.functional.cross_entropy
        clients[id] = Client(
            id=id, seed=7, train=data, validation=data, model=network(), loss=loss, metrics=Classes().metrics,
            learning=learning, algorithm=algorithm,
        )  # fmt: skip
    return clients


@dataclass
class Spoiled:
    """A federation in which the replies of some clients in some rounds are changed on their way."""

    federation: Federation
    spoils: Mapping[tuple[int, int], Spoil]  # (round, client) -> what happens to its reply

    @property
    def clients(self) -> Sequence[int]:
        return self.federation.clients

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        replies = self.federation.ask(messages)
        spoils = [self.spoils.get((m.round, m.client), lambda reply: reply) for m in messages]
        return [spoil(r) if isinstance(r, Reply) else r for spoil, r in zip(spoils, replies, strict=True)]

    def close(self) -> None:
        self.federation.close()


class Away:
    """A federation in which some clients are not even asked in some rounds."""

    def __init__(self, federation: Federation, away: set[tuple[int, int]], order: Sequence[int] | None = None) -> None:
        self._federation, self._away = federation, away
        self._order = federation.clients if order is None else order

    @property
    def clients(self) -> Sequence[int]:
        return self._order

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        gone = [(m.round, m.client) in self._away for m in messages]
        answers = iter(self._federation.ask([m for m, away in zip(messages, gone, strict=True) if not away]))
        return [Absent(m.client, "away") if away else next(answers) for m, away in zip(messages, gone, strict=True)]

    def close(self) -> None:
        self._federation.close()


def make_method(algorithm: FedAvg, learning: Learning, clients: int, max_norm: float | None = None) -> Method:
    trust = TRUSTS[algorithm.weights]()
    bench = Bench(network(), nn.functional.cross_entropy, About())
    return Method(
        algorithm=algorithm, absence=AbsencePolicy(), trust=trust, learning=learning, rounds=8, clients=clients, seed=7,
        bench=bench, max_norm=max_norm,
    )  # fmt: skip


def first_state(method: Method) -> State:
    model = initialise(network, 7)
    weights = weights_of(model)
    return State(0, weights, buffers_of(model), method.algorithm.begin(weights), {}, {})


def play(
    name: str,
    rounds: int,
    wrap: Callable[[Federation], Federation] = lambda federation: federation,
    max_norm: float | None = None,
    learning: Learning | None = None,
) -> list[tuple[State, Record]]:
    """What happens in each round with fresh clients; `wrap` decides what goes wrong on the way."""
    learning = learning or Learning(epochs=1, batch_size=4, lr=0.1, momentum=0.9)
    algorithm = ALGORITHMS[name]()
    federation = wrap(Inline(make_clients(algorithm, learning)))
    method = make_method(algorithm, learning, len(SIZES), max_norm)
    state, told = first_state(method), []
    for _ in range(rounds):
        state, record = play_round(state, federation, method)
        told.append((state, record))
    return told


def same_bits(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def same_state(a: State, b: State) -> bool:
    groups = ("model", "buffers", "algorithm", "absence", "trust")
    rest = ("round", "accepted", "absent", "digests")
    return all(same_bits(getattr(a, g), getattr(b, g)) for g in groups) and all(
        getattr(a, r) == getattr(b, r) for r in rest
    )


def with_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Spoil:
    return lambda reply: replace(reply, tensors={**reply.tensors, name: change(reply.tensors[name])})


def with_scalar(name: str, value: object) -> Spoil:
    return lambda reply: replace(reply, scalars={**reply.scalars, name: value})
