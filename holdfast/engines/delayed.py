"""Slow clients on any engine: a scenario with `delays` lets answers arrive rounds after they were asked for.

As over Flower, a slow client has one question at a time: until its answer has arrived it is asked no other, and when it
arrives the client is asked anew. What is under way is kept with the run, so that a resumed one has the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from holdfast.core.memory import Memory
from holdfast.core.types import (
    BY_SCENARIO,
    Absent,
    Around,
    Federation,
    Late,
    Message,
    Reply,
    has_withdrawn,
    pack,
    unpack,
)
from holdfast.jobs import job_named

FOLDER = "late"  # in a run's folder, with one for each slow client


class Delayed(Around):
    """A federation in which some clients answer a `train` so many rounds later."""

    def __init__(
        self, federation: Federation, delays: Mapping[int, int], name: str, folder: Path | None = None, keep: int = 4
    ) -> None:
        self._federation, self._delays, self._reason = federation, delays, f"{BY_SCENARIO}{name})"
        self._under_way = {c: Memory(folder and folder / FOLDER / f"{c:04d}", keep=keep) for c in delays}

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        owed = [self._owed(message) if message.client in self._delays else None for message in messages]
        busy = [self._is_busy(m, late) for m, late in zip(messages, owed, strict=True)]
        answers = iter(self._federation.ask([m for m, lost in zip(messages, busy, strict=True) if not lost]))
        return [
            Absent(m.client, self._reason) if lost else self._answer(m, next(answers), late)
            for m, lost, late in zip(messages, busy, owed, strict=True)
        ]

    def _is_busy(self, message: Message, owed: Late | None) -> bool:
        if message.client not in self._delays or job_named(message.job).watches:
            return False
        if message.job != "train":
            return True  # in each round a `train` comes first, so it is at that
        return owed is not None and message.round < owed.asked.round + self._delays[message.client]

    def _answer(self, message: Message, answer: Reply | Absent, owed: Late | None) -> Reply | Absent:
        """What the moderator hears: the answer of an earlier round, if one has arrived."""
        if message.client not in self._delays or message.job != "train":
            return answer
        self._keep(message, answer)
        if isinstance(answer, Absent) and (owed is None or has_withdrawn(answer.reason)):
            return answer
        return owed or Absent(message.client, self._reason)

    def _keep(self, message: Message, answer: Reply | Absent) -> None:
        """Write down what is under way from now on."""
        words, tensors = None, {}
        if isinstance(answer, Reply):
            words = {"scalars": answer.scalars, "seconds": answer.seconds}
            tensors = pack(reply=answer.tensors, model=unpack(message.tensors, "model"))
        text = torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)
        self._under_way[message.client].write(message.round, {**tensors, "words": text})

    def _owed(self, message: Message) -> Late | None:
        """The answer that is under way since an earlier round."""
        memory = self._under_way[message.client]
        asked = memory.newest_before(message.round)
        tensors = memory.read(asked)
        words = json.loads(bytes(tensors["words"].tolist())) if tensors else None
        if words is None:
            return None
        question = Message(message.client, asked, "train", pack(model=unpack(tensors, "model")))
        reply = Reply(message.client, unpack(tensors, "reply"), words["scalars"], words["seconds"])
        return Late(message.client, self._reason, question, reply)
