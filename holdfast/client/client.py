"""One data owner, and how it does a job that it is asked for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from holdfast.absence import AbsencePolicy
from holdfast.algorithms.fedavg import FedAvg
from holdfast.context import Owner
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import Refusal, tell_home
from holdfast.core.types import Message, Reply, Tensors, unpack
from holdfast.data.task import Loss, Metric, Samples
from holdfast.jobs import job_named
from holdfast.learning.settings import Learning
from holdfast.privacy.dp_sgd import Guard
from holdfast.privacy.gate import house_of
from holdfast.privacy.ledger import Policy
from holdfast.trust.backdoor_probe import Stamped
from holdfast.trust.base import Trust


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
    home: Tensors = field(default_factory=dict)  # weights and buffers that do not travel, as they are at first


def perform(client: Client, message: Message) -> Reply:
    """Do one job. Whatever goes wrong is an exception: the engine turns it into an absence with a reason."""
    job = job_named(message.job)
    check_open(client, message.job)
    start = time.perf_counter()
    reply = job.answer(client.id, client, message)
    return replace(reply, seconds=time.perf_counter() - start)


def check_open(client: Client, job: str) -> None:
    """Refuse an exact answer where the client's policy limits epsilon and does not open this job."""
    policy = policy_of(client)
    if policy is not None and job_named(job).exact and policy.refuses(job):
        raise Refusal("closed", f"policy: {job!r} has an exact answer and max_epsilon is limited; see `open`.")


def policy_of(client: Client) -> Policy | None:
    """The policy that a client keeps to, if there is one."""
    named = client.absence.named_policy if client.guard is None else client.guard.options.policy
    house = house_of(client.memory.folder, named)
    return None if house.policy is None else house.read_policy(0.0)


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
