"""What happens at a client: perform(client, message) -> reply, job by job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from holdfast.absence import AbsencePolicy
from holdfast.algorithms.fedavg import FedAvg
from holdfast.algorithms.local_training import Sent, learn
from holdfast.attacks import awake
from holdfast.context import Owner
from holdfast.core.errors import HoldfastError, nearest
from holdfast.core.failures import Refusal, tell_home
from holdfast.core.randomness import rng, seed_of
from holdfast.core.types import Message, Reply, Scalars, Tensors, pack, unpack
from holdfast.data.bootstrap import interval_of
from holdfast.data.task import Loss, Metric, Samples
from holdfast.learning.loop import outputs_of
from holdfast.learning.objective import TaskLoss
from holdfast.learning.settings import Learning
from holdfast.models.networks import fill
from holdfast.privacy.dp_sgd import Guard, Kept
from holdfast.privacy.dp_steps import Noisy
from holdfast.privacy.gate import house_of
from holdfast.privacy.ledger import Policy
from holdfast.privacy.noise import system
from holdfast.trust.backdoor_probe import Stamped, innocence_of
from holdfast.trust.base import Trust
from holdfast.trust.measures import MEASURES, held_out, tested_in


@dataclass(frozen=True, kw_only=True)
class Client(Owner):
    """One data owner: its samples, and how it learns. The model is a workbench: each job fills it anew."""

    train: Samples
    validation: Samples
    model: nn.Module
    loss: Loss
    metrics: Sequence[Metric]
    learning: Learning
    algorithm: FedAvg
    absence: AbsencePolicy = field(default_factory=AbsencePolicy)
    poisoned: Samples | None = None  # what it trains on once its attack is awake, in simulations
    guard: Guard | None = None  # protects its updates
    stamped: Stamped | None = None  # held-out images with squares, where a jury looks for backdoors
    trust: Trust = field(default_factory=Trust)  # the run's rule, which says what testers are asked
    interval_from: int = 1 << 62  # the round from which it tells how sure its leading metric is
    home: Tensors = field(default_factory=dict)  # weights and buffers that do not travel, as they are at first


def perform(client: Client, message: Message) -> Reply:
    """Do one job. Whatever goes wrong is an exception: the engine turns it into an absence with a reason."""
    if message.job not in JOBS:
        raise Refusal("job", f"client {client.id} knows no job {message.job!r}; {nearest(message.job, JOBS)}")
    check_open(client, message.job)
    start = time.perf_counter()
    reply = JOBS[message.job](client, message)
    return replace(reply, seconds=time.perf_counter() - start)


def check_open(client: Client, job: str) -> None:
    """Refuse an exact answer where the client's policy limits epsilon and does not open this job."""
    policy = policy_of(client)
    if policy is not None and policy.refuses(job):
        raise Refusal("closed", f"policy: {job!r} has an exact answer and max_epsilon is limited; see `open`.")


def train_job(client: Client, message: Message) -> Reply:
    """Train on one's own samples; where updates are protected, within the budget, and never twice for one message."""
    if client.algorithm.one_message:
        raise Refusal("job", f"client {client.id} is asked to train, but the run's algorithm asks for digests alone.")
    if client.guard is None:
        refuse_unprotected(client)
        return learn_here(client, message)
    kept = Kept(client.memory.folder, client.guard.keep)
    if answered := kept.read(message):
        return answered
    noisy = client.guard.admit(client, len(client.train), client.learning, message.round)
    return kept.write(message, learn_here(client, message, noisy))


def policy_of(client: Client) -> Policy | None:
    """The policy that a client keeps to, if there is one."""
    named = client.absence.named_policy if client.guard is None else client.guard.options.policy
    house = house_of(client.memory.folder, named)
    return None if house.policy is None else house.read_policy(0.0)


def refuse_unprotected(client: Client) -> None:
    """Refuse an update without noise where the client's policy insists on it."""
    policy = policy_of(client)
    if policy is not None and policy.protect_updates:
        raise Refusal(
            "unprotected",
            "policy: updates must be protected and this experiment's are not; no update leaves: ask for protect = "
            "'dp-sgd', or say protect_updates = false in the policy.",
        )


def learn_here(client: Client, message: Message, noisy: Noisy | None = None) -> Reply:
    """Train the model that was sent on one's own samples; answer with the change."""
    sent = Sent(*(unpack(message.tensors, group) for group in ("model", "buffers", "server")))
    last = int(message.scalars["accepted"])
    memory, kept, home, notes = recall_memory(client, last, unpack(message.tensors, "memory"))
    sent = replace(sent, model={**sent.model, **home}, buffers={**sent.buffers, **home})
    samples = samples_in(client, message.round)
    learnt = learn(
        client.model,
        samples,
        sent,
        memory,
        algorithm=client.algorithm,
        learning=replace(client.learning, lr=float(message.scalars["lr"])),
        objective=TaskLoss(client.loss),
        round=message.round,
        last=last,
        order=rng(client.seed, message.round, client.id, "batches"),
        # A protected model's own chance (dropout) must be nobody's to foresee.
        chance=seed_of(client.seed, message.round, client.id, "model") if noisy is None else secret(),
        gradients=noisy,
        kept=kept,
    )
    client.memory.write(message.round, learnt.memory)
    digest = client.absence.make_digest(client, samples, message.round) if message.scalars.get("digest") else {}
    return Reply(
        client.id,
        pack(delta=learnt.delta, buffers=learnt.buffers, extra=learnt.extra, digest=digest),
        {"samples": len(client.train), "steps": learnt.steps, "notes": notes}
        | ({} if discreet(client) else {"loss": learnt.loss}),
    )


def discreet(client: Client) -> bool:
    """Whether anything of a client is protected: then its training loss, which is exact, stays at home."""
    policy = policy_of(client)
    return client.guard is not None or client.absence.protects or (policy is not None and policy.limited)


def secret() -> int:
    """A seed from the operating system's entropy."""
    return int.from_bytes(system().read(8), "little") - 2**63


def samples_in(client: Client, round: int) -> Samples:
    """The samples that a client trains on: its own, or poisoned ones once its attack is awake."""
    if client.poisoned is not None and awake(client.attack, round, "data"):
        return client.poisoned
    return client.train


def recall_memory(client: Client, last: int, sent: Tensors) -> tuple[Tensors, Tensors, Tensors, list[str]]:
    """The algorithm's memory as of the last round that counted, or as a stand-in left it; the optimiser's state; and
    what stays at home. A code says if it is lost.
    """
    if not client.learning.optimizer.keep and not client.home and (sent or not client.algorithm.remembers):
        return sent, {}, {}, []
    try:
        memory = client.memory.read(last)
    except HoldfastError as error:
        tell_home(client.memory.folder, f"{error}; client {client.id} starts with an empty one")
        return sent, {}, client.home, ["memory-lost"]
    own = {name: tensor for name, tensor in memory.items() if not name.startswith(("optimizer/", "home/"))}
    return sent or own, unpack(memory, "optimizer"), unpack(memory, "home") or client.home, []


def digest_job(client: Client, message: Message) -> Reply:
    """Send one's digest and nothing else, where the algorithm is "oneshot"."""
    if not client.algorithm.one_message:
        raise Refusal("job", f"client {client.id} is asked for its digest alone, but the run's algorithm trains.")
    digest = client.absence.make_digest(client, samples_in(client, message.round), message.round)
    return Reply(client.id, pack(digest=digest), {"samples": len(client.train)})


def evaluate_job(client: Client, message: Message) -> Reply:
    """Test the model that was sent, with what stays at home, on one's own validation samples: sums of each metric."""
    home: Tensors = {}
    if client.home:
        home = recall_memory(client, int(message.scalars["accepted"]), {})[2]
    weights, buffers = ({**unpack(message.tensors, group), **home} for group in ("model", "buffers"))
    fill(client.model, weights, buffers)
    samples = held_out(client.validation, client.train)
    output = outputs_of(client.model, samples)
    sums = {metric.name: metric.sums(output, samples.labels) for metric in client.metrics}
    told: Scalars = {"metrics": sums, "samples": len(samples)}
    if message.round >= client.interval_from:
        chance = rng(client.seed, message.round, client.id, "bootstrap")
        told["interval"] = interval_of(client.metrics[0], output, samples.labels, chance)
    return Reply(client.id, {}, told)


def test_job(client: Client, message: Message) -> Reply:
    """Test what other clients sent on one's own held-out samples (FedTest): {client: accuracy}; look for backdoors."""
    asked = client.trust.testing(message.round)
    if asked is None:
        raise Refusal("job", f"client {client.id} is asked to test, but the run's trust rule asks nobody.")
    samples = held_out(client.validation, client.train, asked.most)
    others = tested_in(message.tensors, client.id)
    found = MEASURES[asked.measure](client.model, samples, message.tensors, others)
    told = {"accuracies": found, "samples": len(samples)}
    if asked.patches and client.stamped is not None:
        told["patches"] = innocence_of(client.model, client.stamped, message.tensors, others)
    return Reply(client.id, {}, told)


JOBS: dict[str, Callable[[Client, Message], Reply]] = {
    "train": train_job,
    "digest": digest_job,
    "evaluate": evaluate_job,
    "test": test_job,
}
