"""One data owner, and how it does a job that it is asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from holdfast.absence import AbsencePolicy
from holdfast.algorithms.fedavg import FedAvg
from holdfast.context import Owner
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import Refusal, tell_home
from holdfast.core.types import Message, Reply, Tensors, unpack
from holdfast.data.metrics import moving_sums
from holdfast.data.task import Loss, Metric, Samples
from holdfast.jobs import job_named
from holdfast.learning.augment import Augment
from holdfast.learning.compress import Compression
from holdfast.learning.schedules import Constant, Schedule
from holdfast.learning.settings import Learning
from holdfast.models.scaling import scaled_columns
from holdfast.privacy.channels import NOISED, OFF
from holdfast.privacy.counts import noised_counts
from holdfast.privacy.dp_sgd import Guard
from holdfast.privacy.gate import House, house_of, let_out, pass_gate
from holdfast.privacy.ledger import OPENED, Policy
from holdfast.privacy.noise import Whole, system
from holdfast.privacy.patients import first_each, for_patients
from holdfast.secure_sum.keys import Keyring
from holdfast.secure_sum.member import Member
from holdfast.secure_sum.options import SecureSum
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
    schedule: Schedule = field(default_factory=Constant)  # of lr, where it moves within a round
    rounds: int = 1  # of the run
    absence: AbsencePolicy = field(default_factory=AbsencePolicy)
    compress: Compression = field(default_factory=Compression)  # what of its update it sends
    poisoned: Samples | None = None  # what it trains on once its attack is awake, in simulations
    later: Samples | None = None  # what it trains on from a round on, in simulations of data that change
    later_from: int = 0  # that round, counted from 0
    guard: Guard | None = None  # protects its updates
    augment: Augment | None = None  # of the images that it trains on
    trust: Trust = field(default_factory=Trust)  # the run's rule, which says what testers are asked
    scored: dict[bytes, dict[str, float]] = field(default_factory=dict)  # of models that a panel was asked about
    secure: SecureSum | None = None  # whether it takes part in secure sums, in place of sending its digest
    keyring: Keyring | None = None  # a real site's keys for secure sums; none: simulated ones
    desk: dict[tuple[int, int, int], tuple[Member, Tensors]] = field(default_factory=dict)  # secure sums, by round,
    # stage and attempt, each with what all members were told
    learnt: dict[int, tuple[str, Whole]] = field(default_factory=dict)  # of this round: from which model, and what
    paid: list[bool] = field(default_factory=list)  # whether a second stage is paid for
    opened_sums: dict[str, tuple[int, ...]] = field(default_factory=dict)  # those that it knows of
    home: Tensors = field(default_factory=dict)  # weights and buffers that do not travel, as they are at first
    interval_from: int = 1 << 62  # the round, counted from 0, from which it tells how sure its leading metric is


def perform(client: Client, message: Message) -> Reply:
    """Do one job. Whatever goes wrong is an exception: the engine turns it into an absence with a reason."""
    job = job_named(message.job)
    check_open(client, message.job)
    start = time.perf_counter()
    reply = job.answer(client.id, with_one_each(client, message.job), message)
    return leave(client, message, replace(reply, seconds=time.perf_counter() - start))


def with_one_each(client: Client, job: str) -> Client:
    """The client with one sample of each patient, where the answer leaves with noise: one patient then moves it as one
    record does.
    """
    policy, person = policy_of(client), client.about.person
    if person is None or policy is None or not any(policy.rule(c).state == NOISED for c in OPENED.get(job, ())):
        return client
    return replace(client, train=first_each(client.train, person), validation=first_each(client.validation, person))


def check_open(client: Client, job: str) -> None:
    """Refuse an exact answer where the client's policy limits epsilon and does not open this job."""
    policy = policy_of(client)
    if policy is not None and job_named(job).exact and policy.refuses(job):
        raise Refusal("closed", f"policy: what {job!r} answers is off; see `open` and [channels].")


def policy_of(client: Client) -> Policy | None:
    """The policy that a client keeps to, if there is one."""
    house = house_of_client(client)
    return None if house.policy is None else house.read_policy(0.0)


def house_of_client(client: Client) -> House:
    named = client.absence.named_policy if client.guard is None else client.guard.options.policy
    return house_of(client.memory.folder, named)


def leave(client: Client, message: Message, reply: Reply) -> Reply:
    """What of a reply leaves the client, by the channels of its policy: with noise, exactly, or not at all."""
    policy = policy_of(client)
    if policy is None:
        return reply
    what = f"{message.job!r} of {client.about.task or 'the model'}, client {client.id}, round {message.round + 1}"
    scalars = dict(reply.scalars)
    if "metrics" in scalars and policy.rule("metrics").state == NOISED:
        scalars["metrics"] = noised_metrics(client, policy, scalars["metrics"], what)
        scalars.pop("interval", None)  # it is exact
    if "accuracies" in scalars and policy.rule("reports").state == NOISED:
        scalars["accuracies"] = noised_accuracies(client, policy, message.round, scalars, what)
    if "scaling" in scalars and policy.rule("scaling").state == NOISED:
        scalars["scaling"] = noised_scaling(client, policy, scalars["scaling"], what)
    tensors, scalars = pass_gate(policy, reply.tensors, scalars)
    seconds = 0.0 if policy.rule("timing").state == OFF else reply.seconds
    return replace(reply, tensors=tensors, scalars=scalars, seconds=seconds)


def noised_metrics(client: Client, policy: Policy, told: dict[str, list[float]], what: str) -> dict[str, list[float]]:
    """The sums of those metrics that say how far one record can move them; the others stay at home."""
    if client.train.weights is not None:
        raise Refusal("closed", "policy: metrics of weighted records have no bound for noise to cover, so none leaves.")
    able, _, reach = moving_sums(client.metrics)
    if not able:
        raise Refusal("closed", "policy: no metric of this task has a bound for noise to cover, so none leaves.")
    cut = {metric.name: metric.width - metric.counted for metric in able}
    moving = [one for name, most in cut.items() for one in told[name][:most]]
    noised, claim = noised_counts(moving, reach, policy.rule("metrics").epsilon, policy.delta, system())
    let_out(house_of_client(client), claim if client.about.person is None else for_patients(claim), what)
    found, rest = {}, iter(noised)
    for metric in able:
        moved = [next(rest) for _ in range(cut[metric.name])]
        found[metric.name] = metric.mended([*moved, *told[metric.name][cut[metric.name] :]])
    return found


def noised_accuracies(
    client: Client, policy: Policy, round: int, scalars: dict[str, Any], what: str
) -> dict[str, float]:
    """A tester's accuracies with noise: one record can move each count of right ones by one."""
    terms = client.trust.testing(round)
    if terms is None or terms.measure != "accuracy":
        raise Refusal("closed", "policy: reports other than accuracies cannot be noised, so none leaves.")
    told, count = scalars["accuracies"], scalars["samples"]
    right = [float(math.floor(value * count + 0.5)) for value in told.values()]
    noised, claim = noised_counts(right, math.sqrt(len(right)), policy.rule("reports").epsilon, policy.delta, system())
    let_out(house_of_client(client), claim if client.about.person is None else for_patients(claim), what)
    return {name: min(max(one / count, 0.0), 1.0) for name, one in zip(told, noised, strict=True)}


def noised_scaling(client: Client, policy: Policy, told: list[float], what: str) -> list[float]:
    """The sums of its columns with noise for what one record can move them by."""
    if client.train.weights is not None:
        raise Refusal("closed", "policy: sums of weighted records have no bound for noise to cover, so none leaves.")
    columns = scaled_columns(client.model)
    assert columns is not None
    noised, claim = noised_counts(told, columns.most_moved, policy.rule("scaling").epsilon, policy.delta, system())
    let_out(house_of_client(client), claim if client.about.person is None else for_patients(claim), what)
    return noised


def recall_memory(client: Client, last: int, sent: Tensors) -> tuple[Tensors, Tensors, Tensors, list[str]]:
    """The algorithm's memory as of the last round that counted, or as a stand-in left it; the optimiser's state; and
    what stays at home. A code says if it is lost.
    """
    keeps = client.learning.optimizer.keep or client.compress.keeps
    if not keeps and not client.home and (sent or not client.algorithm.remembers):
        return sent, {}, {}, []
    try:
        memory = client.memory.read(last)
    except HoldfastError as error:
        tell_home(client.memory.folder, f"{error}; client {client.id} starts with an empty one")
        return sent, {}, client.home, ["memory-lost"]
    own = {name: tensor for name, tensor in memory.items() if not name.startswith(("optimizer/", "home/", "error/"))}
    return sent or own, unpack(memory, "optimizer"), unpack(memory, "home") or client.home, []
