"""Updates relayed to testers as their senders sent them, with the senders' signatures.

A tester that is sent ready-made models and directions tests whatever the moderator likes. Where members sign their
updates, the moderator sends the model that all of them started from, each signed update, and for the jury the weights
of their sum; the tester makes the question of these itself. The moderator is left with the choice of the weights, which
are not negative and sum to at most one, and of the model of the round, which the tester was sent to train on as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.failures import Refusal
from holdfast.core.tensors import norm_of
from holdfast.core.types import Tensors, Update, pack, unpack, weighted_sum
from holdfast.core.validate import bounded_buffers
from holdfast.jobs import is_number
from holdfast.trust.measures import TestRequest, ask_for_accuracies, ask_for_help
from holdfast.trust.robust.merging import average_buffers

ROUNDING = 1e-4  # by which weights may sum to more than one


def signed_of(received: Sequence[Update]) -> list[Update]:
    """The updates that their senders signed."""
    return [update for update in received if update.signature]


def relay(
    model: Tensors, buffers: Tensors, signed: Sequence[Update], weights: Sequence[float] | None = None
) -> TestRequest:
    """What testers are sent of signed updates: accuracies are asked for or, with weights, directions at their sum."""
    delta = pack(**{str(update.client): update.delta for update in signed})
    changed = pack(**{str(update.client): update.buffers for update in signed})
    signatures = {str(update.client): update.signature for update in signed}
    return TestRequest(
        model, buffers, delta, changed, signatures=signatures, weights=None if weights is None else list(weights)
    )


def shares(signed: Sequence[Update], heard: Sequence[Update], weights: Sequence[float]) -> list[float]:
    """The weight of each signed update in the sum: that of its heard copy, times how far this one was shortened."""
    by_client = {update.client: (update, float(weight)) for update, weight in zip(heard, weights, strict=True)}
    found = []
    for update in signed:
        copy, weight = by_client[update.client]
        length = norm_of(update.delta)
        found.append(weight * min(1.0, norm_of(copy.delta) / length) if length > 0 else weight)
    return found


def opened(asked: TestRequest, measure: str, bounds_buffers: bool) -> TestRequest:
    """At a tester: the question that follows from relayed updates; one without signatures is as it was sent.

    >>> import torch
    >>> one = Update(1, {"w": torch.tensor([2.0])}, 1, 1, signature="00")
    >>> opened(relay({"w": torch.tensor([1.0])}, {}, [one], [0.5]), "help", True).model
    {'w': tensor([2.])}
    """
    if asked.signatures is None:
        return asked
    updates = [
        Update(client, unpack(asked.delta, str(client)), 1, 1, unpack(asked.changed, str(client)))
        for client in asked.clients
    ]
    if any(update.delta.keys() != asked.model.keys() for update in updates):
        raise Refusal("question", "a 'test' relays updates of parts of the model.")
    if bounds_buffers:
        updates = bounded_buffers(updates)
    if measure != "help":
        return ask_for_accuracies(asked.model, asked.buffers, updates)
    weights = asked.weights or []
    fine = all(is_number(weight) and 0 <= weight <= 1 for weight in weights)
    if not fine or len(weights) != len(updates) or not 0 < sum(weights) <= 1 + ROUNDING:
        raise Refusal("question", "a 'test' relays updates with weights that are no shares of one.")
    shift = weighted_sum([update.delta for update in updates], weights)
    model = {name: weight + shift[name] for name, weight in asked.model.items()}
    part = [weight / sum(weights) for weight in weights]
    return ask_for_help(model, average_buffers(updates, part, asked.buffers), updates)
