"""What leaves a client by each channel (privacy/channels.py), as its policy has it: protected, open, public or off."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from holdfast.audit.target import Subject
from holdfast.privacy.channels import NOISED, OFF, OPEN, PUBLIC
from holdfast.privacy.ledger import Policy

State = Literal["protected", "open", "public", "off"]
WORST: tuple[State, ...] = ("open", "protected", "public", "off")  # of several clients the worst state counts
SHOWN: dict[str, State] = {NOISED: "protected", OPEN: "open", PUBLIC: "public", OFF: "off"}


@dataclass(frozen=True)
class Channel:
    """One way out: open if it depends on records and nothing protects it, public if the adjacency does not cover it."""

    name: str
    state: State
    says: str


def channels_of(subject: Subject) -> list[Channel]:
    """What leaves a client: of a digest's file, the digest alone; in a federation, much else besides."""
    found = []
    if subject.options is not None:
        holds = math.isfinite(subject.claim.epsilon_total)
        says = f"One digest is {subject.claim.guarantee}." if holds else f"Digests: {subject.claim.guarantee}."
        found.append(Channel("digests", "protected" if holds else "open", says))
        if holds and math.isinf(subject.claim.epsilon_labels):
            found.append(Channel("labels", "public", "Labels and how they are mixed, exactly."))
    return found if subject.kind == "digest" else [*found, *federation_channels(subject)]


def federation_channels(subject: Subject) -> list[Channel]:
    """What leaves a client in every federation, with digests or without."""
    plan = subject.plan
    method = None if plan is None else plan.method
    told = [update_channel(subject)]
    trains = method is None or not method.algorithm.one_message
    if trains and (method is None or not (subject.updates is not None or method.absence.protects)):
        told.append(of(subject, "loss", "training loss", "The mean training loss, in every round"))
    if trains and (plan is None or any(True for _ in plan.model().buffers())):
        told.append(of(subject, "buffers", "buffers", "The model's buffers, such as the statistics of batch norms"))
    if plan is not None and plan.experiment.scaling == "federated":
        told.append(of(subject, "scaling", "sums of columns", "Sums of a client's columns, once, before round 1"))
    told.append(of(subject, "metrics", "metrics", "How well the model does on a client's own records, after a round"))
    if method is None or method.trust.testing(0) is not None:
        told.append(of(subject, "reports", "reports of testers", "What a client finds when it tests others' updates"))
        told.append(of(subject, "backdoors", "backdoor reports", "Whose updates a client suspects of a backdoor"))
    if method is None or method.trust.panel is not None:
        told.append(of(subject, "panel", "panel", "How well models do on a client's records, class by class"))
    return [
        *told,
        of(subject, "notes", "notes", "Codes of what a client noticed, such as a lost memory"),
        of(subject, "errors", "errors", "Codes of why a job failed, which may depend on the records"),
        of(subject, "timing", "working time", "How long a client's work takes, as it says"),
        Channel("number of records", "public", "How many records a client trains on and tests with, exactly."),
        Channel("taking part", "public", "That a client takes part, in which rounds, and when its answers arrive."),
    ]


def update_channel(subject: Subject) -> Channel:
    if subject.plan is not None and subject.plan.method.algorithm.one_message:
        return Channel("updates", "off", "Nobody trains: each client sends one digest.")
    if subject.updates is not None:
        return Channel("updates", "protected", "Updates of the model leave with noise (DP-SGD).")
    if all(
        policy is not None and (policy.protect_updates or state(policy, "update") == "off")
        for policy in subject.policies
    ):
        return Channel("updates", "off", "Updates of the model do not leave: no noise protects them.")
    says = "Updates of the model, in every round: what a digest promises does not cover them."
    return Channel("updates", "open", says)


def of(subject: Subject, channel: str, name: str, says: str) -> Channel:
    """A channel in the worst state that any client's policy has it in."""
    found = min((state(policy, channel) for policy in subject.policies), key=WORST.index)
    how = {"open": ", exactly.", "protected": ", with noise that the ledger counts.", "off": ": stays at home."}
    return Channel(name, found, says + how.get(found, "."))


def state(policy: Policy | None, channel: str) -> State:
    return "open" if policy is None else SHOWN[policy.rule(channel).state]
