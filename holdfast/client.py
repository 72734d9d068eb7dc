"""What happens at a client: perform(client, message) -> reply, and the product's only epoch loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.absence import Nothing
from holdfast.algorithms.fedavg import Correction, FedAvg, Work
from holdfast.attacks import awake
from holdfast.core import Learning, Message, Reply, Tensors, pack, unpack
from holdfast.errors import HoldfastError, nearest
from holdfast.failures import Refusal, tell_home
from holdfast.memory import Memory
from holdfast.models import buffers_of, fill, weights_of
from holdfast.privacy.noise import system
from holdfast.privacy.steps import Noisy
from holdfast.privacy.updates import Guard, Kept, policy_of, refuse_unprotected
from holdfast.randomness import rng, seed_of
from holdfast.tasks import Loss, Metric, Samples
from holdfast.trust.patches import Stamped, innocence_of
from holdfast.trust.tester import MEASURES, held_out, tested_in
from holdfast.trust.weights import Trust


@dataclass(frozen=True)
class About:
    """What a digest must agree on."""

    task: str = ""
    classes: int = 0
    encoder: str = ""  # fingerprint; empty: no features
    feature_shape: tuple[int, ...] = ()
    signed: bool = True  # whether features can be negative, as far as is known
    norm_bound: float | None = None  # no feature vector is longer


@dataclass(frozen=True)
class Client:
    """One data owner: its samples, and how it learns. The model is a workbench: each job fills it anew."""

    id: int
    seed: int
    train: Samples
    validation: Samples
    test: Samples
    model: nn.Module
    loss: Loss
    metric: Metric
    learning: Learning
    algorithm: FedAvg
    absence: Nothing = field(default_factory=Nothing)
    about: About = field(default_factory=About)
    attack: Any = None  # what it does if it is hostile, in simulations
    poisoned: Samples | None = None
    memory: Memory = field(default_factory=Memory)
    guard: Guard | None = None  # protects its updates
    stamped: Stamped | None = None  # held-out images with squares, where a jury looks for backdoors
    trust: Trust = field(default_factory=Trust)  # the run's rule, which says what testers are asked


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
    if client.guard is None:
        refuse_unprotected(client)
        return learn(client, message)
    kept = Kept(client.memory.folder, client.guard.keep)
    return kept.read(message) or kept.write(message, learn(client, message, client.guard.admit(client, message.round)))


def learn(client: Client, message: Message, noisy: Noisy | None = None) -> Reply:
    """Train the model that was sent on one's own samples; answer with the change."""
    sent, server = unpack(message.tensors, "model"), unpack(message.tensors, "server")
    last = int(message.scalars["accepted"])
    memory, notes = recall_memory(client, last, unpack(message.tensors, "memory"))
    fill(client.model, sent, unpack(message.tensors, "buffers"))
    learning = replace(client.learning, lr=float(message.scalars["lr"]))
    correction = client.algorithm.correction(sent, server, memory)
    with GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):  # a user's model may draw from it (dropout)
        # A protected model's own chance (dropout) must be nobody's to foresee.
        torch.manual_seed(seed_of(client.seed, message.round, client.id, "model") if noisy is None else secret())
        order = rng(client.seed, message.round, client.id, "batches")
        samples = samples_in(client, message.round)
        steps, loss = train(client.model, samples, learning, order, client.loss, correction, noisy)
    trained = weights_of(client.model)
    delta = {name: weight.sub_(sent[name]) for name, weight in trained.items()}
    work = Work(message.round, steps, last, learning)
    memory = client.algorithm.remember(delta, work, server, memory)
    client.memory.write(message.round, memory)
    digest = client.absence.make_digest(client, message.round) if message.scalars.get("digest") else {}
    return Reply(
        client.id,
        pack(delta=delta, buffers=buffers_of(client.model), digest=digest),
        {"samples": len(client.train), "steps": steps, "notes": notes} | ({} if discreet(client) else {"loss": loss}),
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


def recall_memory(client: Client, last: int, sent: Tensors) -> tuple[Tensors, list[str]]:
    """One's memory as of the last round that counted, or as a stand-in left it; a code says if it is lost."""
    if sent or not client.algorithm.remembers:
        return sent, []
    try:
        return client.memory.read(last), []
    except HoldfastError as error:
        tell_home(client.memory.folder, f"{error}; client {client.id} starts with an empty one")
        return {}, ["memory-lost"]


def evaluate_job(client: Client, message: Message) -> Reply:
    """Test the model that was sent on one's own validation samples."""
    fill(client.model, unpack(message.tensors, "model"), unpack(message.tensors, "buffers"))
    samples = held_out(client.validation, client.train)
    accuracy = float(evaluate(client.model, samples, client.metric).mean())
    return Reply(client.id, {}, {"accuracy": accuracy, "samples": len(samples)})


def test_job(client: Client, message: Message) -> Reply:
    """Test what other clients sent on one's own held-out samples (FedTest): {client: accuracy}; look for backdoors."""
    asked = client.trust.testing(message.round)
    if asked is None:
        raise Refusal("job", f"client {client.id} is asked to test, but the run's trust rule asks nobody.")
    samples = held_out(client.validation, client.train, asked.most)
    others = tested_in(message.tensors, client.id)
    found = MEASURES[asked.measure](client.model, samples, client.metric, message.tensors, others)
    told = {"accuracies": found, "samples": len(samples)}
    if asked.patches and client.stamped is not None:
        told["patches"] = innocence_of(client.model, client.stamped, message.tensors, others)
    return Reply(client.id, {}, told)


GLOBAL_GENERATOR = threading.Lock()  # clients and stand-ins of one process take turns with it
JOBS: dict[str, Callable[[Client, Message], Reply]] = {
    "train": train_job,
    "evaluate": evaluate_job,
    "test": test_job,
}


def train(
    model: nn.Module,
    samples: Samples,
    learning: Learning,
    generator: torch.Generator,
    loss: Loss,
    correction: Correction | None = None,
    noisy: Noisy | None = None,
) -> tuple[int, float]:
    """The epoch loop: SGD on shuffled batches, with an algorithm's correction added to each gradient.

    Where updates are protected, `noisy` draws the batches and makes the gradients. Returns the number of steps and the
    mean loss of the last epoch (0 with noise: a loss tells of records too).
    """
    model.train()
    gradients = noisy or Shuffled(generator, learning.batch_size)
    weights = list(model.parameters())
    velocity = [torch.zeros_like(weight) for weight in weights]
    steps, total = 0, torch.zeros(())
    for _ in range(learning.epochs):
        total.zero_()
        for index in gradients.batches(len(samples)):
            total += gradients.fill_gradients(model, samples, index, loss)
            if correction is not None:
                correct(model, correction)
            descend(weights, velocity, learning)
            steps += 1
    return steps, float(total) / len(samples)


@dataclass(frozen=True)
class Shuffled:
    """Where the epoch loop gets its batches and gradients from: every sample once, in an order by chance."""

    generator: torch.Generator
    size: int

    def batches(self, samples: int) -> Sequence[Tensor]:
        return batches(torch.randperm(samples, generator=self.generator), self.size)

    def fill_gradients(self, model: nn.Module, samples: Samples, index: Tensor, loss: Loss) -> Tensor:
        """Put the gradient of the batch's mean loss into weight.grad; answer with the sum of its losses."""
        inputs, labels = samples.batch(index)
        value = loss(model(*inputs), labels)
        model.zero_grad()
        value.backward()
        return value.detach() * len(index)


@torch.no_grad()
def descend(weights: Sequence[Tensor], velocity: Sequence[Tensor], learning: Learning) -> None:
    """One step of SGD: v <- momentum v + gradient, w <- w - lr v.

    As torch.optim.SGD does it; but making any of torch's optimisers imports its compiler, 1.6 s in each process.
    """
    for weight, speed in zip(weights, velocity, strict=True):
        if weight.grad is None:
            continue
        gradient = weight.grad.add_(weight, alpha=learning.weight_decay) if learning.weight_decay else weight.grad
        speed.mul_(learning.momentum).add_(gradient)
        weight.sub_(speed, alpha=learning.lr)


def batches(order: Tensor, size: int) -> Sequence[Tensor]:
    """Batches of this size; a last sample all alone joins the batch before it, since batch norms cannot take one.

    >>> [len(batch) for batch in batches(torch.arange(9), 4)]
    [4, 5]
    """
    cut = list(order.split(size))
    if 1 < size < len(order) and len(cut[-1]) == 1:
        cut[-2:] = [torch.cat(cut[-2:])]
    return cut


@torch.no_grad()
def correct(model: nn.Module, correction: Correction) -> None:
    """Add the algorithm's correction to the gradients, in place."""
    for name, weight in model.named_parameters():
        added = correction(name, weight)
        weight.grad = added.clone() if weight.grad is None else weight.grad.add_(added)


@torch.inference_mode()
def evaluate(model: nn.Module, samples: Samples, metric: Metric, batch_size: int = 500) -> Tensor:
    """The metric of each sample, in order."""
    model.eval()
    batches = (samples.batch(index) for index in torch.arange(len(samples)).split(batch_size))
    return torch.cat([metric(model(*inputs), labels) for inputs, labels in batches])
