"""Rules with samples of the moderator's own: weights by accuracy on them, and FLTrust.

In experiments the moderator's samples are drawn from the training samples, never from the test samples that accuracy
is reported on; the clients hold them as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from holdfast.context import Context
from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import rng
from holdfast.core.tensors import flat
from holdfast.core.types import State, Update
from holdfast.data.task import Samples
from holdfast.learning.loop import train
from holdfast.learning.objective import TaskLoss
from holdfast.models.networks import fill, weights_of
from holdfast.trust.base import Hearing, Judgement, Trust
from holdfast.trust.measures import accuracies, ask_for_accuracies
from holdfast.trust.robust import aggregates as robust
from holdfast.trust.robust.merging import judge_merged, judge_weighed, stacked

USUAL = {"servertest": 500, "fltrust": 100}  # samples of the moderator's own


def own_samples(rule: str, wanted: int | None, context: Context) -> Samples:
    """The moderator's samples: as many as are wanted, or else as usual; of these, all where there are fewer."""
    own = context.own_samples(USUAL[rule] if wanted is None else wanted)
    if wanted is not None and len(own) < wanted:
        raise HoldfastError(f"trust {rule!r}: the task has {len(own)} samples, not {wanted}; say fewer.")
    return own


@dataclass(frozen=True)
class ServerTest(Trust):
    """Weights by each model's accuracy on the moderator's own samples, as FedTest describes it.

    a_i = acc_i^power / sum_j acc_j^power. FedTest cites TiFL (Chai et al., 2020) for it, which selects tiers of clients
    and weighs nobody (`selection = "tiers"`). The power is 1 in FedTest's words, 8 in public code (iQua/flsim).
    """

    needs_classes: ClassVar[bool] = True

    samples: int | None = None  # none: 500, or all where there are fewer
    power: float = 1.0

    def __post_init__(self) -> None:
        if (self.samples is not None and self.samples < 1) or not 0 < self.power <= 64:
            raise ValueError(f"samples must be at least 1 and power in (0, 64], got {self.samples} and {self.power}.")

    def check(self, context: Context) -> None:
        own_samples("servertest", self.samples, context)

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        asked = ask_for_accuracies(state.model, state.buffers, updates)
        bench, own = hearing.context.bench, own_samples("servertest", self.samples, hearing.context)
        found = accuracies(bench.model, own, asked, [update.client for update in updates])
        scores = {int(client): accuracy for client, accuracy in found.items()}
        masses = [score**self.power for score in scores.values()]
        return dataclasses.replace(
            judge_weighed(updates, masses if sum(masses) else [1.0] * len(updates)), scores=scores
        )


@dataclass(frozen=True)
class FLTrust(Trust):
    """Updates count by their cosine with the moderator's own update, and at its length (Cao et al.)."""

    merges_updates: ClassVar[bool] = True

    samples: int | None = None  # none: 100, or all where there are fewer

    def __post_init__(self) -> None:
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"samples must be at least 1, got {self.samples}.")

    def check(self, context: Context) -> None:
        own_samples("fltrust", self.samples, context)

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        context, bench = hearing.context, hearing.context.bench
        batches = rng(context.seed, state.round, -1, "the moderator's update")
        fill(bench.model, state.model, state.buffers)
        own = own_samples("fltrust", self.samples, context)
        train(bench.model, own, context.learning_in(state.round), batches, TaskLoss(bench.loss))
        trained = weights_of(bench.model)
        delta = {name: trained[name] - weight for name, weight in state.model.items()}
        found = robust.fltrust(stacked(updates), flat(delta, list(updates[0].delta)))
        scores = {update.client: float(w) for update, w in zip(updates, found.weights, strict=True)}
        return dataclasses.replace(judge_merged(updates, found), scores=scores)
