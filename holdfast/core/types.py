"""The words every room shares: tensors, messages, updates, state, and the one seam, Federation.

Everything that travels or is saved is a flat dict of named tensors. A name has its group in front:
``model/conv1.weight``, ``buffers/norm.running_mean``, ``server/c/fc.bias``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch

Tensors = dict[str, torch.Tensor]
Scalars = dict[str, Any]  # what JSON can say: numbers, strings, lists, dicts


@dataclass(frozen=True)
class Message:
    """What the moderator asks one client to do."""

    client: int
    round: int  # counted from 0
    job: str
    tensors: Tensors = field(default_factory=dict)
    scalars: Scalars = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What one client answered."""

    client: int
    tensors: Tensors = field(default_factory=dict)
    scalars: Scalars = field(default_factory=dict)
    seconds: float = 0.0  # as the client says
    took: float = 0.0  # seconds by the moderator's clock; the engine's to say


@dataclass(frozen=True)
class Absent:
    """A client that did not answer, and why."""

    client: int
    reason: str


@dataclass(frozen=True)
class Late(Absent):
    """A client that did not answer, but whose answer to a question of an earlier round has come."""

    asked: Message
    reply: Reply


# How the reasons begin of those who were not there; any other reason is a job that failed or an answer refused.
BY_SCENARIO = "away ("
WITHDREW = "has withdrawn"
NOT_THERE = (
    BY_SCENARIO,
    "is not connected",
    "waits for approval",
    "is paused",
    WITHDREW,
    "did not answer",
    "still owes",
    "lost its connection",
    "its node is gone",  # in runs of earlier versions
    "its reply was not uploaded in time",
)


def by_scenario(reason: str) -> bool:
    """Whether a client was absent because the scenario says so."""
    return reason.startswith(BY_SCENARIO)


def has_withdrawn(reason: str) -> bool:
    """Whether a client is absent for good, and what stands in for it is to be forgotten."""
    return reason.startswith(WITHDREW)


def not_there(reason: str) -> bool:
    """Whether a client was away; otherwise it was asked, and its job crashed or its answer was refused.

    >>> not_there("away (sequential)"), not_there("its worker process died (signal 11)")
    (True, False)
    """
    return reason.startswith(NOT_THERE)


class Federation(Protocol):
    """The engine, and the only seam: messages go out, replies or absences come back, in the order asked."""

    @property
    def clients(self) -> Sequence[int]: ...

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]: ...

    def close(self) -> None: ...


@runtime_checkable
class OneByOne(Protocol):
    """A federation that can also hand out replies one at a time, so that not all of them are in memory at once."""

    def each(self, messages: Sequence[Message]) -> Iterator[Reply | Absent]:
        """As `ask`; the tensors of one reply may be gone when the next is taken."""
        ...


def one_by_one(federation: Federation, messages: Sequence[Message]) -> Iterator[Reply | Absent]:
    """Replies or absences in the order asked, one at a time where the federation can do that."""
    return federation.each(messages) if isinstance(federation, OneByOne) else iter(federation.ask(messages))


def reached(
    messages: Sequence[Message],
    gone: Sequence[bool],
    reason: str,
    ask: Callable[[Sequence[Message]], Iterable[Reply | Absent]],
) -> Iterator[Reply | Absent]:
    """The answers where some messages do not arrive; by place: one client may be asked several things at once."""
    answers = iter(ask([message for message, lost in zip(messages, gone, strict=True) if not lost]))
    for message, lost in zip(messages, gone, strict=True):
        yield Absent(message.client, reason) if lost else next(answers)
    yield from answers  # nothing: but the last reply is given back


class Around:
    """The base of a federation around another one, which changes what is asked or answered."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation

    @property
    def clients(self) -> Sequence[int]:
        return self._federation.clients

    def close(self) -> None:
        self._federation.close()


@dataclass(frozen=True)
class Update:
    """What one client, or its stand-in, learnt in a round: delta = its weights minus the model it was sent."""

    client: int
    delta: Tensors
    samples: int
    steps: int
    buffers: Tensors = field(default_factory=dict)
    synthetic: bool = False
    extra: Tensors = field(default_factory=dict)  # what the algorithm sends with it
    signature: str = ""  # the sender's, over delta and buffers; hexadecimal, empty: there is none


BY_CLIENT = ("accepted", "claims", "digests", "pace")  # what a state keeps of each client


@dataclass(frozen=True)
class State:
    """All that the moderator knows between two rounds; a checkpoint is exactly this."""

    round: int  # rounds played so far: the one being played, counted from 0
    model: Tensors
    buffers: Tensors
    algorithm: Tensors
    absence: Tensors
    trust: Tensors
    accepted: Mapping[int, int] = field(default_factory=dict)  # client -> the last round its update counted
    absent: Sequence[int] = ()  # clients that were asked in the last round and not heard
    claims: Mapping[int, int] = field(default_factory=dict)  # client -> the samples it claimed when it joined
    digests: Mapping[int, Tensors] = field(default_factory=dict)  # client -> what stands in for it
    server_optimizer: Tensors = field(default_factory=dict)
    selection: Tensors = field(default_factory=dict)  # what is remembered of each client to choose whom to ask
    pace: Mapping[int, float] = field(default_factory=dict)  # client -> seconds a step, where work goes by speed

    def without(self, clients: Collection[int]) -> State:
        """The state in which nothing is kept of these clients but what the model learnt from them."""
        if not clients:
            return self
        groups = tuple(f"memory/{client}/" for client in clients)
        absence, algorithm = (
            {name: tensor for name, tensor in tensors.items() if not name.startswith(groups)}
            for tensors in (self.absence, self.algorithm)
        )
        for name, nothing in (("stood_in", -1), ("contradicted", math.nan)):  # one number for each client
            if name in absence:
                absence[name] = absence[name].clone()
                absence[name][list(clients)] = nothing
        kept: dict[str, Any] = {
            name: {c: v for c, v in getattr(self, name).items() if c not in clients} for name in BY_CLIENT
        }
        selection = {name: tensor.clone() for name, tensor in self.selection.items()}
        for tensor in selection.values():
            tensor[list(clients)] = math.nan if tensor.is_floating_point() else -1
        gone = {f"{kept}/{client}" for client in clients for kept in ("momentum", "aside")}  # of each client's updates
        trust = {name: tensor for name, tensor in self.trust.items() if name not in gone}
        if "taught" in trust:  # a row for each client: what the model has from it
            trust["taught"] = trust["taught"].index_fill(0, torch.tensor(sorted(clients)), 0.0)
        return replace(self, absence=absence, algorithm=algorithm, selection=selection, trust=trust, **kept)

    def next(self, **changes: Any) -> State:
        return replace(self, round=self.round + 1, **changes)


def pack(**groups: Tensors) -> Tensors:
    """Groups of tensors as one flat dict, the group's name in front.

    >>> list(pack(model={"w": torch.zeros(1)}, server={}))
    ['model/w']
    """
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def unpack(tensors: Tensors, group: str) -> Tensors:
    """The tensors of one group, without the group's name; the opposite of pack."""
    prefix = group + "/"
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def groups_of(tensors: Tensors) -> dict[str, Tensors]:
    """Every group by its name, in one pass.

    >>> groups_of(pack(delta={"w": torch.zeros(1)}, extra={"c/w": torch.ones(1)}))
    {'delta': {'w': tensor([0.])}, 'extra': {'c/w': tensor([1.])}}
    """
    groups: dict[str, Tensors] = {}
    for path, tensor in tensors.items():
        group, slash, name = path.partition("/")
        if slash:
            groups.setdefault(group, {})[name] = tensor
    return groups


def size(tensors: Tensors) -> int:
    """Bytes of the tensors on the wire."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


LARGE = 2**26  # bytes


def is_large(tensors: Tensors) -> bool:
    """Whether these are no longer copied, or kept for each client, where that can be helped."""
    return size(tensors) >= LARGE


def weighted_sum(items: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    """Sum of weight x tensors, name by name.

    >>> weighted_sum([{"w": torch.tensor([2.0])}, {"w": torch.tensor([4.0])}], [0.5, 0.25])
    {'w': tensor([2.])}
    """
    total = {name: tensor * weights[0] for name, tensor in items[0].items()}
    for tensors, weight in zip(items[1:], weights[1:], strict=True):
        for name, tensor in tensors.items():
            total[name].add_(tensor, alpha=weight)
    return total
