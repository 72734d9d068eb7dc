"""Methods that serve comparison only: each name, and where it is. One is imported when an experiment names it."""

from __future__ import annotations

from typing import Any

from holdfast.core.modules import import_path

RIVALS: dict[str, dict[str, str]] = {
    "algorithm": {
        "fedvarp": "holdfast.rivals.fedvarp:FedVARP",
        "fedstale": "holdfast.rivals.fedstale:FedStale",
        "fedau": "holdfast.rivals.fedau:FedAU",
        "moon": "holdfast.rivals.moon:Moon",
        "gradma": "holdfast.rivals.gradma:GradMA",
        "fedmix": "holdfast.rivals.fedmix:FedMix",
        "naivemix": "holdfast.rivals.fedmix:NaiveMix",
        "classweights": "holdfast.rivals.classweights:ClassWeights",
    },
    "absence": {
        "memory": "holdfast.rivals.memory:Memory",
        "friends": "holdfast.rivals.friends:Friends",
        "fsl": "holdfast.rivals.fsl:Fsl",
        "cfed": "holdfast.rivals.cfed:CFeD",
        "mafl": "holdfast.rivals.mafl:Mafl",
        "ensemble": "holdfast.rivals.ensemble:Ensemble",
    },
    "trust": {
        "foolsgold": "holdfast.rivals.foolsgold:FoolsGold",
        "flame": "holdfast.rivals.flame:Flame",
        "crowdguard": "holdfast.rivals.crowdguard:CrowdGuard",
    },
}


def rival(key: str, name: str) -> Any:
    """The class that serves comparison only under this name, or None."""
    path = RIVALS.get(key, {}).get(name)
    return None if path is None else import_path(path, key)


def rivals(key: str) -> dict[str, type]:
    """All of a key, imported."""
    return {name: rival(key, name) for name in RIVALS[key]}
