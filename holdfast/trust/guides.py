"""Guides: what a member's own digest says that an honest update of it looks like (after DiverseFL's idea).

A backdoor of any shape calls inputs of all classes by one name, and what teaches it is not in the member's digest; or
it is, and then that class of the digest is odd, and left out. The guide s_i is the way downhill of the loss on member
i's digest, at the model w that was sent, as long as fits the update best: the part of delta_i that its digest explains.
On rows x of all digests that are believed,

    s_i  = -a g_i,  g_i the gradient,  a >= 0 such that |delta_i - s_i| is least
    e_ic = mean over rows of other classes than c of  log-odds(c | x, w + delta_i) - log-odds(c | x, w + s_i)
    u_i  = max_c e_ic / steps_i       how much more, in a step, update i says c where it is not so than its digest does
    S_i <- max(0, S_i + u_i / (median of u) - beyond), at most 4
    explained_i = 1 - S_i, at least 0

S is Page's cumulative sum: chance goes up and down and leaves it at nothing, while who pushes on in each round is found
out however gently. Of any T rounds in which a member's update counts at all, its u is together below beyond T + 1 times
the usual: patience buys nothing. No stamp has to be known, nobody is asked, and it costs one gradient of each digest.

Prakash, Avestimehr: DiverseFL, 2020 (there the server trains on samples that members share). Page: Continuous
inspection schemes, Biometrika 1954.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from holdfast.context import Context
from holdfast.core.types import State, Tensors, Update
from holdfast.data.task import Samples
from holdfast.learning.device import outputs
from holdfast.learning.loop import full_gradient
from holdfast.learning.objective import TaskLoss
from holdfast.models.networks import fill
from holdfast.trust.measures import classes_of

ROWS = 128  # on which updates and guides are compared
MOST = 4.0  # that is remembered of S: at the usual pace it is forgiven in about five rounds


def explained(
    updates: Sequence[Update], digests: Mapping[int, Samples], state: State, context: Context, beyond: float
) -> tuple[dict[int, float], Tensors]:
    """From 0 (its digest does not explain the update) to 1, of each client; 0 also where there is no digest. And what
    is to be remembered."""
    rows = reference(list(digests.values()), context.draw(state.round, "reference rows"))
    found: dict[int, float] = {}
    for client, (update, guide) in guides_of(updates, digests, state, context).items():
        said, meant = (
            odds(context, {name: state.model[name] + change[name] for name in change}, state.buffers, rows)
            for change in (update.delta, guide)
        )
        found[client] = unexplained(said, meant, rows) / update.steps
    usual = max(statistics.median(found.values()), 1e-12)
    sums = state.trust.get("unexplained", torch.zeros(context.clients, dtype=torch.float64)).clone()
    for client, value in found.items():
        sums[client] = added(float(sums[client]), value / usual, beyond)
    counts = {client: max(0.0, 1 - float(sums[client])) for client in found}
    return {u.client: 1.0 if u.synthetic else counts.get(u.client, 0.0) for u in updates}, {"unexplained": sums}


def guides_of(
    updates: Sequence[Update], digests: Mapping[int, Samples], state: State, context: Context
) -> dict[int, tuple[Update, Tensors]]:
    """The update and the guide of each client that is there and left a digest."""
    model, learning = context.bench.model, context.learning_in(state.round)
    found = {}
    fill(model, state.model, state.buffers)
    for update in updates:
        own = digests.get(update.client)
        if update.synthetic or own is None or not len(own):
            continue
        whole = replace(learning, batch_size=len(own))
        gradient = full_gradient(model, own, whole, TaskLoss(context.bench.loss))
        downhill = {name: gradient[name] * -learning.factor(name) for name in update.delta}
        found[update.client] = update, fitted(downhill, update.delta)
    return found


def fitted(way: Tensors, delta: Tensors) -> Tensors:
    """The way as long as fits delta best; nothing where it leads away from it.

    >>> fitted({"w": torch.tensor([2.0, 0.0])}, {"w": torch.tensor([3.0, 4.0])})["w"].tolist()
    [3.0, 0.0]
    """
    along = sum(float(way[name].flatten() @ delta[name].flatten()) for name in way)
    square = sum(float(tensor.flatten() @ tensor.flatten()) for tensor in way.values())
    return {name: max(0.0, along / max(square, 1e-30)) * tensor for name, tensor in way.items()}


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
def odds(context: Context, weights: Tensors, buffers: Tensors, rows: Samples) -> Tensor:
    """The log-odds of each class, (rows, classes)."""
    model = context.bench.model
    fill(model, weights, buffers)
    model.eval()
    chances = outputs(model, *rows.inputs).double().log_softmax(1)
    return chances - torch.log1p(-chances.exp().clamp_max(1 - 1e-9))


def unexplained(sent: Tensor, guided: Tensor, rows: Samples) -> float:
    """Of log-odds (rows, classes), the largest mean rise of a class over the rows of other classes.

    >>> rows = Samples((torch.zeros(2, 1),), torch.tensor([0, 1]))
    >>> unexplained(torch.tensor([[9.0, 0.5], [2.0, 9.0]]), torch.tensor([[0.0, 1.0], [0.5, 0.0]]), rows)
    1.5
    """
    others = rows.labels[:, None] != torch.arange(sent.shape[1])
    means = ((sent - guided) * others).sum(0) / others.sum(0).clamp_min(1)
    return float(means.max())
