"""Methods by name: `algorithm[+absence][+trust]`, and presets, which are several keys under one name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.absence import ABSENCES
from holdfast.algorithms import ALGORITHMS
from holdfast.errors import HoldfastError, nearest
from holdfast.trust import TRUSTS

KINDS: dict[str, Iterable[str]] = {"algorithm": ALGORITHMS, "absence": ABSENCES, "trust": TRUSTS}

# FedDig as printed: autoencoder features with noise, guidance, weights 1/n, a server step every round.
FEDDIG_PAPER = {
    "absence": {
        "name": "feddig",
        "spd": 4,
        "strategy": "across",
        "epsilon": 0.005,
        "size": 20_000,
        "bits": "32",
        "server_epochs": 1,
        "settle": "always",
    },
    "model": "full",
    "encoder": "autoencoder",
    "trust": "uniform",
}
PRESETS: dict[str, dict[str, Any]] = {"feddig-paper": FEDDIG_PAPER}


def parse_method(text: str) -> dict[str, Any]:
    """The keys that a method stands for; what it leaves out is as usual.

    >>> parse_method("fedprox:0.1+feddig")
    {'algorithm': 'fedprox:0.1', 'absence': 'feddig'}
    >>> parse_method("feddig-paper")["model"]
    'full'
    """
    chosen: dict[str, Any] = {}
    for part in text.split("+"):
        name = part.split(":")[0]
        if part in PRESETS:
            keys = PRESETS[part]
        else:
            kinds = [kind for kind, names in KINDS.items() if name in names]
            if not kinds:
                every = [other for names in (*KINDS.values(), PRESETS) for other in names]
                raise HoldfastError(f"method {text!r}: {name!r} is not known; {nearest(name, every)}")
            keys = {kinds[0]: part}
        if twice := keys.keys() & chosen.keys():
            raise HoldfastError(f"method {text!r} says twice what the {sorted(twice)[0]} is.")
        chosen |= keys
    return chosen
