"""Which settings meet a target of epsilon, and what they cost in accuracy.

The accuracy is that of a model trained on the digests alone, without any update: what stands in for the clients when
all of them are away. It takes seconds, and a run with some clients present does better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Decimal

import torch

from holdfast.absence import FedDig
from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import rng
from holdfast.core.types import Tensors, size
from holdfast.data.task import Samples, right_or_wrong
from holdfast.digests.received import samples_of
from holdfast.digests.release import claim_of, make_release
from holdfast.learning.loop import outputs_of, train
from holdfast.learning.objective import TaskLoss
from holdfast.privacy.accounting import compose
from holdfast.privacy.claim import Claim
from holdfast.privacy.noise import system
from holdfast.runs.plan import Plan

EPOCHS = 10
NEAR = 5e-3  # how near the target a setting must come
DROWNS = 0.1  # of a record's greatest length: noise in a client's mean beyond this is said


@dataclass(frozen=True)
class Setting:
    """Options that meet the target, what one release promises, and what all of them together do."""

    options: FedDig
    claim: Claim
    epsilon_total: float
    accuracy: float | None = None
    size: int | None = None  # bytes of a release

    @property
    def words(self) -> str:
        """As the experiment says it."""
        return f'{{name = "feddig", mode = "{self.options.mode}", {self.choices}}}'

    @property
    def choices(self) -> str:
        """What the mode leaves to choose, in numbers that mean what was calculated."""
        options, said = self.options, []
        if options.mode != "paper":
            said.append(f"epsilon = {options.true_epsilon:.12g}")
            said += [f"delta = {options.delta:.12g}"] if options.delta != FedDig.delta else []
        return ", ".join(said if options.mode == "moments" else [*said, f"spd = {options.spd}"])


def settings_for(
    epsilon: float, delta: float, releases: int, feature_shape: tuple[int, ...], classes: int
) -> list[Setting]:
    """Settings whose releases together cost at most epsilon at delta."""
    if not 0 < epsilon < math.inf or not 0 < delta < 1 or releases < 1:
        raise HoldfastError("privacy plan: epsilon must be positive, delta between 0 and 1, releases at least 1.")
    found = []
    for mode in ("moments", "dp-label-public", "dp-full"):
        options = FedDig(mode=mode, strategy="within", delta=delta if releases == 1 else shorter(delta / releases))
        fitting = calibrated(options, epsilon, delta, releases, feature_shape, classes)
        for spd in (4,) if mode == "moments" else (4, 16, 64):  # how many are mixed does not change what is promised
            chosen = replace(fitting.options, spd=spd)
            found.append(Setting(chosen, replace(fitting.claim, spd=fitting.claim.spd and spd), fitting.epsilon_total))
    return found


def calibrated(
    options: FedDig, epsilon: float, delta: float, releases: int, feature_shape: tuple[int, ...], classes: int
) -> Setting:
    """The options with the largest epsilon for each release that keeps the total within the target."""

    def at(each: float) -> Setting:
        chosen = replace(options, epsilon=each)
        claim = claim_of(chosen, feature_shape, classes)
        return Setting(chosen, claim, compose([claim] * releases, delta) if releases > 1 else claim.epsilon_total)

    if releases == 1:
        return at(epsilon)
    low, high = epsilon / releases / 2, epsilon
    while high - low > NEAR * epsilon:
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle).epsilon_total <= epsilon else (low, middle)
    return at(shorter(low))


def shorter(value: float) -> float:
    """The value rounded down to four digits, to be typed as it is printed.

    >>> shorter(1.49276), shorter(1e-5 / 3)
    (1.492, 3.333e-06)
    """
    last = Decimal(value).adjusted() - 3
    return float(Decimal(value).quantize(Decimal(f"1e{last}"), rounding=ROUND_DOWN))


def noise_in_mean(claim: Claim, dimensions: int, records: int) -> float:
    """How far noise moves the mean of a client's records in a moment digest, where no record is longer than 1.

    The sum's noise has deviation sigma in each of d coordinates, so its length is about sqrt(d) sigma, the mean's that
    over n. The claim's sensitivity of 2 gives the scale's unit.
    """
    return math.sqrt(dimensions) * 2 * claim.scale / claim.sensitivity / records


def too_small(plan: Plan, settings: Sequence[Setting]) -> str:
    """A warning where a client has so few records that the moments' noise drowns them; else nothing."""
    claim = next((setting.claim for setting in settings if setting.options.mode == "moments"), None)
    sizes, dimensions = plan.stage.sizes, math.prod(plan.method.bench.about.feature_shape)
    if claim is None:
        return ""
    small = [client for client, size in enumerate(sizes) if noise_in_mean(claim, dimensions, size) > DROWNS]
    if not small:
        return ""
    least = min(small, key=lambda client: sizes[client])
    noise = noise_in_mean(claim, dimensions, sizes[least])
    return (
        f"{len(small)} of {len(sizes)} clients have few records for this epsilon: at {plan.experiment.name_of(least)} "
        f"({sizes[least]} records) noise moves each mean by about {noise:.2f}, where no record is longer than 1. "
        "A larger epsilon, fewer columns or more records help; nothing is spent yet."
    )


class Workshop:
    """The experiment's clients with their features encoded once, to try many settings on."""

    def __init__(self, plan: Plan) -> None:
        if plan.method.bench.producer is not None:
            raise HoldfastError("privacy plan: it tries models that read features alone; set model = 'features'.")
        self.plan = plan
        self.own = [plan.prepare(plan.task.train.take(train)) for train, _, _ in plan.parts]
        self.test = plan.prepare(plan.task.test)

    def trial(self, setting: Setting) -> Setting:
        """The setting with the accuracy of a model trained on its digests alone, and a release's size."""
        method, seed = self.plan.method, self.plan.experiment.seed
        about = method.bench.about
        digests: dict[int, Tensors] = {}
        try:
            for client, own in enumerate(self.own):
                told = (own.inputs[-1], own.labels, rng(seed, 0, client, "digest"))
                digests[client] = make_release(setting.options, about, *told, system())[0]
            opened = samples_of(setting.options, method, digests, 0, sorted(digests))
        except HoldfastError:  # a client with too few records, or so much noise that nothing is left to learn from
            return replace(setting, accuracy=None, size=max(map(size, digests.values()), default=None))
        features, labels = torch.cat([d.features for d in opened]), torch.cat([d.labels for d in opened])
        model = self.plan.model()
        for epoch in range(EPOCHS):
            lr = method.learning.lr * 0.5 * (1 + math.cos(math.pi * epoch / EPOCHS))
            learning = replace(method.learning, epochs=1, local_steps=None, lr=lr)
            batches = rng(seed, epoch, -1, "plan")
            train(model, Samples((features,), labels), learning, batches, TaskLoss(method.bench.loss))
        accuracy = float(right_or_wrong(outputs_of(model, self.test), self.test.labels).mean())
        return replace(setting, accuracy=accuracy, size=max(map(size, digests.values())))

    def curve(self, epsilons: Sequence[float], delta: float) -> list[Setting]:
        """The moment digest at several true epsilons, and the paper's mixture without noise at infinity."""
        about = self.plan.method.bench.about
        kinds = [FedDig(mode="moments", epsilon=epsilon, delta=delta) for epsilon in epsilons] + [FedDig()]
        found = []
        for options in kinds:
            claim = claim_of(options, about.feature_shape, about.classes)
            found.append(self.trial(Setting(options, claim, claim.epsilon_total)))
        return found
