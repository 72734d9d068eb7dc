"""Every way by which something leaves a client, and whether it is protected, open or public."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from holdfast.audit.target import Subject


@dataclass(frozen=True)
class Channel:
    """One way out: open if it depends on records and nothing protects it, public if the adjacency does not cover it."""

    name: str
    state: Literal["protected", "open", "public"]
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
    found = [
        Channel("updates", "open", "Updates of the model, in every round: what a digest promises does not cover them."),
        Channel("training loss", "open", "The mean training loss, in every round, exactly."),
    ]
    if subject.updates is not None:
        found = [Channel("updates", "protected", "Updates of the model leave with noise (DP-SGD).")]
    if subject.plan is None or any(True for _ in subject.plan.model().buffers()):
        found.append(Channel("buffers", "open", "The model's buffers, such as the statistics of batch norms, exactly."))
    return [
        *found,
        Channel(
            "accuracies",
            "open",
            "Accuracies and other metrics that a client reports when it tests a model, at the end of a round or as a "
            "tester (fedtest, jury), exactly.",
        ),
        Channel("notes and errors", "open", "What a client says in words: its notes, and why a job of it failed."),
        Channel("number of records", "public", "How many records a client trains on and tests with, exactly."),
        Channel("taking part", "public", "That a client takes part, in which rounds, and how long its work takes."),
    ]
