"""The privacy box: what left the house in a run, and what is promised about it, told truthfully."""

from __future__ import annotations

from holdfast.absence import ABSENCES
from holdfast.absence.feddig import FedDig
from holdfast.core.config import choose
from holdfast.core.errors import HoldfastError
from holdfast.digests.release import claim_of
from holdfast.encoders import never_negative
from holdfast.privacy.accounting import compose
from holdfast.privacy.claim import REPLACE_ONE
from holdfast.privacy.dp_sgd import PROTECTIONS, DpSgd
from holdfast.privacy.gate import house_of
from holdfast.privacy.ledger import Ledger
from holdfast.report.run_data import Story

UPDATES = "Updates of the model left each client that was heard; they carry no formal guarantee."
EXACTLY = (
    "Besides, the metrics that clients report, their number of records, their notes{} leave exactly: nothing "
    "protects them, so over all that left epsilon is infinite."
)


def privacy_words(story: Story) -> list[str]:
    """A sentence for each thing that left the house.

    The promise follows from the experiment's own options; what a digest's file claims is not believed.
    """
    protect = choose(PROTECTIONS, story.experiment.protect, "protect")
    if not isinstance(protect, DpSgd):
        return [UPDATES, *digest_words(story), EXACTLY.format(", training losses and buffers")]
    told = [update_words(protect, story.experiment.rounds), *digest_words(story), *ledger_words(story, protect)]
    return [*told, EXACTLY.format(" and buffers")]


def update_words(protect: DpSgd, rounds: int) -> str:
    return (
        f"Updates of the model left with noise (DP-SGD): those of a client over all {rounds} planned rounds are "
        f"({protect.epsilon:g}, {protect.delta:g})-differentially private: {REPLACE_ONE}."
    )


def digest_words(story: Story) -> list[str]:
    absence = choose(ABSENCES, story.experiment.absence, "absence")
    shape = next((facts["feature_shape"] for facts in story.digests if "feature_shape" in facts), None)
    if not isinstance(absence, FedDig) or shape is None:
        return []
    try:
        signed = not never_negative(story.experiment.encoder)
        claim = claim_of(absence, tuple(shape), len(story.class_names), signed)
    except HoldfastError as error:
        return [f"What the digests promise cannot be told: {error}"]
    words = [f"Each digest: {claim.guarantee}.", *claim.notes]
    if claim.adjacency not in claim.guarantee:
        words.append(f"Adjacency: {claim.adjacency}.")
    most = max(facts["releases"] for facts in story.digests)
    if most > 1:
        total = f"{compose([claim] * most, claim.delta):.4g}".replace("inf", "infinite")
        words.append(
            f"Up to {most} digests of one client were released; together they cost epsilon {total} at delta "
            f"{claim.delta:g}."
        )
    return words


def ledger_words(story: Story, protect: DpSgd) -> list[str]:
    """What the client with the most releases has spent, by its ledger, where that is on this machine."""
    most, whose = Ledger(), -1
    for client in range(story.experiment.clients):
        house = house_of(story.folder / "clients" / f"{client:04d}")
        try:
            ledger = house.read_ledger()
        except HoldfastError as error:
            return [f"What {story.experiment.name_of(client)} has spent cannot be told: {error}"]
        if len(ledger.entries) > len(most.entries):
            most, whose = ledger, client
    if not most.entries:
        return []
    return [
        f"By its ledger {story.experiment.name_of(whose)} has released most: {len(most.entries)} times, for epsilon "
        f"{most.epsilon(protect.delta):.4g} at delta {protect.delta:g}, digests and updates together."
    ]
