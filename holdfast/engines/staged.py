"""A scenario played on any engine: who is away is not reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from holdfast.core.types import BY_SCENARIO, Absent, Around, Federation, Message, Reply, one_by_one, reached
from holdfast.jobs import job_named
from holdfast.scenarios import Scenario, Stage


class Staged(Around):
    """A federation in which the scenario is played: messages to clients that are away do not arrive."""

    def __init__(self, federation: Federation, scenario: Scenario, stage: Stage, name: str) -> None:
        super().__init__(federation)
        self._scenario = scenario
        self._stage = stage
        self._name = name

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        return list(self._play(messages, self._federation.ask))

    def each(self, messages: Sequence[Message]) -> Iterator[Reply | Absent]:
        return self._play(messages, partial(one_by_one, self._federation))

    def _play(
        self, messages: Sequence[Message], ask: Callable[[Sequence[Message]], Iterable[Reply | Absent]]
    ) -> Iterator[Reply | Absent]:
        away = set(self._scenario(messages[0].round, self._stage)) if messages else set()
        gone = [m.client in away and not job_named(m.job).watches for m in messages]
        return reached(messages, gone, f"{BY_SCENARIO}{self._name})", ask)
