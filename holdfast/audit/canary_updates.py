"""The real steps of DP-SGD, in the real epoch loop, on canaries whose gradients the adversary chose.

Canary i is the i-th unit vector, far longer than any clip, of one of two classes; the model is one layer. So its
gradient lies in weights that are its own, is one of two opposite vectors, and is as long as the clip bound if gradients
are clipped: the worst pair (accounting.py). One training on hundreds of canaries is as many trials (one-run auditing:
Steinke, Nasr, Jagielski 2023). The adversary sees each step's noised gradient, and adds up log P(seen | one side) -
log P(seen | the other). Batches, gradients, clipping and noise are those of the code that trains.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.audit.canary import Finding, with_limits
from holdfast.audit.canary_digests import both_ways
from holdfast.audit.statistics import rates
from holdfast.audit.target import Updates
from holdfast.audit.tradeoff import Array, Audit, Scored, audit, one_run_bound
from holdfast.data.task import Samples
from holdfast.learning.loop import train
from holdfast.learning.objective import TaskLoss
from holdfast.learning.settings import Learning
from holdfast.privacy.accounting import compose
from holdfast.privacy.dp_steps import Noisy
from holdfast.privacy.noise import Source

LONG = 1e4  # times the clip bound: how long a canary is
MOST_STEPS = 300  # of all planned ones: some seconds


def attack_updates(updates: Updates, trials: int, source: Source) -> tuple[Finding, Audit]:
    """How well the best test tells the two records apart, and what that shows of epsilon."""
    steps = min(MOST_STEPS, updates.claim.steps * updates.rounds)
    claim = replace(updates.claim, steps=steps)
    claim = replace(claim, epsilon_total=compose([claim], claim.delta))
    runs = [
        (side, scores(claim.clip, claim.multiplier, claim.rate, steps, side, source))
        for side in both_ways(trials, source)
    ]
    out, inside = (np.concatenate([score[side * sign > 0] for side, score in runs]) for sign in (-1, 1))
    half = claim.epsilon_total / 2
    found = audit(claim, [Scored(out, inside, (-half, half))])
    side, score = runs[0]
    alone = one_run_bound(int((side * score > 0).sum()), trials, claim.delta)
    which = "all updates" if steps == updates.claim.steps * updates.rounds else f"the first {steps} steps"
    who = f"{which}, the worst pair of gradients"
    found = replace(found, besides=f"one run alone, whatever the code does: epsilon >= {alone:.2g}")
    return with_limits(rates(out, inside), trials, None, who), found


def scores(clip: float, multiplier: float, rate: float, steps: int, side: Array, source: Source) -> Array:
    """The best test's score of each canary, for which of its two sides it has (-1 or 1), after so many steps."""
    canaries = len(side)
    model = nn.Linear(canaries, 2, bias=False)
    nn.init.zeros_(model.weight)
    samples = Samples((LONG * clip * torch.eye(canaries),), torch.from_numpy(side < 0).long())
    told = np.zeros(canaries)

    def see(name: str, weight: Tensor) -> Tensor:
        """Read a step's gradient where an algorithm would add its correction."""
        assert weight.grad is not None
        seen = (weight.grad[1] - weight.grad[0]).double().numpy() * canaries / np.sqrt(2) / clip
        with np.errstate(divide="ignore"):
            plus, minus = (
                np.logaddexp(np.log1p(-rate), np.log(rate) + (sign * 2 * seen - 1) / (2 * multiplier**2))
                for sign in (1, -1)
            )
        told[:] += plus - minus
        return torch.zeros_like(weight)

    learning = Learning(lr=1e-9, epochs=steps, batch_size=canaries)
    noisy = Noisy(clip, multiplier, rate, canaries, source)  # one batch an epoch
    train(model, samples, learning, torch.Generator(), TaskLoss(nn.functional.cross_entropy), see, noisy)
    return told
