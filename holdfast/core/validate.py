"""Updates are validated before they count: names, shapes, types, finite values, norm; a bad one is refused and named.

What a client says about itself counts no further than what is publicly known. Its samples are fixed when it joins and
count at most twice the median claim, or what the experiment deals out or the federation agreed on. Its steps are not
taken from it at all: they follow from its samples. A high claim would scale everybody's part of FedNova's aggregate,
a low one the client's own.
"""

from __future__ import annotations

import cmath
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from holdfast.core.errors import brief, plain
from holdfast.core.tensors import norm_of
from holdfast.core.types import Reply, Tensors, Update, groups_of

MOST = 2**48  # samples or steps
TWICE = 2.0  # x the median: what a claim, or a running statistic, may differ from the others'


@dataclass(frozen=True)
class Sizes:
    """How many samples of each client may count."""

    dealt: Sequence[int] = ()  # by the experiment's own partition
    agreed: Sequence[int] = ()  # in the experiment's file; then nothing else counts

    def counted(self, claims: Mapping[int, int]) -> dict[int, int]:
        """Each client's claim, as far as it counts.

        >>> Sizes().counted({0: 100, 1: 120, 2: 10**9}), Sizes(dealt=[1, 1, 500]).counted({0: 1, 1: 1, 2: 500})
        ({0: 100, 1: 120, 2: 240}, {0: 1, 1: 1, 2: 500})
        """
        if self.agreed:
            return {client: min(claim, self.agreed[client]) for client, claim in claims.items()}
        twice = int(TWICE * statistics.median_low(claims.values())) if claims else 0
        return {c: min(claim, max(twice, self.dealt[c] if self.dealt else 0)) for c, claim in claims.items()}

    def surely(self, client: int, claim: int, known: Mapping[int, int], asked: Collection[int]) -> int | None:
        """How much of a client's claim counts, where no other claim of those asked can change that; else none.

        >>> Sizes(dealt=[40, 60]).surely(0, 40, {}, [0, 1]), Sizes(dealt=[40, 60]).surely(0, 41, {}, [0, 1])
        (40, None)
        """
        if self.agreed or all(one in known for one in asked):
            return self.counted({**known, client: claim})[client]
        return claim if self.dealt and claim <= self.dealt[client] else None


def validate(
    replies: Sequence[Reply],
    expected: Mapping[str, Tensors],
    known: Mapping[int, int],
    max_norm: float | None,
    sizes: Sizes,
    steps: Callable[[int], int],
    frozen: Collection[str] = (),
    faults: Mapping[int, str | None] | None = None,
) -> tuple[list[Update], dict[int, str], dict[int, int]]:
    """Well-formed updates; the clients whose update is refused, with the reason; and all claims so far.

    `expected` has tensors like those of an update: delta, buffers and extra. `known` are the claims until now, and
    `steps` says how many steps a client with so many samples takes; no update may move the `frozen` weights. `faults`:
    what was found as updates arrived, where they are no longer here.
    """
    refused: dict[int, str] = {}
    claims = dict(known)
    for reply in replies:
        if faults is None:
            fault = find_fault(reply, expected, max_norm) or moved(reply, frozen)
        else:
            fault = faults[reply.client]
        if fault:
            refused[reply.client] = fault
        else:
            claims.setdefault(reply.client, reply.scalars["samples"])
    counted = sizes.counted(claims)
    updates = []
    for reply in replies:
        if reply.client not in refused:
            groups, samples = groups_of(reply.tensors), counted[reply.client]
            delta, buffers, extra = (groups.get(group, {}) for group in ("delta", "buffers", "extra"))
            signature = str(reply.scalars.get("signature", ""))
            updates.append(
                Update(reply.client, delta, samples, steps(samples), buffers, extra=extra, signature=signature)
            )
    return updates, refused, claims


def bounded_buffers(updates: Sequence[Update]) -> list[Update]:
    """The updates with each running statistic brought within a factor of two of the clients' median.

        b in [m / 2, 2 m]          in a tensor that is positive at most clients (variances), m their median
        b in [m - 2 s, m + 2 s]    elsewhere (means), s the median of |b|

    Scanners differ, so a value is clipped, not refused. Stand-ins carry none.

    >>> one = [Update(i, {}, 1, 1, {"v": torch.tensor([v])}) for i, v in enumerate([1.0, 1.5, 100.0])]
    >>> [update.buffers["v"].item() for update in bounded_buffers(one)]
    [1.0, 1.5, 3.0]
    """
    carrying = [update for update in updates if update.buffers]
    if len(carrying) < 3:
        return list(updates)
    low, high = {}, {}
    for name, first in carrying[0].buffers.items():
        if first.is_floating_point():
            stack = torch.stack([update.buffers[name] for update in carrying])
            middle, spread = stack.median(0).values, TWICE * stack.abs().median(0).values
            positive = 2 * sum(bool((values > 0).all()) for values in stack) > len(stack)
            low[name] = middle / TWICE if positive else middle - spread
            high[name] = middle * TWICE if positive else middle + spread

    def bounded(buffers: Tensors) -> Tensors:
        return {n: torch.clamp(t, low[n], high[n]) if n in low else t for n, t in buffers.items()}

    return [replace(update, buffers=bounded(update.buffers)) for update in updates]


def find_fault(reply: Reply, expected: Mapping[str, Tensors], max_norm: float | None) -> str | None:
    """The first thing wrong with an update, or None: names, shapes, types, finite values, norm."""
    for count in ("samples", "steps"):
        if fault := bad_count(reply, count):
            return fault
    if not isinstance(loss := reply.scalars.get("loss", 0.0), float):
        return f"loss is {brief(loss)}, not a number"
    known = {*expected, "digest"}  # a digest is checked by whoever asked for it
    for name in reply.tensors:
        if name.partition("/")[0] not in known:
            return f"{brief(name)} is not part of the model"
    groups = groups_of(reply.tensors)
    for group, wanted in expected.items():
        if fault := misfit(groups.get(group, {}), wanted):
            return f"{group}/{fault}"
    return too_long(groups.get("delta", {}), max_norm)


def moved(reply: Reply, frozen: Collection[str]) -> str | None:
    """The first frozen weight that a well-formed update would move, or None."""
    return next(
        (f"delta/{name} moves a frozen weight" for name in frozen if reply.tensors[f"delta/{name}"].any()), None
    )


def bad_count(reply: Reply, name: str) -> str | None:
    """What is wrong with a number that a client tells of itself, or None."""
    value = reply.scalars.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        return f"{name} is {brief(value)}, not a positive whole number"
    if value > MOST:  # beyond it, arithmetic with it would raise an error here, at the moderator
        return f"{name} is above {MOST}"
    return None


def misfit(got: Tensors, wanted: Tensors) -> str | None:
    """The first tensor that is not as wanted, and in what: name, shape, type, finite values."""
    if got.keys() != wanted.keys():
        odd = sorted(got.keys() ^ wanted.keys())[0]
        return f"{plain(odd, 100)} is {'missing' if odd in wanted else 'not part of the model'}"
    for name, tensor in got.items():
        if tensor.layout is not wanted[name].layout:
            return f"{name} is sparse"
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            return f"{name} is {describe(tensor)}, expected {describe(wanted[name])}"
    for name, tensor in got.items():
        if not is_finite(tensor):
            return f"{name} is not finite"
    return None


def too_long(delta: Tensors, max_norm: float | None) -> str | None:
    if max_norm is not None and (norm := norm_of(delta)) > max_norm:
        return f"its norm {norm:.3g} is above the bound {max_norm:.3g}"
    return None


def all_finite(tensors: Tensors) -> bool:
    return all(map(is_finite, tensors.values()))


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether every value is finite. A finite sum says so at once; a sum may also be too large for its type.

    >>> is_finite(torch.tensor([3e38, 3e38])), is_finite(torch.tensor([torch.inf, -torch.inf]))
    (True, False)
    """
    return cmath.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


def describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
