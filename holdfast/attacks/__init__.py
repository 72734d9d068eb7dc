"""Who can do what: attacks on updates, on data, on test reports and on digests, as choices with options.

What an attack must have is in `contract.py`; whether it fits a run, and has any effect there, in `runs/rehearse.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from holdfast.attacks.contract import Attack, answer, as_attack, awake, told
from holdfast.attacks.data import Backdoor, LabelFlip, backdoor_success
from holdfast.attacks.digests import BadDigest, FalseDigest
from holdfast.attacks.knowing import ClassPush, DeadUnits, LoudFlip, Slander
from holdfast.attacks.mixture import Mixture
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
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.core.tensors import flat, unflat
from holdfast.core.types import Tensors

__all__ = ["ATTACKS", "Attack", "Sight", "awake", "backdoor_success", "choose_attack", "false_report", "tamper_updates"]

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
    "loudflip": LoudFlip,
    "slander": Slander,
    "deadunits": DeadUnits,
    "classpush": ClassPush,
    "mixture": Mixture,
}


@runtime_checkable
class OnTensors(Protocol):
    """An update attack that needs the names and shapes of the model's tensors."""

    def rewrite(self, delta: Tensors, model: Tensors, generator: torch.Generator) -> Tensors: ...


@runtime_checkable
class OnVectors(Protocol):
    """An update attack on flat vectors."""

    def tamper(self, sight: Sight) -> Tensor: ...


def choose_attack(choice: Choice) -> Any:
    """The attack that a choice names: one of these, or a user's own class or function; none for none."""
    return None if choice.name == "none" else as_attack(choose(ATTACKS, choice, "attack"), str(choice))


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
        return [rewritten(attack, delta, model, generator) for delta in own]
    names = list(own[0])
    mine = torch.stack([flat(delta, names) for delta in own])
    sight = Sight(
        own=mine,
        honest=torch.stack([flat(delta, names) for delta in honest]) if honest else mine[:0],
        model=flat(model, names),
        generator=generator,
        previous=None if previous is None else flat(previous, names),
        like=own[0],
    )
    sent = answer(attack, "tamper", sight)
    if not isinstance(sent, Tensor) or sent.shape != mine.shape:
        got = f"one of shape {tuple(sent.shape)}" if isinstance(sent, Tensor) else type(sent).__name__
        rows = f"{len(mine)} rows of {mine.shape[1]} values, as sight.own is"
        raise HoldfastError(f"{told(attack, 'tamper')} must answer with a tensor of {rows}; got {got}.")
    return [unflat(vector, own[0]) for vector in sent]


def rewritten(attack: OnTensors, delta: Tensors, model: Tensors, generator: torch.Generator) -> Tensors:
    sent = answer(attack, "rewrite", delta, model, generator)
    if not isinstance(sent, dict) or not all(isinstance(tensor, Tensor) for tensor in sent.values()):
        raise HoldfastError(f"{told(attack, 'rewrite')} must answer with named tensors, got {type(sent).__name__}.")
    return sent


def false_report(
    attack: Any, honest: Mapping[int, float], accomplices: Collection[int], generator: torch.Generator
) -> Mapping[int, float]:
    """What a hostile tester says of each client, in place of the accuracies it measured."""
    said = answer(attack, "report", honest, accomplices, generator)
    if not isinstance(said, Mapping):
        raise HoldfastError(f"{told(attack, 'report')} must answer with an accuracy for each client, got {said!r}.")
    return said
