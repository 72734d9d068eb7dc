"""Guides: what a member's own digest says that an honest update of it looks like (after DiverseFL's idea).

A backdoor of any shape calls inputs of all classes by one name, and what teaches it is not in the member's digest; or
it is, and then that class of the digest is odd, and left out. The guide s_i is the way downhill of the loss on member
i's digest, at the model w that was sent, as long as fits the update best: the part of delta_i that its digest explains.
On rows x of all digests that are believed,

    s_i  = -a g_i,  g_i the gradient,  a >= 0 such that |delta_i - s_i| is least
    e_ic = mean over rows of other classes than c of  log-odds(c | x, w + delta_i) - log-odds(c | x, w + s_i)
    u_i  = max_c e_ic / steps_i       how much more, in a step, update i says c where it is not so than its digest does
    S_i <- max(0, S_i + u_i / (median of u) - beyond), at most 4
    delta_i <- s_i + max(0, 1 - S_i) (delta_i - s_i)       what counts of it; nothing of who left no digest

S is Page's cumulative sum: chance goes up and down and leaves it at nothing, while who pushes on in each round is found
out however gently. Of any T rounds in which anything beyond a member's digest counts, its u is together below
beyond T + 1 times the usual: patience buys nothing. What its digest explains counts all the while, so that an honest
member that is doubted by chance is heard on (about 0.7 of an update's length is explained). No stamp has to be known,
nobody is asked, and it costs one gradient of each digest.

Prakash, Avestimehr: DiverseFL, 2020 (there the server trains on samples that members share). Page: Continuous
inspection schemes, Biometrika 1954.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from holdfast.context import Context
from holdfast.core.names import Called
from holdfast.core.tensors import norm_of, unflat
from holdfast.core.types import State, Tensors, Update
from holdfast.data.task import Samples
from holdfast.models.networks import fill
from holdfast.trust.measures import classes_of, each_gradient, each_output
from holdfast.trust.robust.merging import shortened, stacked

ROWS = 128  # on which updates and guides are compared
MOST = 4.0  # that is remembered of S: at the usual pace it is forgiven in about five rounds


@dataclass(frozen=True)
class Explained:
    """The updates with what counts of them, and how much of its length is left of each client's."""

    updates: Sequence[Update]
    left: Mapping[int, float] = field(default_factory=dict)  # from 0 to 1; empty where nobody is guided
    memory: Tensors = field(default_factory=dict)  # what is to be remembered


def explained(
    updates: Sequence[Update], digests: Mapping[int, Samples], state: State, context: Context, beyond: float
) -> Explained:
    """What counts of each update: nothing where there is no digest, all of a stand-in, which is made of one."""
    rows = reference(list(digests.values()), context.draw(state.round, "reference rows"))
    guided = [u for u in updates if not u.synthetic and u.client in digests and len(digests[u.client])]
    sent = stacked(guided)
    guides = fitted(gradients([digests[u.client] for u in guided], list(guided[0].delta), state, context), sent)
    found = unexplained(
        odds(sent, guided[0].delta, rows, state, context) - odds(guides, guided[0].delta, rows, state, context), rows
    )
    found /= torch.tensor([update.steps for update in guided])
    usual = max(statistics.median(found.tolist()), 1e-12)
    sums = state.trust.get("unexplained", torch.zeros(context.clients, dtype=torch.float64)).clone()
    kept = {}
    for update, guide, value in zip(guided, guides, found.tolist(), strict=True):
        sums[update.client] = added(float(sums[update.client]), value / usual, beyond)
        kept[update.client] = cut(update, unflat(guide, update.delta), max(0.0, 1 - float(sums[update.client])))
    heard = [u if u.synthetic else kept.get(u.client) or shortened(u, 0.0) for u in updates]
    left = {
        u.client: 1.0 if one is u else norm_of(one.delta) / max(norm_of(u.delta), 1e-30)
        for u, one in zip(updates, heard, strict=True)
    }
    return Explained(heard, left, {"unexplained": sums})


def cut(update: Update, guide: Tensors, share: float) -> Update:
    """The guide and this share of the rest: s + share (delta - s).

    >>> update = Update(0, {"w": torch.tensor([3.0, 4.0])}, samples=1, steps=1)
    >>> cut(update, {"w": torch.tensor([3.0, 0.0])}, 0.25).delta["w"].tolist()
    [3.0, 1.0]
    """
    if share == 1.0:
        return update
    return replace(update, delta={name: torch.lerp(guide[name], sent, share) for name, sent in update.delta.items()})


def gradients(digests: Sequence[Samples], names: Sequence[str], state: State, context: Context) -> Tensor:
    """Of the loss on each digest at the model that was sent, with each weight's factor of the learning rate, (n, d)."""
    model, loss, learning = context.bench.model, context.bench.loss, context.learning_in(state.round)

    def losses(output: Tensor, labels: Tensor, sizes: Sequence[int]) -> Tensor:
        parts = zip(output.split(list(sizes)), labels.split(list(sizes)), strict=True)
        return torch.stack([loss(*part) for part in parts]).sum()

    fill(model, state.model, state.buffers)
    found = each_gradient(model, digests, losses)
    return torch.cat([found[name].reshape(len(digests), -1) * learning.factor(name) for name in names], 1)


def fitted(uphill: Tensor, sent: Tensor) -> Tensor:
    """The way downhill, of each row as long as fits what was sent best; nothing where it leads away from it.

    >>> fitted(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), torch.tensor([[3.0, 4.0], [3.0, 4.0]])).abs().tolist()
    [[3.0, 0.0], [0.0, 0.0]]
    """
    along = (-uphill * sent).sum(1, keepdim=True).clamp_min(0)
    return -uphill * (along / uphill.square().sum(1, keepdim=True).clamp_min(1e-30))


def added(before: float, times: float, beyond: float) -> float:
    """S_i after an update that says so many times the usual beyond its digest.

    >>> [added(before, times, 1.75) for before, times in [(0.0, 1.0), (0.0, 2.25), (0.5, 1.5), (0.5, 9.0)]]
    [0.0, 0.5, 0.25, 4.0]
    """
    return min(MOST, max(0.0, before + times - beyond))


def reference(digests: Sequence[Samples], generator: torch.Generator) -> Samples:
    """Some rows of all digests together."""
    features = torch.cat([one.inputs[0] for one in digests])
    labels = torch.cat([classes_of(one.labels) for one in digests])
    some = torch.randperm(len(features), generator=generator)[:ROWS]
    return Samples((features[some],), labels[some])


@torch.no_grad()
def odds(changes: Tensor, like: Tensors, rows: Samples, state: State, context: Context) -> Tensor:
    """The log-odds of each class after each change of the model, (n, rows, classes)."""
    parts = changes.split([tensor.numel() for tensor in like.values()], 1)
    weights = {n: state.model[n] + part.view(-1, *like[n].shape) for n, part in zip(like, parts, strict=True)}
    fill(context.bench.model, state.model, state.buffers)
    chances = each_output(context.bench.model, weights, rows).double().log_softmax(2)
    return chances - torch.log1p(-chances.exp().clamp_max(1 - 1e-9))


def unexplained(more: Tensor, rows: Samples) -> Tensor:
    """Of log-odds (n, rows, classes) beyond the guides', the largest mean of a class over the rows of others, (n,).

    >>> rows = Samples((torch.zeros(2, 1),), torch.tensor([0, 1]))
    >>> unexplained(torch.tensor([[[9.0, -0.5], [1.5, 9.0]]]), rows).tolist()
    [1.5]
    """
    others = rows.labels[:, None] != torch.arange(more.shape[2])
    return ((more * others).sum(1) / others.sum(0).clamp_min(1)).amax(1)


def beyond_digest(guided: Explained, called: Called) -> list[str]:
    """Of whose update only what its digest explains counts, or nothing."""
    out = [client for client, left in guided.left.items() if not left or guided.memory["unexplained"][client] >= 1]
    return [
        f"{called(c)}'s update goes beyond its digest: what that explains counts, {guided.left[c]:.0%} of its length"
        for c in out
    ]
