"""A scenario played on any engine: who is away is not reached."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.types import BY_SCENARIO, Absent, Around, Federation, Message, Reply
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
        away = set(self._scenario(messages[0].round, self._stage)) if messages else set()
        gone = [m.client in away and not job_named(m.job).watches for m in messages]
        answers = iter(self._federation.ask([m for m, lost in zip(messages, gone, strict=True) if not lost]))
        reason = f"{BY_SCENARIO}{self._name})"
        # By place, not by client: one client may be asked several things at once.
        return [Absent(m.client, reason) if lost else next(answers) for m, lost in zip(messages, gone, strict=True)]
