"""Whom the floor asks, and what asking costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.core.types import Reply, size
from holdfast.data.task import Samples
from holdfast.trust.base import Hearing, Judgement
from holdfast.trust.panel import Panel, PanelRequest, digest_scores
from holdfast.trust.reputation import ENOUGH
from holdfast.trust.words import Words, sound


class WitnessPanel:
    """Whom the floor asks: the digests that are believed if there are three, else the members that are there."""

    def __init__(self, hearing: Hearing, digests: Mapping[int, Samples], members: Sequence[int], round: int, most: int):
        self.hearing, self._digests, self._members, self._round, self._most = hearing, digests, members, round, most
        self._down = 0

    @property
    def by_digests(self) -> bool:
        """Whether digests testify, not members."""
        return len(self._digests) >= 3

    @property
    def many(self) -> bool:
        """Whether members testify, and enough of them that two do not tip the scales."""
        return not self.by_digests and len(self._members) >= ENOUGH

    @property
    def explains(self) -> float:
        """The share of the harm that must be gone without those who are charged (steps 6 and 7)."""
        return 2 / 3 if self.by_digests else 1 / 2

    @property
    def noised(self) -> bool:
        """Whether digests with noise on them testify."""
        return self.hearing.promised and self.by_digests

    @property
    def last(self) -> bool:
        """Whether this is the last round."""
        return self._round + 1 == self.hearing.context.rounds

    def ask(self, job: Panel, asked: PanelRequest) -> Words:
        if self.by_digests:
            return digest_scores(self.hearing.context.bench, self._digests, asked, self._most)
        messages = [job.message(member, self._round, asked) for member in self._members]
        self._down += sum(size(message.tensors) for message in messages)
        found = {}
        for reply in self.hearing.federation.ask(messages):
            scores = job.read(reply).scores if isinstance(reply, Reply) else None
            if scores and sound(scores, asked.names, self.hearing.context.bench.about.classes):
                found[reply.client] = scores
        return found

    def billed(self, judged: Judgement) -> Judgement:
        """The judgement with what asking cost since the last bill."""
        down, self._down = self._down, 0
        return replace(judged, bytes_down=judged.bytes_down + down)
