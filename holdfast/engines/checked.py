"""What comes back from clients, on whichever engine, is what the moderator reads it as; anything else is an absence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.core.errors import brief, plain
from holdfast.core.types import Absent, Federation, Message, Reply
from holdfast.data.task import Metric

MOST = 2**48  # samples
NOTES, NOTE = 50, 2000  # at most so many notes of a reply, each of at most so many characters


class Checked:
    """A federation in which nothing that a client sends reaches the moderator unread."""

    def __init__(self, federation: Federation, metrics: Sequence[Metric]) -> None:
        self._federation, self._metrics = federation, metrics

    @property
    def clients(self) -> Sequence[int]:
        return self._federation.clients

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        answers = self._federation.ask(messages)
        return [self._checked(answer, message) for answer, message in zip(answers, messages, strict=True)]

    def close(self) -> None:
        self._federation.close()

    def _checked(self, answer: Reply | Absent, message: Message) -> Reply | Absent:
        read = checked(answer, message)
        if isinstance(read, Reply) and message.job == "evaluate":
            return refused(message, fault) if (fault := find_odd_sums(read.scalars["metrics"], self._metrics)) else read
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
    """What is wrong with the words of a reply; its tensors are looked at by validate, a report by its reader."""
    if reply.client != message.client:
        return f"it answers as client {brief(reply.client)}"
    if not isinstance(reply.seconds, float | int) or not 0 <= reply.seconds <= 1e9:
        return f"it says that it took {brief(reply.seconds)} s"
    if not isinstance(reply.scalars, dict):
        return f"its words are {brief(reply.scalars)}"
    if reply.tensors and message.job in ("evaluate", "test"):
        return f"it holds tensors, which nobody asked for in job {message.job!r}"
    notes = reply.scalars.get("notes", [])
    if not isinstance(notes, list) or len(notes) > NOTES or not all(is_note(note) for note in notes):
        return "its notes are not a short list of short texts"
    if "loss" in reply.scalars and not is_number(reply.scalars["loss"]):
        return f"its loss is {brief(reply.scalars['loss'])}, not a number"
    if message.job == "evaluate" and not isinstance(reply.scalars.get("metrics"), dict):
        return f"its metrics are {brief(reply.scalars.get('metrics'))}, not sums by name"
    if message.job == "evaluate":
        samples, interval = reply.scalars.get("samples"), reply.scalars.get("interval")
        if type(samples) is not int or not 1 <= samples <= MOST:
            return f"its samples are {brief(samples)}, not a positive whole number"
        if interval is not None and not is_interval(interval):
            return f"its interval is {brief(interval)}, not two finite numbers, the lower one first"
    return None


def is_interval(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2 or not all(is_number(one) for one in value):
        return False
    return bool(math.isfinite(value[0]) and math.isfinite(value[1]) and value[0] <= value[1])


def find_odd_sums(told: dict[str, object], metrics: Sequence[Metric]) -> str | None:
    """What is wrong with a client's sums of the task's metrics."""
    if set(told) != {metric.name for metric in metrics}:
        return f"its metrics are {brief(sorted(map(str, told)))}, not those of the task"
    for metric in metrics:
        sums = told[metric.name]
        if not isinstance(sums, list) or len(sums) != metric.width:
            return f"its {metric.name} is {brief(sums)}, not {metric.width} sums"
        if not all(is_number(one) and math.isfinite(one) for one in sums) or not metric.possible(sums):
            return f"its {metric.name} has impossible sums, {brief(sums)}"
    return None


def is_note(note: object) -> bool:
    return isinstance(note, str) and len(note) <= NOTE


def is_number(value: object) -> bool:
    """Whether it is a number that a float can hold, be it infinite or none at all."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) <= 2**53
