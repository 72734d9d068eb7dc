"""A secure sum with all members in this process, and places where one can interfere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from holdfast.core.failures import Refusal
from holdfast.secure_sum.keys import simulated_key
from holdfast.secure_sum.member import Blame, Member, Terms
from holdfast.secure_sum.moderator import Answer, Question, Total, take_sum

LAYOUT = [(3, 20), (4, 33)]
Hook = Callable[[str, dict[int, Any]], Mapping[int, Any]]


def terms_of(members: Any, t: int = 1, purpose: str = "counts", attempt: int = 0, dropouts: int | None = None) -> Terms:
    known = {m: simulated_key(0, m).public_key().public_bytes_raw().hex() for m in members}
    return Terms("experiment", purpose, attempt, known, t, t if dropouts is None else dropouts)


class Bench:
    """Members that sum `vectors`; `before` changes questions, `after` answers; refusals are kept by step and member."""

    def __init__(self, vectors: Mapping[int, Any], before: Hook | None = None, after: Hook | None = None) -> None:
        self.vectors, self.before, self.after = vectors, before, after
        self.opened: dict[int, dict[str, tuple[int, ...]]] = {m: {} for m in vectors}
        self.refusals: dict[tuple[str, int], Refusal] = {}
        self.honest: list[int] = []
        self.bytes = 0

    def take(self, terms: Terms) -> Total:
        self.members: dict[int, Member] = {}
        self.terms = terms
        return take_sum(terms, lambda *_: LAYOUT, self.ask)

    def ask(self, step: str, questions: Mapping[int, Question]) -> dict[int, Answer]:
        asked = dict(questions) if self.before is None else self.before(step, dict(questions))
        answers = {}
        for member, question in asked.items():
            try:
                answers[member] = self.answer(step, member, question)
            except Refusal as error:
                self.refusals[step, member] = error
        return answers if self.after is None else dict(self.after(step, answers))

    def answer(self, step: str, member: int, question: Question) -> Answer:
        if step == "keys":
            self.members[member] = Member(self.terms, member, simulated_key(0, member), self.opened[member])
            return Answer(self.members[member].keys(), records=1)
        one = self.members[member]
        if step == "shares":
            letters, commitment = one.shares(question.letters, question.records)
            return Answer(commitment, letters)
        if step == "masked":
            try:
                return Answer(one.masked(question.letters, LAYOUT, lambda honest: self.vector(member, honest)))
            except Blame as blame:
                return Answer(blamed=blame.member)
        if step == "sign":
            return Answer(one.sign(question.present))
        return Answer(letters=one.open(question.letters))

    def vector(self, member: int, honest: int) -> Any:
        self.honest.append(honest)
        return np.asarray(self.vectors[member], dtype=np.int64)


def drop(step: str, *members: int) -> Hook:
    """Members that are killed before they answer a step, for good."""
    steps = ["keys", "shares", "masked", "sign", "open"]

    def hook(at: str, questions: dict[int, Any]) -> dict[int, Any]:
        gone = members if steps.index(at) >= steps.index(step) else ()
        return {m: q for m, q in questions.items() if m not in gone}

    return hook
