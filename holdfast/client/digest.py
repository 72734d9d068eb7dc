"""The job `digest`: a client sends its digest and nothing else, where the algorithm is "oneshot"."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.client.client import Client
from holdfast.client.train import counted, samples_in
from holdfast.context import Context
from holdfast.core.failures import Refusal
from holdfast.core.types import Tensors
from holdfast.jobs import Job, register


@dataclass(frozen=True)
class DigestRequest:
    """Nothing is sent: what a digest is stands in the experiment."""


@dataclass(frozen=True)
class DigestReply:
    """The digest, sealed, or a code that says why there is none."""

    digest: Tensors
    samples: int


class SendDigest(Job[Client, DigestRequest, DigestReply]):
    name, request, reply = "digest", DigestRequest, DigestReply
    exact = False  # a digest is entered in the client's ledger, or refused by its policy, before it leaves

    def due(self, round: int, client: Client, context: Context) -> bool:
        return context.algorithm.one_message and context.secure is None

    def records(self, client: Client, round: int) -> int:
        return len(client.train)

    def perform(self, client: Client, asked: DigestRequest, round: int) -> DigestReply:
        if not client.algorithm.one_message:
            raise Refusal("job", "a 'digest' alone was asked for, but the run's algorithm trains.")
        if client.secure is not None:
            raise Refusal("job", "a 'digest' was asked for, but only the members' total leaves in this run.")
        return DigestReply(
            client.absence.make_digest(client, samples_in(client, round, "digests"), round), counted(client)
        )


DIGEST = register(SendDigest())
