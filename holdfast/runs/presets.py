"""Methods by name: `algorithm[+absence][+trust][+protect]`, and presets, which are several keys under one name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.absence import ABSENCES, AbsencePolicy
from holdfast.algorithms import ALGORITHMS
from holdfast.algorithms.fedavg import FedAvg
from holdfast.core.errors import HoldfastError, nearest
from holdfast.core.modules import import_path
from holdfast.core.rivals import RIVALS
from holdfast.privacy.dp_sgd import PROTECTIONS
from holdfast.runs.experiment import set_key
from holdfast.trust import TRUSTS, Trust

KINDS: dict[str, Iterable[str]] = {
    "algorithm": [*ALGORITHMS, *RIVALS["algorithm"]],
    "absence": [*ABSENCES, *RIVALS["absence"]],
    "trust": [*TRUSTS, *RIVALS["trust"]],
    "protect": PROTECTIONS,
}
BASES = {"algorithm": FedAvg, "absence": AbsencePolicy, "trust": Trust}  # what users' own are made from

# FedDig as printed: autoencoder features with noise, guidance, weights 1/n, a server step every round.
FEDDIG_PAPER = {
    "absence": {
        "name": "feddig",
        "spd": 4,
        "strategy": "across",
        "epsilon": 0.005,
        "size": 20_000,
        "bits": "32",
        "printed": True,
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
        keys = PRESETS[part] if part in PRESETS else {kind_of(part, text): part}
        if twice := keys.keys() & chosen.keys():
            raise HoldfastError(f"method {text!r} says twice what the {sorted(twice)[0]} is.")
        chosen |= keys
    return chosen


def kind_of(part: str, text: str) -> str:
    """Which of the choices a part of a method makes; a user's own, by import path, makes the one that it is made for.

    >>> kind_of("krum:f=1", "fedavg+krum:f=1"), kind_of("holdfast.algorithms.fedprox:FedProx", "")
    ('trust', 'algorithm')
    """
    name, _, rest = part.partition(":")
    for kind, names in KINDS.items():
        if name in names:
            return kind
    if rest.isidentifier():
        return kind_of_own(part, text)
    raise HoldfastError(f"method {text!r}: {name!r} is not known; {nearest(name, known_parts())}")


def kind_of_own(path: str, text: str) -> str:
    name = path.partition(":")[0]
    try:
        own = import_path(path, f"method {text!r}")
    except HoldfastError as error:
        raise HoldfastError(f"{error} Of the names that come with Holdfast: {nearest(name, known_parts())}") from None
    for kind, base in BASES.items():
        if isinstance(own, type) and issubclass(own, base):
            return kind
    raise HoldfastError(f"method {text!r}: {path} is no class made from FedAvg, Nothing or Trust; derive it from one.")


def known_parts() -> list[str]:
    return [name for names in (*KINDS.values(), PRESETS) for name in names]


def with_method(table: Mapping[str, Any], text: str, changes: Iterable[str]) -> dict[str, Any]:
    """The table with exactly this method and the user's changes; these beat a preset, but not what the method names.

    The algorithm, absence and trust rule of the table are another method's: what this one leaves out is as usual.

    >>> with_method({"absence": "feddig", "lr": 0.1}, "fedavg", [])
    {'lr': 0.1, 'algorithm': 'fedavg'}
    >>> with_method({}, "feddig-paper", ["encoder=random", "absence.spd=8"])["encoder"]
    'random'
    >>> with_method({}, "fedprox", ["algorithm=fednova", "algorithm.mu=0.1"])
    {'algorithm': {'name': 'fedprox', 'mu': '0.1'}}
    """
    chosen = {key: value for key, value in table.items() if key not in BASES} | parse_method(text)
    named = {kind_of(part, text) for part in text.split("+") if part not in PRESETS}
    for change in changes:
        if change.partition("=")[0].strip() not in named:
            set_key(chosen, change)
    return chosen
