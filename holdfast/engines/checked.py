"""What comes back from clients, on whichever engine, is what the moderator reads it as; anything else is an absence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.context import Context
from holdfast.core.errors import brief, plain
from holdfast.core.types import Absent, Around, Federation, Late, Message, Reply, one_by_one
from holdfast.jobs import job_named


class Checked(Around):
    """A federation in which nothing that a client sends reaches the moderator unread."""

    def __init__(self, federation: Federation, context: Context) -> None:
        super().__init__(federation)
        self._context = context

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        answers = self._federation.ask(messages)
        return [self._checked(answer, message) for answer, message in zip(answers, messages, strict=True)]

    def each(self, messages: Sequence[Message]) -> Iterator[Reply | Absent]:
        answers = one_by_one(self._federation, messages)
        return (self._checked(answer, message) for answer, message in zip(answers, messages, strict=True))

    def _checked(self, answer: Reply | Absent, message: Message) -> Reply | Absent:
        if isinstance(answer, Late):
            read = self._checked(answer.reply, answer.asked)
            return answer if isinstance(read, Reply) else read
        read = checked(answer, message)
        if isinstance(read, Reply) and (fault := job_named(message.job).fault(read, self._context)):
            return refused(message, fault)
        return read


def checked(answer: Reply | Absent, message: Message) -> Reply | Absent:
    """The reply, if it fits the message; the reasons of absences go to terminals and reports as one plain line."""
    if isinstance(answer, Absent):
        return Absent(message.client, plain(answer.reason))
    if fault := find_fault(answer, message):
        return refused(message, fault)
    return answer


def refused(message: Message, fault: str) -> Absent:
    return Absent(message.client, f"sent a message that was refused: {fault}")


def find_fault(reply: Reply, message: Message) -> str | None:
    """What is wrong with the form of a reply: who sent it, how long it took, and the fields that its job declares."""
    if reply.client != message.client:
        return f"it answers as client {brief(reply.client)}"
    if not isinstance(reply.seconds, float | int) or not 0 <= reply.seconds <= 1e9:
        return f"it says that it took {brief(reply.seconds)} s"
    if not isinstance(reply.scalars, dict):
        return f"its words are {brief(reply.scalars)}"
    return job_named(message.job).well_formed(reply)
