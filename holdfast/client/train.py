"""The job `train`: the model that was sent learns from the client's own samples, and the change goes back."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.algorithms.local_training import Sent, learn
from holdfast.attacks import awake
from holdfast.client.client import Client, policy_of, recall_memory
from holdfast.context import Context
from holdfast.core.errors import HoldfastError, brief
from holdfast.core.failures import Refusal
from holdfast.core.randomness import rng, seed_of
from holdfast.core.types import Reply, Tensors, pack, unpack
from holdfast.data.task import Samples
from holdfast.jobs import Job, is_number, packed, register
from holdfast.learning.loop import plain_gradients
from holdfast.learning.objective import TaskLoss
from holdfast.learning.schedules import within
from holdfast.privacy.dp_sgd import Kept
from holdfast.privacy.dp_steps import Noisy
from holdfast.privacy.noise import system
from holdfast.privacy.patients import patients_in, whose_of

NOTES, NOTE = 50, 2000  # at most so many notes of a reply, each of at most so many characters


@dataclass(frozen=True)
class TrainRequest:
    """The model to start from, what the algorithm adds to it, and what a returning client takes over."""

    model: Tensors
    buffers: Tensors
    server: Tensors
    memory: Tensors
    accepted: int  # the last round, counted from 0, in which the client's update counted; -1: none
    lr: float
    digest: bool  # whether the client is to send its digest too
    steps: int | None = None  # that it is to take; none: as its samples make


@dataclass(frozen=True)
class TrainReply:
    """What a client learnt, and what it says about itself."""

    delta: Tensors
    buffers: Tensors
    extra: Tensors  # what the algorithm sends with an update
    digest: Tensors
    samples: int
    steps: int
    notes: list[str]  # codes, see core/failures.py
    loss: float | None = None  # who protects anything tells none
    signature: str | None = None  # of a real site with a key, over delta and buffers


class Train(Job[Client, TrainRequest, TrainReply]):
    name, request, reply = "train", TrainRequest, TrainReply
    exact = False  # noise, ledger and policy of an update are this job's own concern

    def due(self, round: int, client: Client, context: Context) -> bool:
        return not context.algorithm.one_message and context.secure is None

    def check(self, asked: TrainRequest, round: int, client: Client, context: Context) -> None:
        """Refuse to train in another way than the experiment says."""
        if not -1 <= asked.accepted < round:
            raise Refusal("question", "a 'train' names a round that has not been played.")
        if asked.lr != context.learning_in(round).lr:
            raise Refusal("question", "a 'train' names another learning rate than the experiment.")
        if asked.steps is not None and not context.workload.allows(asked.steps, context.steps(len(client.train))):
            raise Refusal("question", "a 'train' names a number of steps that the experiment does not allow.")

    def records(self, client: Client, round: int) -> int:
        return len(client.train)

    def perform(self, client: Client, asked: TrainRequest, round: int) -> TrainReply:
        """Train; where updates are protected, within the budget, and never twice for one message."""
        if client.secure is not None:
            raise Refusal("job", "a single update was asked for, and with secure sums only the members' total leaves.")
        if client.guard is None:
            refuse_unprotected(client)
            return learn_here(client, asked, round)
        kept, message = Kept(client.memory.folder, client.guard.keep), self.message(client.id, round, asked)
        if answered := kept.read(message):
            return self.read(answered)
        whose = whose_of(samples_in(client, round), client.about.person)
        noisy = client.guard.admit(client, counted(client), client.learning, round, whose=whose)
        reply = learn_here(client, asked, round, noisy)
        kept.write(message, Reply(client.id, *packed(reply)))
        return reply

    def well_formed(self, reply: Reply) -> str | None:
        """Only what is read before `core/validate.py` looks at the update, and refuses it by name."""
        notes = reply.scalars.get("notes", [])
        if not isinstance(notes, list) or len(notes) > NOTES or not all(is_note(note) for note in notes):
            return "its notes are not a short list of short texts"
        if "loss" in reply.scalars and not is_number(reply.scalars["loss"]):
            return f"its loss is {brief(reply.scalars['loss'])}, not a number"
        if "signature" in reply.scalars and not is_note(reply.scalars["signature"]):
            return "its signature is no short text"
        return None


TRAIN = register(Train())


def is_note(note: object) -> bool:
    return isinstance(note, str) and len(note) <= NOTE


def refuse_unprotected(client: Client) -> None:
    """Refuse an update without noise where the client's policy insists on it."""
    policy = policy_of(client)
    if policy is not None and policy.protect_updates:
        raise Refusal(
            "unprotected",
            "policy: updates must be protected and this experiment's are not; no update leaves: ask for protect = "
            "'dp-sgd', or say protect_updates = false in the policy.",
        )


def learn_here(client: Client, asked: TrainRequest, round: int, noisy: Noisy | None = None) -> TrainReply:
    """Train the model that was sent on one's own samples; answer with the change."""
    memory, kept, home, notes = recall_memory(client, asked.accepted, asked.memory)
    samples = samples_in(client, round)
    order = rng(client.seed, round, client.id, "batches")
    learnt = learn(
        client.model,
        samples,
        Sent({**asked.model, **home}, {**asked.buffers, **home}, asked.server),
        memory,
        algorithm=client.algorithm,
        learning=replace(
            client.learning,
            lr=float(asked.lr),
            within=within(client.schedule, round, client.rounds),
            local_steps=asked.steps or client.learning.local_steps,
        ),
        objective=TaskLoss(client.loss, each=samples.weights is not None),
        round=round,
        last=asked.accepted,
        order=order,
        # A protected model's own chance (dropout) must be nobody's to foresee.
        chance=seed_of(client.seed, round, client.id, "model") if noisy is None else secret(),
        gradients=noisy or plain_gradients(order, client.learning, client.augment),
        kept=kept,
    )
    delta, error = client.compress.squeeze(learnt.delta, left_out(client, asked.accepted))
    client.memory.write(round, {**learnt.memory, **pack(error=error)})
    return TrainReply(
        delta,
        learnt.buffers,
        learnt.extra,
        client.absence.make_digest(client, samples_in(client, round, "digests"), round) if asked.digest else {},
        counted(client),
        learnt.steps,
        notes,
        None if discreet(client) else learnt.loss,
    )


def left_out(client: Client, accepted: int) -> Tensors:
    """What the last update that counted left out; where it is lost, `recall_memory` has said so."""
    if not client.compress.keeps:
        return {}
    try:
        return unpack(client.memory.read(accepted), "error")
    except HoldfastError:
        return {}


def counted(client: Client) -> int:
    """The samples that a client says it has: its patients, where a promise is for patients."""
    promises = client.guard is not None or client.absence.protects
    return patients_in(client.train, client.about.person) if promises else len(client.train)


def discreet(client: Client) -> bool:
    """Whether anything of a client is protected: then its training loss, which is exact, stays at home."""
    policy = policy_of(client)
    return client.guard is not None or client.absence.protects or (policy is not None and policy.limited)


def secret() -> int:
    """A seed from the operating system's entropy."""
    return int.from_bytes(system().read(8), "little") - 2**63


def samples_in(client: Client, round: int, purpose: str = "updates") -> Samples:
    """The samples that a client trains on, or makes its digest of: its own, those it has by then, or poisoned ones once
    its attack is awake."""
    into = getattr(client.attack, "into", "both")
    if client.poisoned is not None and into in ("both", purpose) and awake(client.attack, round, "data"):
        return client.poisoned
    return client.later if client.later is not None and round >= client.later_from else client.train
