"""The privacy box: what left the house in a run, and what is promised about it, told truthfully."""

from __future__ import annotations

from holdfast.absence import ABSENCES
from holdfast.absence.feddig import FedDig
from holdfast.absence.release import claim_of
from holdfast.choices import choose
from holdfast.errors import HoldfastError
from holdfast.report.story import Story

UPDATES = "Updates of the model left each client that was heard; they carry no formal guarantee."


def privacy_words(story: Story) -> list[str]:
    """A sentence for each thing that left the house.

    The promise follows from the experiment's own options; what a digest's file claims is not believed.
    """
    absence = choose(ABSENCES, story.experiment.absence, "absence")
    shape = next((facts["feature_shape"] for facts in story.digests if "feature_shape" in facts), None)
    if not isinstance(absence, FedDig) or shape is None:
        return [UPDATES]
    try:
        claim = claim_of(absence, tuple(shape), len(story.class_names))
    except HoldfastError as error:
        return [UPDATES, f"What the digests promise cannot be told: {error}"]
    words = [UPDATES, f"Each digest: {claim.guarantee}.", *claim.notes]
    most = max(facts["releases"] for facts in story.digests)
    if most > 1:
        words.append(f"Up to {most} digests of one client were released; each of them costs its epsilon again.")
    return words
