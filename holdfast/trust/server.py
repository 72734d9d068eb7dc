"""Rules with samples of the moderator's own: weights by accuracy on them, and FLTrust.

In experiments the moderator's samples are drawn from the training samples, never from the test samples that accuracy
is reported on; the clients hold them as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from holdfast.core import Federation, State, Update
from holdfast.errors import HoldfastError
from holdfast.models import fill, weights_of
from holdfast.randomness import rng
from holdfast.tasks import Samples
from holdfast.trust import robust
from holdfast.trust.merging import flat, judge_merged, judge_weighed, no_merging, stacked
from holdfast.trust.tester import accuracies, test_tensors
from holdfast.trust.weights import Judgement, Root, Trust

if TYPE_CHECKING:
    from holdfast.round import Method

USUAL = {"servertest": 500, "fltrust": 100}  # samples of the moderator's own


def own_samples(rule: str, wanted: int | None, root: Root) -> Samples:
    """The moderator's samples: as many as are wanted, or else as usual; of these, all where there are fewer."""
    own = root(USUAL[rule] if wanted is None else wanted)
    if wanted is not None and len(own) < wanted:
        raise HoldfastError(f"trust {rule!r}: the task has {len(own)} samples, not {wanted}; say fewer.")
    return own


@dataclass(frozen=True)
class ServerTest(Trust):
    """Weights in proportion to each model's accuracy on the moderator's own samples (Chai et al., TiFL)."""

    samples: int | None = None  # none: 500, or all where there are fewer
    power: float = 1.0
    own: Any = field(default=None, init=False, repr=False, compare=False)  # the moderator's samples, once ready

    def __post_init__(self) -> None:
        if (self.samples is not None and self.samples < 1) or not 0 < self.power <= 64:
            raise ValueError(f"samples must be at least 1 and power in (0, 64], got {self.samples} and {self.power}.")

    def ready(self, method: Method, root: Root) -> Self:
        ready = super().ready(method, root)
        object.__setattr__(ready, "own", own_samples("servertest", self.samples, root))
        return ready

    def judge(self, updates: Sequence[Update], federation: Federation, state: State) -> Judgement:
        tensors = test_tensors(state.model, state.buffers, updates)
        bench = self.run.bench
        found = accuracies(bench.model, self.own, bench.metric, tensors, [update.client for update in updates])
        scores = {int(client): accuracy for client, accuracy in found.items()}
        masses = [score**self.power for score in scores.values()]
        return dataclasses.replace(
            judge_weighed(updates, masses if sum(masses) else [1.0] * len(updates)), scores=scores
        )


@dataclass(frozen=True)
class FLTrust(Trust):
    """Updates count by their cosine with the moderator's own update, and at its length (Cao et al.)."""

    samples: int | None = None  # none: 100, or all where there are fewer
    own: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"samples must be at least 1, got {self.samples}.")

    def ready(self, method: Method, root: Root) -> Self:
        no_merging("fltrust", method)
        ready = super().ready(method, root)
        object.__setattr__(ready, "own", own_samples("fltrust", self.samples, root))
        return ready

    def judge(self, updates: Sequence[Update], federation: Federation, state: State) -> Judgement:
        from holdfast.client import train

        bench, batches = self.run.bench, rng(self.run.seed, state.round, -1, "the moderator's update")
        fill(bench.model, state.model, state.buffers)
        train(bench.model, self.own, self.run.learning_in(state.round), batches, bench.loss)
        trained = weights_of(bench.model)
        delta = {name: trained[name] - weight for name, weight in state.model.items()}
        found = robust.fltrust(stacked(updates), flat(delta, list(updates[0].delta)))
        scores = {update.client: float(w) for update, w in zip(updates, found.weights, strict=True)}
        return dataclasses.replace(judge_merged(updates, found), scores=scores)
