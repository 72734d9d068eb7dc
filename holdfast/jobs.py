"""Jobs: what a client can be asked to do. The part that asks for a job declares and registers it.

A request and a reply are frozen dataclasses. Their fields say what travels:

    Tensors          a group of named tensors, with the field's name in front (model/conv1.weight)
    Tensor           one tensor under the field's name
    anything else    a scalar: a number, a text, a list or a table of these

A field that is None is left out. Whatever a message holds beyond the fields, or lacks of them, is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from holdfast.context import Context
from holdfast.core.errors import brief, nearest
from holdfast.core.failures import Refusal
from holdfast.core.types import Message, Reply, Scalars, Tensors, pack, unpack

Client = TypeVar("Client")  # what the job sees of a client
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Body = TypeVar("Body")


class Malformed(ValueError):
    """A message that does not have the fields of its request or reply."""


class Job(Generic[Client, Asked, Answer]):
    """One job: its request, its reply, and what a client does in between."""

    name: str
    request: type[Asked]
    reply: type[Answer]
    exact: ClassVar[bool] = True  # whether the answer leaves without noise: a policy that limits epsilon must open it
    steps: ClassVar[bool] = False  # whether a round has several questions of it; the job refuses what is out of turn
    times: int = 1  # how often a round has another question of it at most, where it has no steps
    watches: ClassVar[bool] = False  # whether clients that a scenario sends away are asked too

    def due(self, round: int, client: Client, context: Context) -> bool:
        """Whether the experiment has this job in a round (counted from 0); a real site refuses it elsewhere."""
        raise NotImplementedError

    def check(self, asked: Asked, round: int, client: Client, context: Context) -> None:
        """Refuse a request that does not follow from the experiment; called at a real site."""

    def records(self, client: Client, round: int) -> int:
        """How many of the client's records the answer speaks of."""
        raise NotImplementedError

    def perform(self, client: Client, asked: Asked, round: int) -> Answer:
        """Do the job, at the client. Any exception becomes an absence, of which the moderator is told a code."""
        raise NotImplementedError

    def fault(self, reply: Reply, context: Context) -> str | None:
        """What is wrong with the content of a well-formed reply, as the moderator sees it."""
        return None

    def well_formed(self, reply: Reply) -> str | None:
        """What is wrong with the form of a reply, if anything."""
        try:
            self.read(reply)
        except Malformed as error:
            return str(error)
        return None

    def message(self, client: int, round: int, asked: Asked) -> Message:
        """The request, as it travels to a client."""
        return Message(client, round, self.name, *packed(asked))

    def asked(self, message: Message) -> Asked:
        """The request in a message, at the client."""
        try:
            return unpacked(self.request, message.tensors, message.scalars)
        except Malformed as error:
            raise Refusal("question", f"a {self.name!r} was asked that this client does not know: {error}.") from None

    def read(self, reply: Reply) -> Answer:
        """The answer in a reply, at the moderator."""
        return unpacked(self.reply, reply.tensors, reply.scalars)

    def answer(self, id: int, client: Client, message: Message) -> Reply:
        """From message to reply, at the client."""
        return Reply(id, *packed(self.perform(client, self.asked(message), message.round)))


JOBS: dict[str, Job[Any, Any, Any]] = {}
Registered = TypeVar("Registered", bound=Job[Any, Any, Any])


def register(job: Registered) -> Registered:
    """Make a job known in this process. A worker and a site import the parts that their experiment names."""
    JOBS[job.name] = job
    return job


def job_named(name: str) -> Job[Any, Any, Any]:
    if name not in JOBS:
        raise Refusal("job", f"there is no job {brief(name)}; {nearest(name, JOBS)}")
    return JOBS[name]


def packed(body: Any) -> tuple[Tensors, Scalars]:
    """The tensors and scalars of a request or a reply."""
    tensors: Tensors = {}
    scalars: Scalars = {}
    kind: Any = type(body)
    hints, groups, _, _ = form_of(kind)
    for name in hints:
        value = getattr(body, name)
        if name in groups:
            tensors |= pack(**{name: value})
        elif isinstance(value, Tensor):
            tensors[name] = value
        elif value is not None:
            scalars[name] = value
    return tensors, scalars


def unpacked(kind: type[Body], tensors: Tensors, scalars: Scalars) -> Body:
    """A request or a reply from its tensors and scalars, each as declared."""
    declared: Any = kind
    hints, groups, single, needed = form_of(declared)
    for name, tensor in tensors.items():
        group, slash, _ = name.partition("/")
        if group not in (groups if slash else single):
            raise Malformed(f"it holds the tensor {brief(name)}, which nobody asked for")
        if tensor.layout is not torch.strided or tensor.requires_grad:
            raise Malformed(f"its tensor {brief(name)} is not plain numbers")
    if stranger := sorted(str(name) for name in scalars if name not in hints or name in groups | single):
        raise Malformed(f"it says {brief(stranger[0])}, which nobody asked for")
    values: dict[str, Any] = {name: unpack(tensors, name) for name in groups}
    values |= {name: tensors[name] for name in single if name in tensors}
    for name, value in scalars.items():
        if not any(fits(value, hint) for hint in one_of(hints[name])):
            raise Malformed(f"`{name}` is {brief(value)}, not {ENGLISH[plain_type(hints[name])]}")
        values[name] = value
    for name in needed:
        if name not in values:
            raise Malformed(f"it lacks `{name}`")
    return kind(**values)


@functools.lru_cache(maxsize=64)
def form_of(kind: Any) -> tuple[dict[str, Any], set[str], set[str], list[str]]:
    """The fields with their types; which are groups of tensors, which are one tensor; and which must be there."""
    known = typing.get_type_hints(kind)
    hints = {field.name: known[field.name] for field in dataclasses.fields(kind)}
    groups = {name for name, hint in hints.items() if hint == Tensors}
    single = {name for name, hint in hints.items() if Tensor in one_of(hint)}
    return hints, groups, single, [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]


def one_of(hint: Any) -> tuple[Any, ...]:
    """The types that a field may have; None stands for being left out."""
    if isinstance(hint, types.UnionType):
        return tuple(kind for kind in typing.get_args(hint) if kind is not type(None))
    return (hint,)


def plain_type(hint: Any) -> Any:
    kind = one_of(hint)[0]
    return typing.get_origin(kind) or kind


ENGLISH = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text", list: "a list", dict: "a table"
}  # fmt: skip


def fits(value: object, hint: Any) -> bool:
    """Whether a scalar is of the declared type, its parts aside.

    >>> fits(1, int), fits(True, int), fits(2, float), fits([1], list[str]), fits(10**400, float)
    (True, False, True, True, False)
    """
    kind = plain_type(hint)
    return is_number(value) if kind is float else type(value) is kind


def is_number(value: object) -> bool:
    """Whether it is a number that a float can hold, be it infinite or none at all."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) <= 2**53
