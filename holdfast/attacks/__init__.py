"""Who can do what: attacks on updates, on data, on test reports and on digests, as choices with options.

An attack's `kind` says which of its methods count:

- "update": `tamper(sight)` on flat vectors, or `rewrite(delta, model, generator)` on named tensors;
- "data": `poison(samples, classes, generator)` before the client trains;
- "tester": `report(honest, accomplices, generator)` in place of the accuracies it measured;
- "digest": `spoil(features, labels, classes, generator)` before its digests leave the house.

Every attack has the option `since`: up to that round the client behaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from holdfast.attacks.data import Backdoor, LabelFlip, backdoor_success
from holdfast.attacks.digests import BadDigest, FalseDigest
from holdfast.attacks.tensors import Malformed, Relayer
from holdfast.attacks.testers import Colluder, Liar, Nonsense
from holdfast.attacks.updates import (
    ALittleIsEnough,
    FreeRider,
    Gaussian,
    InnerProduct,
    Mimic,
    MinMax,
    MinSum,
    RandomWeights,
    Scale,
    Sight,
    SignFlip,
)
from holdfast.core import Tensors

__all__ = ["ATTACKS", "Sight", "awake", "backdoor_success", "tamper_updates"]

ATTACKS: dict[str, type[Any]] = {
    "random": RandomWeights,
    "signflip": SignFlip,
    "gaussian": Gaussian,
    "scale": Scale,
    "alie": ALittleIsEnough,
    "ipm": InnerProduct,
    "mimic": Mimic,
    "minmax": MinMax,
    "minsum": MinSum,
    "freerider": FreeRider,
    "malformed": Malformed,
    "relayer": Relayer,
    "labelflip": LabelFlip,
    "backdoor": Backdoor,
    "liar": Liar,
    "liars": Liar,
    "colluder": Colluder,
    "nonsense": Nonsense,
    "baddigest": BadDigest,
    "falsedigest": FalseDigest,
}


class Attack(Protocol):
    """What all attacks have in common."""

    @property
    def since(self) -> int: ...

    @property
    def kind(self) -> tuple[str, ...]: ...


@runtime_checkable
class OnTensors(Protocol):
    """An update attack that needs the names and shapes of the model's tensors."""

    def rewrite(self, delta: Tensors, model: Tensors, generator: torch.Generator) -> Tensors: ...


@runtime_checkable
class OnVectors(Protocol):
    """An update attack on flat vectors."""

    def tamper(self, sight: Sight) -> Tensor: ...


def awake(attack: Attack, round: int, kind: str) -> bool:
    """Whether the attack does something of this kind in this round.

    >>> awake(SignFlip(since=5), 4, "update"), awake(SignFlip(since=5), 5, "update"), awake(SignFlip(), 5, "data")
    (False, True, False)
    """
    return kind in attack.kind and round >= attack.since


def tamper_updates(
    attack: OnTensors | OnVectors,
    own: Sequence[Tensors],
    honest: Sequence[Tensors],
    model: Tensors,
    generator: torch.Generator,
    previous: Tensors | None = None,
) -> list[Tensors]:
    """The deltas that hostile clients send in place of their own, as named tensors.

    Where no honest client is there to be looked at, the omniscient send their own.

    >>> tamper_updates(SignFlip(2), [{"w": torch.ones(2)}], [], {"w": torch.zeros(2)}, torch.Generator())
    [{'w': tensor([-2., -2.])}]
    """
    if not own or (getattr(attack, "omniscient", False) and not honest):
        return list(own)
    if isinstance(attack, OnTensors):
        return [attack.rewrite(delta, model, generator) for delta in own]
    names = list(own[0])
    mine = torch.stack([flat(delta, names) for delta in own])
    sight = Sight(
        own=mine,
        honest=torch.stack([flat(delta, names) for delta in honest]) if honest else mine[:0],
        model=flat(model, names),
        generator=generator,
        previous=None if previous is None else flat(previous, names),
    )
    return [unflat(vector, own[0]) for vector in attack.tamper(sight)]


def flat(tensors: Tensors, names: Sequence[str]) -> Tensor:
    """The named tensors as one vector, in the order of the names."""
    return torch.cat([tensors[name].flatten() for name in names])


def unflat(vector: Tensor, like: Tensors) -> Tensors:
    """The opposite of flat: a vector cut into tensors of these names and shapes."""
    parts = vector.split([tensor.numel() for tensor in like.values()])
    return {name: part.view(like[name].shape) for name, part in zip(like, parts, strict=True)}
