"""Testing a claim by attack: membership by likelihood ratio, and a lower bound on epsilon from canaries.

The adversary knows every record but one, and that this one is either a or b. What is left of a release is then known
values plus noise, and the best test (Neyman, Pearson) compares log P(noise | b) - log P(noise | a) with a threshold.
For Gaussian noise of ratio m = |x_a - x_b| / scale it reaches AUC = Phi(m / sqrt 2).

A canary audit runs the real release many times with a and with b. If it is (epsilon, delta)-private, every test obeys
TPR <= e^epsilon FPR + delta; so counted TPR and FPR refute, at a stated confidence, a claim that is too good. An audit
can find a bug but never prove a claim: its cap is the largest epsilon that so few trials could show at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.privacy.claim import Claim
from holdfast.privacy.exact import Kind
from holdfast.privacy.moment_noise import (
    RADIUS,
    STEPS,
    Centres,
    First,
    Scales,
    Second,
    exact_first,
    exact_second,
    residuals,
)
from holdfast.privacy.noise import Source, gaussian, laplace, scale_at_least

Array = NDArray[np.float64]
CONFIDENCE = 0.99
AT_ONCE = 1 << 22  # numbers of noise held at a time


@dataclass(frozen=True)
class Membership:
    """How well the best test tells record a from record b."""

    auc: float
    tpr_at_1_percent: float
    tpr_at_01_percent: float


@dataclass(frozen=True)
class Audit:
    """The epsilon an attack has shown with 99 % confidence, the most it could have, and the claim it is held to."""

    lower: float
    cap: float
    claimed: float

    @property
    def passed(self) -> bool:
        return self.lower <= self.claimed

    def __str__(self) -> str:
        shown = f"the attack shows epsilon >= {self.lower:.3g} (it could show {self.cap:.3g} at most)"
        if math.isinf(self.claimed):
            return f"No epsilon is claimed, so none can be refuted; {shown}."
        return f"{'not refuted' if self.passed else 'REFUTED'}: {shown}; claimed {self.claimed:.4g}."


def scores(kind: Kind, difference: Array, scale: Array | float, noise: Array) -> Array:
    """log P(o | b) - log P(o | a) for o = x_a + noise, difference = x_b - x_a; one score for each row of noise.

    >>> scores("gaussian", np.array([2.0]), np.array([1.0]), np.array([[0.0], [2.0]])).tolist()
    [-2.0, 2.0]
    """
    if kind == "laplace":
        return np.asarray(((np.abs(noise) - np.abs(noise - difference)) / scale).sum(1))
    return np.asarray((difference * (2 * noise - difference) / (2 * scale**2)).sum(1))


def membership(kind: Kind, difference: NDArray[Any], scale: Array, trials: int, source: Source) -> Membership:
    """The best test on a release whose values change by `difference`, with fresh exact noise of these scales."""
    changed = difference != 0
    change, spread = difference[changed].astype(np.float64), np.broadcast_to(scale, difference.shape)[changed]
    draw = laplace if kind == "laplace" else gaussian
    told = np.zeros(2 * trials)
    for one in np.unique(spread):
        same = change[spread == one]
        for few in np.array_split(same, 1 + 2 * trials * len(same) // AT_ONCE):
            drawn = draw(2 * trials * len(few), scale_at_least(float(one)), source)
            noise = drawn.reshape(2 * trials, -1).astype(np.float64)
            noise[trials:] += few
            told += scores(kind, few, one, noise)
    return rates(told[:trials], told[trials:])


def rates(out: Array, inside: Array) -> Membership:
    """AUC and TPR at fixed FPR of a score that should be larger inside; ties count half, a tied threshold not at all.

    >>> rates(np.array([0.0, 1.0]), np.array([1.0, 2.0])).auc
    0.875
    """
    ordered = np.sort(out)
    below = np.searchsorted(ordered, inside, side="left")
    tied = np.searchsorted(ordered, inside, side="right") - below
    auc = float((below + tied / 2).mean() / len(out))

    def tpr(fpr: float) -> float:
        return float((inside > ordered[len(out) - 1 - int(fpr * len(out))]).mean())

    return Membership(auc, tpr(0.01), tpr(0.001))


def gaussian_auc(ratio: float) -> float:
    """AUC of the best test against Gaussian noise: Phi(m / sqrt 2).

    >>> [round(gaussian_auc(ratio), 2) for ratio in (2.0, 0.719, 0.268)]  # of epsilon 10, 3, 1 at delta 1e-5
    [0.92, 0.69, 0.58]
    """
    return 0.5 * math.erfc(-ratio / 2)


def stage_values(stage: First | Second) -> Array:
    """All numbers of a stage in one row."""
    return np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in vars(stage).values()])


def stage_spreads(classes: int, k: int, scales: Scales) -> tuple[Array, Array]:
    """The noise of each number of both stages, in the order of stage_values."""
    row, column = np.triu_indices(k)

    def triangle(scale: tuple[Fraction, Fraction]) -> Array:
        return np.where(row == column, float(scale[0]), float(scale[1]))

    counts, sums = np.ones(classes), np.ones(classes * k)
    first = [counts * float(scales.counts), sums * float(scales.sums)]
    second = [counts * float(scales.counts_2), sums * float(scales.sums_2)]
    second += [np.tile(triangle(scales.classwise), classes), triangle(scales.shared)]
    return np.concatenate(first), np.concatenate(second)


def stages_of(record: tuple[Array, int], classes: int, centres: Centres) -> tuple[Array, Array]:
    """What one record adds to each stage before its noise, given the centres that stage 1 led to."""
    values, label = np.rint(record[0] * STEPS).astype(np.int64)[None], np.array([record[1]])
    first = exact_first(values, label, classes)
    return stage_values(first), stage_values(exact_second(residuals(values, label, centres), label, classes))


def no_centres(classes: int, k: int) -> Centres:
    """The centres of a client with too few records to have any."""
    return Centres(np.zeros((classes, k)), np.full(classes, RADIUS))


def moment_change(
    a: tuple[Array, int], b: tuple[Array, int], classes: int, scales: Scales, centres: Centres | None = None
) -> tuple[Array, Array]:
    """How a moment digest's whole numbers change from record a to record b, and the noise of each."""
    centres = centres or no_centres(classes, len(a[0]))
    before, after = (np.concatenate(stages_of(record, classes, centres)) for record in (a, b))
    return after - before, np.concatenate(stage_spreads(classes, len(a[0]), scales))


def moment_ratio(
    a: tuple[Array, int], b: tuple[Array, int], classes: int, scales: Scales, centres: Centres | None = None
) -> float:
    """|x_a - x_b| over the moment digest's scales, for two (features, label): what the best test sees."""
    change, spread = moment_change(a, b, classes, scales, centres)
    return float(np.sqrt(((change / spread) ** 2).sum()))


def audit(claim: Claim, release: Callable[[bool], float], trials: int) -> Audit:
    """Run the real release `trials` times with each canary; `release(inside)` returns the test's score.

    Half of the runs choose the threshold and its side, the other half are counted, so the choice costs no confidence.
    """
    if trials < 20:
        raise HoldfastError(f"audit: {trials} trials show nothing; use at least 20.")
    out, inside = (np.array([release(side) for _ in range(trials)]) for side in (False, True))
    half = trials // 2
    best, direction = _best_threshold(out[:half], inside[:half], claim.delta)
    first, second = (out[half:], inside[half:]) if direction > 0 else (inside[half:], out[half:])
    hits = int((second * direction > best * direction).sum())
    false = int((first * direction > best * direction).sum())
    lower = _epsilon(hits, false, trials - half, claim.delta)
    return Audit(lower, _epsilon(trials - half, 0, trials - half, claim.delta), claim.epsilon_total)


def _best_threshold(out: Array, inside: Array, delta: float) -> tuple[float, int]:
    found = (-math.inf, 0.0, 1)
    for threshold in np.quantile(np.concatenate([out, inside]), np.linspace(0.005, 0.995, 100)):
        for direction in (1, -1):
            first, second = (out, inside) if direction > 0 else (inside, out)
            hits = int((second * direction > threshold * direction).sum())
            false = int((first * direction > threshold * direction).sum())
            found = max(found, (_epsilon(hits, false, len(out), delta), float(threshold), direction))
    return found[1], found[2]


def _epsilon(hits: int, false: int, trials: int, delta: float) -> float:
    """ln((TPR - delta) / FPR) with TPR bounded from below and FPR from above, each at half of the allowed error."""
    error = (1 - CONFIDENCE) / 2
    tpr, fpr = 1 - proportion_above(trials - hits, trials, error), proportion_above(false, trials, error)
    return max(0.0, math.log((tpr - delta) / fpr)) if tpr > delta else 0.0


def proportion_above(successes: int, trials: int, error: float) -> float:
    """Clopper and Pearson's upper bound: the p at which so few successes have probability `error`.

    >>> round(proportion_above(0, 100, 0.05), 5)  # 1 - 0.05^(1/100)
    0.02951
    """
    if successes >= trials:
        return 1.0
    k = np.arange(successes + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    choose = logs[trials] - logs[k] - logs[trials - k]
    low, high = successes / trials, 1.0
    for _ in range(60):
        p = (low + high) / 2
        tail = float(np.exp(choose + k * math.log(p) + (trials - k) * math.log1p(-p)).sum()) if p < 1 else 0.0
        low, high = (p, high) if tail > error else (low, p)
    return high
