"""The job `secure-train`: a client trains, and keeps its update for a secure sum in which it leaves masked.

It answers with the long-term key by which the other members know it. What is kept are whole numbers on a public grid
(secure_sum/updates.py), weighed by the client's records.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.client.client import Client
from holdfast.client.secure_sum import SumReply, answer, keyring_of, told_hash
from holdfast.client.train import TRAIN, TrainRequest, learn_here, refuse_unprotected
from holdfast.context import Context
from holdfast.core.failures import Refusal
from holdfast.core.types import Tensors
from holdfast.jobs import Job, register
from holdfast.secure_sum.updates import as_whole
from holdfast.trust.base import Uniform


@dataclass(frozen=True)
class SecureTrainRequest:
    """The model to start from."""

    model: Tensors
    accepted: int
    lr: float

    def as_training(self) -> TrainRequest:
        return TrainRequest(self.model, {}, {}, {}, self.accepted, self.lr, digest=False)


class SecureTrain(Job[Client, SecureTrainRequest, SumReply]):
    name, request, reply = "secure-train", SecureTrainRequest, SumReply
    exact = False  # nothing leaves but the public key and how many records there are

    def due(self, round: int, client: Client, context: Context) -> bool:
        return context.secure is not None and not context.algorithm.one_message

    def check(self, asked: SecureTrainRequest, round: int, client: Client, context: Context) -> None:
        TRAIN.check(asked.as_training(), round, client, context)

    def records(self, client: Client, round: int) -> int:
        return len(client.train)

    def perform(self, client: Client, asked: SecureTrainRequest, round: int) -> SumReply:
        if client.secure is None or client.algorithm.one_message:
            raise Refusal("job", "a training for a secure sum was asked for, and the run has none.")
        refuse_unprotected(client)
        ring = keyring_of(client)
        learnt = learn_here(client, asked.as_training(), round)
        weight = 1 if isinstance(client.trust, Uniform) else len(client.train)
        client.learnt.clear()
        vector = as_whole(learnt.delta, weight, learnt.loss, client.secure.clip)
        client.learnt[round] = told_hash(asked.model), vector
        return answer(len(client.train), ring.own)


SECURE_TRAIN = register(SecureTrain())
