"""How to divide a total epsilon between a client's digest and its protected updates.

Gaussian releases compose by the squares of their ratios, so a share of the squared ratio is a share of the budget: the
digest gets one share, all rounds of DP-SGD the rest, and what both cost together is computed for every client. Which
share is best is tried by running the experiment as it is, on seeds of the planner's own. Nothing is released or
entered; the data must be public, since the choice depends on them and no promise covers that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.absence import FedDig
from holdfast.audit.planning import shorter
from holdfast.core.errors import HoldfastError
from holdfast.digests.release import claim_of
from holdfast.play import run
from holdfast.privacy.accounting import compose
from holdfast.privacy.calibration import gaussian_epsilon, gaussian_ratio
from holdfast.privacy.noise import system
from holdfast.privacy.patients import patients_in
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment

SHARES = (0.5, 0.7, 0.9, 0.97)  # of the budget for the digest
SEEDS = (200, 201)  # never those of the experiment
LESS = 0.98  # of the updates' epsilon, where both together cost too much


@dataclass(frozen=True)
class Split:
    """A digest's epsilon, that of all updates, what both cost together, and what a run comes to."""

    share: float
    digest: float
    updates: float
    total: float
    accuracy: float | None = None

    @property
    def words(self) -> str:
        """As an experiment's file says it."""
        return f"absence.epsilon = {self.digest:g}, protect.epsilon = {self.updates:g}"


def split_at(experiment: Experiment, share: float, epsilon: float, delta: float) -> Split:
    """The split in which the digest takes this share, and both cost at most epsilon at delta for every client."""
    ratio = gaussian_ratio(epsilon, delta)
    digest = shorter(gaussian_epsilon(math.sqrt(share) * ratio, delta))
    updates = shorter(gaussian_epsilon(math.sqrt(1 - share) * ratio, delta))
    while True:
        total = cost_of(with_split(experiment, digest, updates, delta), delta)
        if total <= epsilon:
            return Split(share, digest, updates, total)
        updates = shorter(updates * LESS)


def with_split(experiment: Experiment, digest: float, updates: float, delta: float) -> Experiment:
    """The experiment with these epsilons."""
    absence, protect = experiment.absence, experiment.protect
    if absence.options.get("mode") != "moments" or protect.name != "dp-sgd":
        raise HoldfastError(
            "privacy plan: a budget is divided between digests of mode 'moments' and updates protected by 'dp-sgd'; "
            "say both in the experiment."
        )
    return replace(
        experiment,
        absence=replace(absence, options={**absence.options, "epsilon": digest, "delta": delta}),
        protect=replace(protect, options={**protect.options, "epsilon": updates, "delta": delta}),
    )


def cost_of(experiment: Experiment, delta: float) -> float:
    """What digests and updates cost together, for the client for whom it is most."""
    plan = make_plan(experiment)
    options, about = plan.method.absence, plan.method.bench.about
    assert isinstance(options, FedDig)
    assert plan.guard is not None
    digest = claim_of(options, about.feature_shape, about.classes)
    releases = math.ceil(experiment.rounds / options.refresh) if options.refresh else 1
    sizes = {patients_in(plan.task.train.take(own), about.person) for own, _, _ in plan.parts}
    updates = [plan.guard.claim(size, plan.method.learning, system()) for size in sizes]
    return max(compose([digest] * releases + [one] * experiment.rounds, delta) for one in updates)


def try_splits(
    experiment: Experiment,
    epsilon: float,
    delta: float,
    shares: Sequence[float] = SHARES,
    seeds: Sequence[int] = SEEDS,
) -> list[Split]:
    """Splits of the budget, the best first: the mean of the last round's leading metric over a few seeds."""
    found = []
    for share in shares:
        split = split_at(experiment, share, epsilon, delta)
        once = replace(with_split(experiment, split.digest, split.updates, delta), evaluate_every=experiment.rounds)
        values = [run(replace(once, seed=seed)).records[-1].accuracy or 0.0 for seed in seeds]
        found.append(replace(split, accuracy=sum(values) / len(values)))
    return sorted(found, key=lambda split: -(split.accuracy or 0.0))
