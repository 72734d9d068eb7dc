"""Every way by which something leaves a site, declared in one place, and what a policy says of each.

A policy names channels in `[channels]`, each "off", "open" or "noised:EPSILON" (of each answer). Where it says nothing,
everything is open without a bound on epsilon; with one, updates and digests leave with noise that the ledger counts,
and all else is off. What a reply holds and no channel declares does not leave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.errors import brief, nearest
from holdfast.core.failures import Refusal

OFF, NOISED, OPEN, PUBLIC = "off", "noised", "open", "public"


@dataclass(frozen=True)
class Channel:
    """One way out of a site: what it is, and which parts of a reply it carries."""

    name: str
    says: str
    parts: tuple[str, ...] = ()  # groups of tensors and names of scalars
    noise: bool = False  # whether a policy can have it noised
    bounded: str = OFF  # its state where a policy bounds epsilon and does not name it


CHANNELS = {
    channel.name: channel
    for channel in (
        Channel(
            "update", "the change of the model's weights", ("delta", "extra", "gradient", "signature"), bounded=NOISED
        ),
        Channel("buffers", "the model's buffers, such as the statistics of batch norms", ("buffers",)),
        Channel("digest", "the digest of its records", ("digest", "sum", "blamed"), bounded=NOISED),
        Channel("loss", "the mean training loss", ("loss",)),
        Channel("metrics", "how well the model does on its own records", ("metrics", "interval", "noise"), noise=True),
        Channel("reports", "how it finds the others' updates, as a tester", ("accuracies",), noise=True),
        Channel("backdoors", "whose updates it suspects of a backdoor", ("patches",)),
        Channel("panel", "how well models do on its records, class by class", ("scores",)),
        Channel("scaling", "sums of its columns, for the members' mean and deviation", ("scaling",), noise=True),
        Channel("samples", "how many records it trains and tests with", ("samples", "steps"), bounded=PUBLIC),
        Channel("notes", "codes of what it noticed, such as a lost memory", ("notes",)),
        Channel("errors", "codes of why a job failed, where that may depend on records"),
        Channel("timing", "how long its work takes, as it says"),
    )
}
CARRIER = {part: channel for channel in CHANNELS.values() for part in channel.parts}


@dataclass(frozen=True)
class Rule:
    """What a policy says of one channel."""

    state: str
    epsilon: float = math.inf  # of each answer that is noised


def read_rules(table: Mapping[str, object], where: str) -> dict[str, Rule]:
    """The rules of a policy's `[channels]`.

    >>> read_rules({"metrics": "noised:0.1", "loss": "open"}, "policy")["metrics"]
    Rule(state='noised', epsilon=0.1)
    """
    rules = {}
    for name, said in table.items():
        if name not in CHANNELS:
            raise Refusal("policy", f"{where}: there is no channel {name!r}; {nearest(name, CHANNELS)}")
        rules[name] = _rule(CHANNELS[name], said, where)
    return rules


def _rule(channel: Channel, said: object, where: str) -> Rule:
    if said in (OFF, OPEN) and isinstance(said, str):
        if said == OFF and channel.bounded == PUBLIC:
            raise Refusal("policy", f"{where}: {channel.name} cannot be off; the promise is for replacing a record.")
        return Rule(said)
    state, colon, number = said.partition(":") if isinstance(said, str) else ("", "", "")
    if state != NOISED or not channel.noise or not colon:
        ways = f"'off', 'open' or 'noised:EPSILON', such as '{NOISED}:0.1'" if channel.noise else "'off' or 'open'"
        raise Refusal("policy", f"{where}: channel {channel.name} must be {ways}, got {brief(said)}.")
    try:
        epsilon = float(number)
    except ValueError:
        epsilon = math.nan
    if not 0 < epsilon < math.inf:
        raise Refusal("policy", f"{where}: channel {channel.name}: epsilon must be positive, got {brief(number)}.")
    return Rule(NOISED, epsilon)


def usual_rule(name: str, limited: bool) -> Rule:
    """What holds where a policy does not name a channel."""
    return Rule(CHANNELS[name].bounded if limited else OPEN)
