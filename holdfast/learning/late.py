"""Late replies: what an update is worth that answers an earlier round. With w_r the model that its client was sent in
round r, delta its change, w_t today's model and tau = t - r its age:

    none       it is refused
    fedbuff    delta <- s(tau) delta                      FedBuff (Nguyen et al., AISTATS 2022)
    fedasync   delta <- s(tau) (w_r + delta - w_t)        FedAsync (Xie, Koyejo and Gupta 2019)

    s(tau) = (1 + tau)^-a,   or with hinge = b:   1 up to the age b, then 1 / (a (tau - b) + 1)

The trust rule then weighs it like any other. FedBuff repeats a step that was meant for an older model; FedAsync pulls
the model towards the client's. As printed both go on with one update, or a few, at a time; here a round's late
updates are averaged with its fresh ones. A client whose fresh update is there has its late one refused: nobody counts
twice. Running statistics (buffers) of late updates are left out, as they are of an older model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from holdfast.core.types import Absent, Late, Message, Reply, Tensors, Update, unpack


@dataclass(frozen=True)
class LateReplies:
    """A late reply is refused."""

    takes: ClassVar[bool] = False

    def weight(self, age: int) -> float:
        """s(tau); 0: too old to count."""
        return 0.0

    def take(self, answers: Sequence[Reply | Absent], round: int) -> tuple[list[Reply | Absent], dict[int, Message]]:
        """The answers with late replies in the place of absences, and the questions that those answer, by client."""
        taken = {one.client: one for one in answers if isinstance(one, Late) and self.weight(round - one.asked.round)}
        replies = [taken[one.client].reply if one.client in taken else one for one in answers]
        return replies, {client: one.asked for client, one in taken.items()}

    def discount(
        self, updates: Sequence[Update], late: Mapping[int, Message], model: Tensors, round: int
    ) -> list[Update]:
        """The updates, with late ones as they count today; `model` is what all others were sent."""
        return [
            self._discounted(update, late[update.client], model, round) if update.client in late else update
            for update in updates
        ]

    def _discounted(self, update: Update, asked: Message, model: Tensors, round: int) -> Update:
        weight = self.weight(round - asked.round)
        change = self.change(update.delta, unpack(asked.tensors, "model"), model)
        scaled = {name: tensor * weight for name, tensor in change.items()}
        return replace(update, delta=scaled, buffers={}, signature="")  # it is no longer what was signed

    def change(self, delta: Tensors, sent: Tensors, model: Tensors) -> Tensors:
        """The change of today's model that a change of the model sent stands for."""
        return delta


@dataclass(frozen=True)
class FedBuff(LateReplies):
    """A late update counts as the change that it was, the less the older it is: (1 + age)^-a.

    >>> FedBuff().weight(3), FedBuff(a=1.0, hinge=2).weight(2), FedBuff(a=1.0, hinge=2).weight(3)
    (0.5, 1.0, 0.5)
    """

    takes: ClassVar[bool] = True
    a: float = 0.5
    hinge: int | None = None
    max_age: int = 10  # rounds; an older one is refused

    def __post_init__(self) -> None:
        if not 0 <= self.a < math.inf:
            raise ValueError(f"a must not be negative, got {self.a}.")
        if self.max_age < 1 or (self.hinge is not None and self.hinge < 0):
            raise ValueError(f"max_age must be at least 1 and hinge not negative, got {self.max_age} and {self.hinge}.")

    def weight(self, age: int) -> float:
        if not 1 <= age <= self.max_age:
            return 0.0
        if self.hinge is None:
            return float((1 + age) ** -self.a)
        return 1.0 if age <= self.hinge else 1 / (self.a * (age - self.hinge) + 1)


@dataclass(frozen=True)
class FedAsync(FedBuff):
    """A late update pulls the model towards its client's own, the less the older it is: (1 + age)^-a."""

    def change(self, delta: Tensors, sent: Tensors, model: Tensors) -> Tensors:
        return {name: sent[name] + change - model[name] for name, change in delta.items()}


LATE: dict[str, type[LateReplies]] = {"none": LateReplies, "fedbuff": FedBuff, "fedasync": FedAsync}
