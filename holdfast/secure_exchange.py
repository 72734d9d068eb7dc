"""Secure sums as questions to clients: who takes part, the steps, and a sum taken anew without those who failed it.

A sum that fails because members drop out or send what is of no use is taken anew without them, as long as three are
left and their budgets allow it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.client.secure_sum import (
    JOIN,
    LETTER,
    SECURE_SUM,
    UPDATE,
    SumReply,
    SumRequest,
    as_tensor,
    has_noise,
    terms_of,
    told_hash,
)
from holdfast.context import Context
from holdfast.core.errors import HoldfastError
from holdfast.core.tensors import bytes_of
from holdfast.core.types import Absent, Federation, Message, Reply, State, Tensors, size
from holdfast.jobs import is_number, job_named
from holdfast.privacy.total_counts import Wanted
from holdfast.record import Clock, Record
from holdfast.secure_sum.member import FEWEST
from holdfast.secure_sum.moderator import FAILED, Answer, Failed, LayoutFor, Question, Total, take_sum

KEY = 32  # bytes


@dataclass
class Exchange:
    """The steps of secure sums as questions to clients, and what came of them."""

    federation: Federation
    method: Context
    round: int
    absent: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: dict[int, float] = field(default_factory=dict)
    wanted: list[Wanted] = field(default_factory=list)  # the noise that those who joined want

    def join(self, stage: int, clients: Sequence[int]) -> dict[int, str]:
        """Those who take part, each with its long-term public key."""
        request = SumRequest(JOIN, stage, 0, {}, [], 0, {}, {})
        return self.keys_from([SECURE_SUM.message(client, self.round, request) for client in clients])

    def keys_from(self, messages: Sequence[Message]) -> dict[int, str]:
        """Send these, each of which is answered with a long-term public key."""
        answers = self._ask(messages)
        keys = {client: said.letter for client, said in answers.items()}
        self.wanted = [Wanted(*said.noise) for said in answers.values() if said.noise is not None]
        self.refused |= {client: FAILED for client, key in keys.items() if len(key) != KEY}
        return {client: key.hex() for client, key in keys.items() if len(key) == KEY}

    def total(self, stage: int, known: Mapping[int, str], layout_for: LayoutFor, told: Tensors) -> Total:
        """One stage's total, taken anew without those who failed it; `told` is what all members know, and sign for."""
        left, attempt = dict(known), 0
        while True:
            try:
                return self._take(stage, left, attempt, layout_for, told)
            except Failed as failed:
                out = {member: why for member, why in failed.without.items() if member in left}
                self.refused |= {member: why for member, why in out.items() if member not in self.absent}
                left, attempt = {m: key for m, key in left.items() if m not in out}, attempt + 1
                if not out or len(left) < FEWEST:
                    raise HoldfastError(f"{failed} Nothing was learnt.") from None
                self.notes.append(f"a secure sum was taken anew without {self.called(out)}: {failed}")

    def called(self, clients: Mapping[int, str]) -> str:
        return ", ".join(self.method.called(client) for client in sorted(clients))

    def _take(self, stage: int, known: dict[int, str], attempt: int, layout_for: LayoutFor, told: Tensors) -> Total:
        method, secure = self.method, self.method.secure
        assert secure is not None
        hashed = told_hash(told)
        of, noisy = (self.round, stage, attempt), has_noise(stage, told)
        terms = terms_of(method.bench.about, method.seed, secure, of, known, hashed, noisy)

        def ask(step: str, questions: Mapping[int, Question]) -> dict[int, Answer]:
            messages = []
            for client, question in sorted(questions.items()):
                letters = {str(other): as_tensor(letter) for other, letter in question.letters.items()}
                first, present = step == "keys", list(question.present)
                members = {str(member): key for member, key in known.items()} if first else {}
                said = told if first and stage != UPDATE else {}  # a model was sent before, to train on
                request = SumRequest(step, stage, attempt, members, present, question.records, letters, said)
                messages.append(SECURE_SUM.message(client, self.round, request))
            return self._ask(messages)

        found = take_sum(terms, layout_for, ask)
        self.refused |= {member: why for member, why in found.faults.items() if member not in found.members}
        self.notes += [f"{method.called(member)} {why}" for member, why in found.faults.items()]
        return found

    def _ask(self, messages: Sequence[Message]) -> dict[int, Answer]:
        answers = self.federation.ask(messages)
        heard = [reply for reply in answers if isinstance(reply, Reply)]
        self.absent |= {reply.client: reply.reason for reply in answers if isinstance(reply, Absent)}
        self.bytes_up += sum(size(reply.tensors) for reply in heard)
        self.bytes_down += sum(size(message.tensors) for message in messages if message.client not in self.absent)
        for reply in heard:
            self.seconds[reply.client] = self.seconds.get(reply.client, 0.0) + reply.seconds
        return {reply.client: read(job_named(messages[0].job).read(reply)) for reply in heard}


def read(said: SumReply) -> Answer:
    """A client's answer in a step."""
    parts = {name: bytes_of(content) for name, content in said.sum.items()}
    letter = parts.pop(LETTER, b"")
    letters = {int(name): content for name, content in parts.items() if name.isdecimal()}
    noise = said.noise or []
    fine = len(noise) == 2 and all(is_number(one) for one in noise) and 0 < noise[0] < math.inf and 0 < noise[1] < 1
    return Answer(letter, letters, said.samples, said.blamed, (noise[0], noise[1]) if fine else None)


def closed(
    exchange: Exchange,
    after: State,
    clock: Clock,
    asked: Sequence[int],
    weights: Mapping[int, float] | None = None,
    loss: float | None = None,
) -> tuple[State, Record]:
    """The state of the next round and the record of this one; no weights: nobody knows whose records are how many."""
    refused = {client: why for client, why in exchange.refused.items() if client not in exchange.absent}
    after = after.next(absent=tuple(sorted({*exchange.absent, *refused})))
    return after, Record(
        round=after.round,
        absent=exchange.absent,
        refused=refused,
        stand_ins=[],
        weights=dict(weights or {}),
        scores={},
        suspects={},
        loss=loss,
        bytes_up=exchange.bytes_up,
        bytes_down=exchange.bytes_down,
        seconds=clock.laps,
        notes=exchange.notes,
        asked=None if len(asked) == len(exchange.federation.clients) else list(asked),
        client_seconds=exchange.seconds,
    )
