"""Asking testers, and reading what they answer: whoever answers late, with nonsense or not at all is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from holdfast.core.errors import brief
from holdfast.core.randomness import rng
from holdfast.core.types import Absent, Federation, Reply, size
from holdfast.trust.measures import TestRequest
from holdfast.trust.testing import TEST

Manner = Literal["random", "rotating", "trusted"]
BYTES = 4  # of one reported number


@dataclass(frozen=True)
class Reports:
    """What the testers said that can be used, who said none, and what asking cost."""

    told: Mapping[int, Mapping[int, float]]  # tester -> client -> value
    innocence: Mapping[int, Mapping[int, float]] = field(default_factory=dict)  # the same, in matters of backdoors
    notes: Sequence[str] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0


def choose_testers(
    manner: Manner,
    count: int,
    present: Sequence[int],
    before: Sequence[int],
    scores: Sequence[float],
    seed: int,
    round: int,
) -> list[int]:
    """Line 16: K testers of those present, others than last time as far as there are others.

    "rotating" goes on with the client after the last tester; "trusted" takes those with the best scores, and may take
    them again (section V.C).

    >>> choose_testers("rotating", 2, range(5), before=[1, 2], scores=[0] * 5, seed=0, round=1)
    [3, 4]
    >>> choose_testers("trusted", 2, range(5), before=[1, 2], scores=[0, 0.9, 0.5, 0.8, 0], seed=0, round=1)
    [1, 3]
    """
    present = list(present)
    draw = torch.randperm(len(present), generator=rng(seed, round, -1, "testers")).tolist()
    shuffled = [present[place] for place in draw]
    if manner == "trusted":
        order = sorted(shuffled, key=lambda client: -scores[client])
    elif manner == "rotating":
        last = _last_of_run(before, len(scores)) if before else -1
        order = sorted(present, key=lambda client: (client - last - 1) % len(scores))
    else:
        order = sorted(shuffled, key=lambda client: client in before)
    return sorted(order[:count])


def _last_of_run(before: Sequence[int], clients: int) -> int:
    """The last tester of a round that may have wrapped around: the one followed by the widest gap.

    >>> _last_of_run([0, 1, 4], 5), _last_of_run([1, 2], 5)
    (1, 2)
    """
    ring = sorted(before)
    gaps = [((after - client) % clients or clients) for client, after in zip(ring, [*ring[1:], ring[0]], strict=True)]
    return ring[max(range(len(ring)), key=lambda place: gaps[place])]


def ask_testers(
    federation: Federation,
    testers: Sequence[int],
    asked: TestRequest,
    tested: Mapping[int, Sequence[int]],
    round: int,
    patches: bool = False,
) -> Reports:
    """Send the models to the testers (lines 6-9) and read their accuracies (lines 10-12).

    What they measure, and on how many samples, they know from the experiment: see Trust.testing.
    """
    messages = [TEST.message(tester, round, asked) for tester in testers]
    bytes_down = sum(size(message.tensors) for message in messages)
    told: dict[int, dict[int, float]] = {}
    innocence: dict[int, dict[int, float]] = {}
    notes, up = [], 0
    for reply in federation.ask(messages):
        if isinstance(reply, Absent):
            notes.append(f"tester {reply.client} is ignored: it {reply.reason}")
            continue
        fault, values = read_report(reply, tested[reply.client])
        cleared: dict[int, float] = {}
        if not fault and patches and "patches" in reply.scalars:
            fault, cleared = read_report(reply, tested[reply.client], "patches")
        up += BYTES * (len(values) + len(cleared))
        if fault:
            notes.append(f"tester {reply.client} is ignored: {fault}")
            continue
        told[reply.client] = values
        if cleared:
            innocence[reply.client] = cleared
    return Reports(told, innocence, notes, up, bytes_down)


def read_report(reply: Reply, asked: Sequence[int], key: str = "accuracies") -> tuple[str, dict[int, float]]:
    """The first thing wrong with a report, or nothing, and what it says of each client.

    >>> read_report(Reply(1, {}, {"accuracies": {"2": 7.0}}), [2])[0]
    'it reports 7.0 for client 2, which is no accuracy'
    >>> read_report(Reply(1, {}, {"accuracies": {"2": 0.5}}), [2, 3])[0]
    'it says nothing of client 3'
    """
    said = reply.scalars.get(key)
    if not isinstance(said, dict):
        return f"it reports no {key}", {}
    missing = [client for client in asked if str(client) not in said]
    if missing:
        return f"it says nothing of client {missing[0]}", {}
    if len(said) > len(asked):
        return "it reports on clients that it was not asked about", {}
    for client in asked:
        value = said[str(client)]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            return f"it reports {brief(value)} for client {client}, which is no accuracy", {}
    return "", {client: float(said[str(client)]) for client in asked}
