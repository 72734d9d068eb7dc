"""Hostile clients at work: what they send is exchanged on its way to the moderator, as a coalition would do it.

Attacks on data and digests happen at the client itself (`client/train.py`, `absence/feddig.py`); those on updates and
on test reports happen here, because the omniscient ones must see what the honest clients send.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from holdfast.attacks import awake, false_report, tamper_updates
from holdfast.attacks.panel_lies import LIES, false_scores
from holdfast.core.errors import HoldfastError
from holdfast.core.memory import Memory
from holdfast.core.randomness import rng
from holdfast.core.types import Absent, Around, Federation, Message, Reply, Tensors, pack, unpack

PANELS = ("panel", "replay", "confirm")  # the jobs of trust/panel.py


class Adversary(Around):
    """A federation in which some clients are hostile."""

    def __init__(
        self,
        federation: Federation,
        attack: Any,
        hostile: Collection[int],
        seed: int,
        memory: Memory | None = None,
    ) -> None:
        super().__init__(federation)
        self._attack = attack
        self._hostile = frozenset(hostile)
        self._seed = seed
        self._memory = memory or Memory()  # the model of each round, for attacks that look back

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        replies = self._federation.ask(messages)
        if not messages:
            return replies
        round, job = messages[0].round, messages[0].job
        if job == "train" and awake(self._attack, round, "update"):
            return self._exchange_updates(replies, unpack(messages[0].tensors, "model"), round)
        if job == "test" and awake(self._attack, round, "tester"):
            return [self._exchange_report(reply, round) for reply in replies]
        if job in PANELS and awake(self._attack, round, "tester"):
            return [self._exchange_scores(reply) for reply in replies]
        return replies

    def _exchange_updates(self, replies: list[Reply | Absent], model: Tensors, round: int) -> list[Reply | Absent]:
        previous = self._moved(model, round) if getattr(self._attack, "looks_back", False) else None
        heard = [reply for reply in replies if isinstance(reply, Reply)]
        ours = [reply for reply in heard if reply.client in self._hostile]
        others = [unpack(reply.tensors, "delta") for reply in heard if reply.client not in self._hostile]
        own = [unpack(reply.tensors, "delta") for reply in ours]
        sent = tamper_updates(self._attack, own, others, model, self._generator(round), previous)
        false = {reply.client: with_delta(reply, delta) for reply, delta in zip(ours, sent, strict=True)}
        return [false.get(reply.client, reply) for reply in replies]

    def _moved(self, model: Tensors, round: int) -> Tensors | None:
        """How the model moved since the round before, if the hostile clients were asked then."""
        try:
            before = self._memory.read(round - 1)
        except HoldfastError:
            before = {}
        self._memory.write(round, {name: tensor.clone() for name, tensor in model.items()})
        return {name: model[name] - before[name] for name in model} if before else None

    def _exchange_report(self, reply: Reply | Absent, round: int) -> Reply | Absent:
        if isinstance(reply, Absent) or reply.client not in self._hostile:
            return reply
        scalars = dict(reply.scalars)
        for key in ("accuracies", "patches"):
            if key in scalars:
                honest = {int(client): value for client, value in scalars[key].items()}
                told = false_report(self._attack, honest, self._hostile, self._generator(round))
                scalars[key] = {str(client): value for client, value in told.items()}
        return replace(reply, scalars=scalars)

    def _exchange_scores(self, reply: Reply | Absent) -> Reply | Absent:
        """What liars on a panel say; those of attacks that name none of these lies turn things round."""
        if isinstance(reply, Absent) or reply.client not in self._hostile or not reply.scalars.get("scores"):
            return reply
        lie = getattr(self._attack, "words", None)
        told = false_scores(lie if lie in LIES else "opposite", reply.scalars["scores"], self._hostile)
        return replace(reply, scalars={**reply.scalars, "scores": told})

    def _generator(self, round: int) -> torch.Generator:
        return rng(self._seed, round, -1, "attack")


def with_delta(reply: Reply, delta: Tensors) -> Reply:
    rest = {name: tensor for name, tensor in reply.tensors.items() if not name.startswith("delta/")}
    return replace(reply, tensors={**pack(delta=delta), **rest})


def choose_hostile(clients: int, attackers: int, seed: int) -> tuple[int, ...]:
    """Which clients are hostile: a random choice that depends on the seed alone.

    >>> len(choose_hostile(20, 4, seed=0))
    4
    """
    order = torch.randperm(clients, generator=rng(seed, -1, -1, "who is hostile")).tolist()
    return tuple(sorted(order[:attackers]))
