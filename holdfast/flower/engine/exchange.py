"""One question to many sites over a Flower grid, while it is open, and how its messages travel."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.core.types import Absent, Message, Reply
from holdfast.flower.engine.codec import BOUND


@dataclass(frozen=True)
class Wire:
    """How messages travel."""

    half_up: bool = False  # updates as float16
    half_down: bool = False  # the model as float16
    bound: int = BOUND  # bytes of a message
    poll: float = 0.1  # seconds between two looks for replies, at first; a long wait is looked at less often


@dataclass
class Exchange:
    """One question to many, while it is open."""

    start: float
    waiting: dict[int, Message] = field(default_factory=dict)  # clients that have not been sent their message yet
    sent: dict[str, Message] = field(default_factory=dict)  # id of a packet -> the message in it
    lost: set[int] = field(default_factory=set)  # of those waiting: their node went away with its message
    answers: dict[int, Reply | Absent] = field(default_factory=dict)
    pushed: dict[int, float] = field(default_factory=dict)  # when each client was sent its message
    seconds: dict[int, float] = field(default_factory=dict)  # of the replies
    bytes_down: int = 0
    bytes_up: int = 0

    def line(self, message: Message, passed: float) -> dict[str, object]:
        """What is written down of it: one of its messages says which question it was, `passed` how long it took."""
        return {
            "round": message.round + 1,
            "job": message.job,
            "seconds": passed,
            "answered_after": self.seconds,
            "working": {c: answer.seconds for c, answer in self.answers.items() if isinstance(answer, Reply)},
            "absent": {c: answer.reason for c, answer in self.answers.items() if isinstance(answer, Absent)},
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
        }
