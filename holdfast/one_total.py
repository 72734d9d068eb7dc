"""The one exchange of a run with protect = "secure-sum": both stages of the members' total, and what it says.

A sum that fails because members drop out or send what is of no use is taken anew without them, as long as three are
left and their budgets allow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from holdfast.client.secure_sum import LETTER, SECURE_SUM, SumRequest, as_tensor, terms_of
from holdfast.context import Context
from holdfast.core.errors import HoldfastError
from holdfast.core.tensors import bytes_of
from holdfast.core.types import Absent, Federation, Reply, Tensors, size
from holdfast.digests.moment_wire import check_moments
from holdfast.digests.moments import MomentDigest, summarise
from holdfast.digests.release_options import ReleaseOptions
from holdfast.privacy import total_moments as totals
from holdfast.privacy.moment_noise import centres_of
from holdfast.privacy.noise import system
from holdfast.secure_sum.member import FEWEST
from holdfast.secure_sum.moderator import Answer, Failed, Question, Total, take_sum


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

    def total(self, stage: int, members: Sequence[int], parts: Sequence[totals.Part], told: Tensors) -> Total:
        """One stage's total, taken anew without those who failed it."""
        left, attempt = list(members), 0
        while True:
            try:
                return self._take(stage, left, attempt, parts, told)
            except Failed as failed:
                out = {member: why for member, why in failed.without.items() if member in left}
                self.refused |= {member: why for member, why in out.items() if member not in self.absent}
                left, attempt = [member for member in left if member not in out], attempt + 1
                if not out or len(left) < FEWEST:
                    raise HoldfastError(f"{failed} Nothing was learnt.") from None
                self.notes.append(f"a secure sum was taken anew without {self.called(out)}: {failed}")

    def called(self, clients: Mapping[int, str]) -> str:
        return ", ".join(self.method.called(client) for client in sorted(clients))

    def _take(self, stage: int, members: list[int], attempt: int, parts: Sequence[totals.Part], told: Tensors) -> Total:
        method, secure = self.method, self.method.secure
        assert secure is not None
        terms = terms_of(method.bench.about, method.seed, secure, self.round, stage, attempt, members)

        def ask(step: str, questions: Mapping[int, Question]) -> dict[int, Answer]:
            messages = []
            for client, question in sorted(questions.items()):
                letters = {str(other): as_tensor(letter) for other, letter in question.letters.items()}
                centres, present = told if step == "masked" else {}, list(question.present)
                request = SumRequest(step, stage, attempt, members, present, question.records, letters, centres)
                messages.append(SECURE_SUM.message(client, self.round, request))
                self.bytes_down += size(messages[-1].tensors)
            return {reply.client: read(reply) for reply in self._heard(self.federation.ask(messages))}

        found = take_sum(terms, partial(totals.layout_of, parts), ask)
        self.refused |= {member: why for member, why in found.faults.items() if member not in found.members}
        self.notes += [f"{method.called(member)} {why}" for member, why in found.faults.items()]
        return found

    def _heard(self, answers: Sequence[Reply | Absent]) -> list[Reply]:
        heard = [reply for reply in answers if isinstance(reply, Reply)]
        self.absent |= {reply.client: reply.reason for reply in answers if isinstance(reply, Absent)}
        self.bytes_up += sum(size(reply.tensors) for reply in heard)
        for reply in heard:
            self.seconds[reply.client] = self.seconds.get(reply.client, 0.0) + reply.seconds
        return heard


def read(reply: Reply) -> Answer:
    """A client's answer in a step."""
    said = SECURE_SUM.read(reply)
    parts = {name: bytes_of(content) for name, content in said.sum.items()}
    letter = parts.pop(LETTER, b"")
    letters = {int(name): content for name, content in parts.items() if name.isdecimal()}
    return Answer(letter, letters, max(0, min(said.samples, 2**40)), said.blamed)


def learn_total(exchange: Exchange, options: object, members: Sequence[int]) -> MomentDigest:
    """What all members' records say together."""
    about, secure = exchange.method.bench.about, exchange.method.secure
    assert secure is not None
    assert isinstance(options, ReleaseOptions)
    classes, k = about.classes, about.feature_shape[0]
    first, second, _, _ = totals.scales_for(options.true_epsilon, options.delta, k)
    one = exchange.total(1, members, totals.parts(1, first, second, classes, k), {})
    noise = totals.deviations(first, second, len(one.members), one.counted - secure.colluding)
    early = totals.first_of(one.values, classes)
    centres = centres_of(early, noise)
    told = {"means": torch.from_numpy(centres.means), "radii": torch.from_numpy(centres.radii)}
    two = exchange.total(2, one.members, totals.parts(2, first, second, classes, k), told)
    claim = totals.total_claim(options.true_epsilon, options.delta, k, secure.colluding, system())
    digest = summarise(early, centres, totals.second_of(two.values, classes, k), noise, claim)
    check_moments(digest, "secure sum", one.records if one.members == two.members else None)
    return digest
