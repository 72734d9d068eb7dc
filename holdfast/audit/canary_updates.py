"""The strongest attack on protected updates: the adversary chose the record's gradient, and sees every noised sum.

The record's gradient is +C or -C in one direction, whatever the model (the worst pair, see accounting.py), every other
record is known, and all planned rounds are seen step by step. What is left of a step is noise, plus +-C if the record
is in the batch; the best test adds up log P(o | +C) - log P(o | -C). Batches and noise come from the code that trains.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from holdfast.audit import statistics as auditing
from holdfast.audit.canary import Finding, with_limits
from holdfast.audit.statistics import Array, Audit, rates
from holdfast.audit.target import Updates
from holdfast.privacy.accounting import compose
from holdfast.privacy.dp_steps import Noisy, poisson_batch
from holdfast.privacy.noise import Source


def attack_updates(updates: Updates, trials: int, source: Source) -> tuple[Finding, Audit]:
    """How well the best test tells the two records apart, and what that shows of epsilon."""
    claim = updates.claim
    whole = compose([claim] * updates.rounds, claim.delta)
    every = replace(claim, steps=claim.steps * updates.rounds, epsilon_total=whole)
    members = max(1000, trials)
    found = rates(*(scores(every.multiplier, every.rate, every.steps, members, side, source) for side in (False, True)))
    who = "all updates, the worst pair of gradients"

    def release(inside: bool) -> float:
        return float(scores(every.multiplier, every.rate, every.steps, 1, inside, source)[0])

    return with_limits(found, members, None, who), auditing.audit(every, release, trials)


def scores(multiplier: float, rate: float, steps: int, trials: int, inside: bool, source: Source) -> Array:
    """The best test's score of each of so many trainings, in units of the clip bound."""
    noisy = Noisy(1.0, multiplier, rate, 1, source)
    sums = torch.zeros(trials * steps, dtype=torch.float64)
    sums[torch.from_numpy(poisson_batch(trials * steps, rate, source))] = 1.0 if inside else -1.0
    seen = noisy.noised(sums).view(trials, steps).numpy()
    plus, minus = (np.log1p(rate * np.expm1((sign * 2 * seen - 1) / (2 * multiplier**2))) for sign in (1, -1))
    return np.asarray((plus - minus).sum(1))
