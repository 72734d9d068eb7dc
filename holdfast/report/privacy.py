"""The privacy box: what left the house in a run, and what is promised about it, told truthfully."""

from __future__ import annotations

import math

from holdfast.absence import ABSENCES
from holdfast.choices import choose
from holdfast.errors import HoldfastError
from holdfast.privacy.claim import Claim, paper
from holdfast.report.story import Story

UPDATES = "Updates of the model left each client that was heard; they carry no formal guarantee."


def privacy_words(story: Story) -> list[str]:
    """A sentence for each thing that left the house."""
    words = [UPDATES]
    for mode in dict.fromkeys(str(facts.get("mode")) for facts in story.digests):
        of = [facts for facts in story.digests if str(facts.get("mode")) == mode]
        whose = "All digests" if len(of) == len(story.digests) else f"{len(of)} of {len(story.digests)} digests"
        first, *rest = about_digest(story, of[0], mode)
        words += [f"{whose}: {first}", *rest]
    return words


def about_digest(story: Story, facts: dict[str, object], mode: str) -> list[str]:
    if isinstance(facts.get("claim"), dict):
        try:
            claim = Claim.from_json(facts["claim"])  # type: ignore[arg-type]
        except HoldfastError as error:
            return [f"what they claim cannot be read: {error}"]
        return [f"{claim.guarantee}.", *claim.notes]
    if mode == "unprotected":
        return ["the bare features of samples, with their labels; no guarantee."]
    if mode == "only mixing":
        text = f"means of {facts.get('spd')} samples without noise, with exact mixed labels; no guarantee: whether a "
        return [text + "given record is in them can be tested."]
    absence = choose(ABSENCES, story.experiment.absence, "absence")
    shape, epsilon = facts.get("feature_shape"), getattr(absence, "epsilon", None)
    if not isinstance(shape, list) or epsilon is None:
        return [f"{mode}."]
    claim = paper(math.prod(shape), absence.spd, absence.size, epsilon)
    return [f"{claim.guarantee}.", *claim.notes]
