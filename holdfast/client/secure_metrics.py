"""A client's metrics in a secure sum: the moderator learns those of all members together.

Members say how much noise their policies want (the channel `metrics`). The most that any of them wants holds for all,
who sign for it together with the model that is tested; each adds a share, and who wants noise enters it in its ledger.
"""

from __future__ import annotations

import math

import torch

from holdfast.client.client import Client, house_of_client, policy_of
from holdfast.client.evaluate import sums_at
from holdfast.core.failures import Refusal
from holdfast.core.types import Tensors
from holdfast.data.task import Samples
from holdfast.privacy import total_counts
from holdfast.privacy.channels import NOISED, OFF
from holdfast.privacy.gate import let_out
from holdfast.privacy.noise import Whole, system
from holdfast.privacy.patients import first_each, for_patients
from holdfast.privacy.total_counts import Wanted
from holdfast.trust.measures import held_out

NOISE, MODEL, BUFFERS = "noise", "model.", "buffers."  # of what members are told


def tested_samples(client: Client) -> Samples:
    """The records that its metrics are of; where a policy wants noise and there are patients, one of each."""
    samples, person = held_out(client.validation, client.train), client.about.person
    return samples if person is None or not wanted_by(client).noisy else first_each(samples, person)


def wanted_by(client: Client) -> Wanted:
    """The noise that the client's policy wants."""
    policy = policy_of(client)
    rule = None if policy is None else policy.rule("metrics")
    if rule is not None and rule.state == OFF:
        raise Refusal("closed", "policy: metrics are off, also in a secure sum; see [channels].")
    if policy is None or rule is None or rule.state != NOISED:
        return Wanted()
    if client.train.weights is not None:
        raise Refusal("closed", "policy: metrics of weighted records have no bound for noise to cover, so none leaves.")
    return Wanted(rule.epsilon, policy.delta)


def told_of(model: Tensors, buffers: Tensors, wanted: Wanted) -> Tensors:
    """What all members are told: the model to test, and the noise."""
    noise = {NOISE: torch.tensor([wanted.epsilon, wanted.delta], dtype=torch.float64)} if wanted.noisy else {}
    named = {f"{MODEL}{name}": tensor for name, tensor in model.items()}
    return {**named, **{f"{BUFFERS}{name}": tensor for name, tensor in buffers.items()}, **noise}


def read_wanted(told: Tensors) -> Wanted:
    """The noise that members are told to make."""
    if NOISE not in told:
        return Wanted()
    noise = told[NOISE]
    if noise.shape != (2,) or noise.dtype != torch.float64 or not (0 < noise[0] < math.inf and 0 < noise[1] < 1):
        raise Refusal("question", "secure sum: the noise of metrics is no epsilon and delta.")
    return Wanted(float(noise[0]), float(noise[1]))


def metrics_vector(client: Client, told: Tensors, round: int, honest: int, colluding: int) -> Whole:
    """The sums of the client's metrics with its share of the noise, paid for where its policy wants noise."""
    own, wanted = wanted_by(client), read_wanted(told)
    if wanted.epsilon > own.epsilon or (own.noisy and wanted.delta > own.delta):
        raise Refusal("closed", "policy: metrics must have more noise than this secure sum has; none leaves.")
    metrics = total_counts.summed(client.metrics, wanted.noisy)
    if not metrics:
        raise Refusal("closed", "policy: no metric of this task has a bound for noise to cover, so none leaves.")
    model = {name.removeprefix(MODEL): tensor for name, tensor in told.items() if name.startswith(MODEL)}
    buffers = {name.removeprefix(BUFFERS): tensor for name, tensor in told.items() if name.startswith(BUFFERS)}
    exact = total_counts.as_whole(metrics, sums_at(client, model, buffers, tested_samples(client))[0])
    if not wanted.noisy:
        return exact
    scale, claim = total_counts.scale_of(metrics, wanted, system(), colluding)
    if own.noisy:
        what = f"secure sum of metrics of {client.about.task or 'the model'}, client {client.id}, round {round + 1}"
        let_out(house_of_client(client), claim if client.about.person is None else for_patients(claim), what)
    return total_counts.with_share(exact, metrics, scale, honest, system())


def metrics_length(client: Client, told: Tensors) -> int:
    return sum(metric.width for metric in total_counts.summed(client.metrics, read_wanted(told).noisy))
