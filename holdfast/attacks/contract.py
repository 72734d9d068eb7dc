"""What every attack has: rounds in which it is awake, a kind, and a method for each kind. Users' own are held to it.

An attack's `kind` says which of its methods count:

- "update": `tamper(sight)` on flat vectors, or `rewrite(delta, model, generator)` on named tensors;
- "data": `poison(samples, classes, generator)` before the client trains;
- "tester": `report(honest, accomplices, generator)` in place of the accuracies it measured;
- "digest": `spoil(features, labels, classes, generator)` before its digests leave the house.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from holdfast.core.errors import HoldfastError

METHODS = {"update": ("tamper", "rewrite"), "data": ("poison",), "tester": ("report",), "digest": ("spoil",)}


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Awake after `since` honest rounds, up to and with round `until`, counted from 1; none: to the end; there in
    each round, or in the first of every so many."""

    since: int = 0
    until: int | None = None
    every: int = 1
    kind: ClassVar[tuple[str, ...]] = ()
    needs_classes: ClassVar[bool] = False  # whether it changes classes
    omniscient: ClassVar[bool] = False  # whether it needs to see the honest clients' updates

    def __post_init__(self) -> None:
        if self.since < 0:
            raise ValueError(f"since, the number of honest rounds before it, must not be negative, got {self.since}.")
        if self.until is not None and self.until <= self.since:
            raise ValueError(f"until must be above since, got {self.until} and {self.since}.")
        if self.every < 1:
            raise ValueError(f"every, the rounds from one attack to the next, must be at least 1, got {self.every}.")

    def check(self, clients: int, attackers: int) -> None:
        """Refuse a run that it cannot attack."""


@dataclass(frozen=True)
class Function(Attack):
    """A plain function of the sight, as an attack on updates."""

    function: Callable[[Any], Tensor]
    kind: ClassVar[tuple[str, ...]] = ("update",)

    def tamper(self, sight: Any) -> Tensor:
        return self.function(sight)


def awake(attack: Any, round: int, kind: str) -> bool:
    """Whether the attack does something of this kind in this round, counted from 0.

    >>> attack = Function(since=5, until=7, function=lambda sight: sight.own)
    >>> [awake(attack, round, "update") for round in (4, 5, 6, 7)], awake(attack, 5, "data")
    ([False, True, True, False], False)
    """
    since, until, every = getattr(attack, "since", 0), getattr(attack, "until", None), getattr(attack, "every", 1)
    due = since <= round and (until is None or round < until) and (round - since) % every == 0
    return kind in attack.kind and due


def as_attack(found: Any, named: str) -> Any:
    """What a choice named, as an attack: a function is taken for `tamper`; what is no attack is refused."""
    if callable(found) and not isinstance(found, type) and not hasattr(found, "kind"):
        return Function(found)
    kinds = getattr(found, "kind", None)
    if not isinstance(kinds, tuple) or not kinds or not set(kinds) <= set(METHODS):
        raise HoldfastError(
            f"attack: {named} is no attack: it needs a kind, a tuple of some of {', '.join(METHODS)}, and a method for "
            "each; or let it be a function of what the hostile clients see."
        )
    for kind in kinds:
        if not any(callable(getattr(found, method, None)) for method in METHODS[kind]):
            raise HoldfastError(f"attack: {named} is of kind {kind!r}, so it needs {' or '.join(METHODS[kind])}.")
    return found


def answer(attack: Any, method: str, *arguments: Any) -> Any:
    """What a method of the attack answers; whatever goes wrong in a user's own is a sentence that names it."""
    try:
        return getattr(attack, method)(*arguments)
    except HoldfastError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else "no reason given"
        raise HoldfastError(f"{told(attack, method)} failed: {type(error).__name__}: {reason}.") from error


def told(attack: Any, method: str) -> str:
    """Which method of which attack, as the beginning of a sentence."""
    own = getattr(attack, "function", None)
    return f"attack: {getattr(own, '__name__', own)}" if own else f"attack: {method} of {type(attack).__name__}"
