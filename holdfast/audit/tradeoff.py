"""A claim's whole trade-off curve, and what an attack's guesses say about it.

A release that is (e, d(e))-private for every e obeys TPR <= e^e FPR + d(e) and 1 - FPR <= e^e (1 - TPR) + d(e) for
every test and every e: its trade-off curve. At e = 0 that says how often the best guess which of two records was used
can be right, both being as likely: (1 + d(0)) / 2. Of n trials with either record the right guesses are a sum of 2 n
independent chances whose mean is at most that, so they exceed a number beyond that mean no more often than a binomial
does (Hoeffding 1956). Where more are right, or a point of the curve is passed, the claim is refuted at 99 % confidence.

Canaries that sit side by side in one release are trials too (Steinke, Nasr, Jagielski 2023; Mahloujifar, Melis,
Chaudhuri 2024 for the whole curve), where right code treats them independently. `one_run_bound` does without that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.privacy.accounting import delta_at
from holdfast.privacy.calibration import gaussian_epsilon
from holdfast.privacy.claim import Claim

Array = NDArray[np.float64]
CONFIDENCE = 0.99
SURE = 0.95  # how often an audit would find what its power names
CURVE = tuple(np.linspace(0.0, 1.0, 41))  # points of the curve, in units of twice the claimed epsilon
FEWEST = 20  # trials
MOST = 0.7  # of the allowed error: for the first attack, and of an attack's for right guesses


@dataclass(frozen=True)
class Scored:
    """An attack's scores of as many releases with the one record (out) as with the other (inside).

    A score above 0 guesses "inside"; `also` are other thresholds, at which the rest of the curve is looked at.
    """

    out: Array
    inside: Array
    also: tuple[float, ...] = ()


@dataclass(frozen=True)
class Audit:
    """The epsilon that guesses have shown with 99 % confidence, and the one that would have been found with 95 %."""

    lower: float
    would_find: float  # the audit's power; infinite where nothing is claimed
    claimed: float
    passed: bool
    besides: str = ""  # what else it showed

    def __str__(self) -> str:
        if math.isinf(self.claimed):
            return f"No epsilon is claimed, so none can be refuted; the attack shows epsilon >= {self.lower:.3g}."
        power = f"would have found epsilon >= {self.would_find:.2g} with {SURE:.0%}"
        shown = f"the attack shows epsilon >= {self.lower:.3g}, claimed {self.claimed:.4g}"
        said = "; ".join([shown, power, self.besides] if self.besides else [shown, power])
        return f"{'not refuted' if self.passed else 'REFUTED'}: {said}."


def audit(claim: Claim, attacks: list[Scored], sees: float = 1.0) -> Audit:
    """Hold what attacks guess right to the claim; all of them together raise a false alarm in 1 % of audits at most.

    sees: the share of the claimed ratio that the first attack sees where the code is right, which its power depends on.
    """
    if min(len(attack.out) for attack in attacks) < FEWEST:
        raise HoldfastError(f"audit: {len(attacks[0].out)} trials show nothing; use at least {2 * FEWEST}.")
    rest = len(attacks) - 1
    shares = [MOST, *[(1 - MOST) / rest] * rest] if rest else [1.0]
    errors = [share * (1 - CONFIDENCE) for share in shares]
    best = best_accuracy(claim)
    sure, refuted = 0.5, False
    for attack, error in zip(attacks, errors, strict=True):
        share = MOST * error if attack.also else error  # of the error, for guessing; the rest is the curve's
        right, trials = int((attack.inside > 0).sum() + (attack.out <= 0).sum()), 2 * len(attack.out)
        sure = max(sure, 1 - proportion_above(trials - right, trials, share))
        refuted = refuted or (best < 1 and at_least(right, trials, best) <= share)
        each = (error - share) / max(1, len(attack.also))
        refuted = refuted or any(passes_curve(claim, attack, threshold, each) for threshold in attack.also)
    found = found_from(2 * len(attacks[0].out), best, errors[0] * (MOST if attacks[0].also else 1))
    lower, power = (_epsilon(claim, _strength(claim, one) / by) for one, by in ((sure, 1.0), (found, sees)))
    return Audit(
        max(lower, claim.epsilon_total * (1 + 1e-9)) if refuted else lower, power, claim.epsilon_total, not refuted
    )


def learnt(first: tuple[Array, Array], second: tuple[Array, Array]) -> Scored:
    """The one number of what left that tells the records apart best, chosen on the first release, used on the second.

    Rows are canaries, columns the numbers that left of each; what a leak looks like need not be known beforehand.
    """
    best = (-1.0, 0, 0.0, 1.0)
    for column in range(first[0].shape[1]):
        out, inside = first[0][:, column], first[1][:, column]
        values = np.unique(np.concatenate([out, inside]))
        cuts = (values[1:] + values[:-1]) / 2
        below = np.searchsorted(np.sort(out), cuts) / len(out) - np.searchsorted(np.sort(inside), cuts) / len(inside)
        if len(cuts):
            at = int(np.abs(below).argmax())
            best = max(best, (float(abs(below[at])), column, float(cuts[at]), float(np.sign(below[at]) or 1.0)))
    _, column, cut, sign = best
    return Scored(sign * (second[0][:, column] - cut), sign * (second[1][:, column] - cut))


def best_accuracy(claim: Claim) -> float:
    """How often the best guess can be right: (1 + d(0)) / 2.

    >>> from holdfast.privacy.counts import noised_counts
    >>> from holdfast.privacy.noise import system
    >>> round(best_accuracy(noised_counts([10.0], 1.0, 3.0, 1e-5, system())[1]), 3)
    0.64
    """
    return (1 + delta_at(claim, 0.0)) / 2 if math.isfinite(claim.epsilon_total) else 1.0


def passes_curve(claim: Claim, attack: Scored, threshold: float, error: float) -> bool:
    """Whether the rates at a threshold lie beyond the claim's curve, with this error at most."""
    if not math.isfinite(claim.epsilon_total):
        return False
    hits, false = (attack.inside > threshold, attack.out > threshold)
    if threshold < 0:  # who is below is guessed to be out
        hits, false = ~false, ~hits
    tpr = 1 - proportion_above(int((~hits).sum()), len(hits), error / 2)
    fpr = proportion_above(int(false.sum()), len(false), error / 2)
    points = [2 * claim.epsilon_total * share for share in CURVE]
    return any(tpr > math.exp(e) * fpr + delta_at(claim, e) for e in points if e < 50)


def found_from(trials: int, best: float, error: float) -> float:
    """The accuracy from which on an audit refutes a claim whose best accuracy is `best` with a chance of 95 %."""
    if best >= 1:
        return 1.0
    needed = next(
        (right for right in range(math.ceil(best * trials), trials + 1) if at_least(right, trials, best) <= error),
        trials,
    )
    low, high = best, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if at_least(needed, trials, middle) >= SURE else (middle, high)
    return high


def one_run_bound(right: int, guesses: int, delta: float) -> float:
    """Epsilon that so many right guesses about the canaries of one run show with 99 %, whatever the code does.

    Steinke, Nasr, Jagielski (2023), Theorem 5.2: were it (epsilon, delta)-private, P(right >= v) <= P(W >= v) + m delta
    max_i (2/i) P(v > W >= v - i), W being binomial with guesses right at e^epsilon / (1 + e^epsilon), m canaries.

    >>> round(one_run_bound(500, 500, 1e-5), 1), one_run_bound(300, 500, 1e-5) < 0.4
    (4.7, True)
    """
    low, high = 0.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        chance = _binomial(guesses, 1 / (1 + math.exp(-middle)))
        beyond = float(chance[right:].sum())
        near = np.cumsum(chance[:right][::-1])
        more = float((2 / np.arange(1, right + 1) * near).max()) if right else 0.0
        low, high = (middle, high) if beyond + guesses * delta * more <= 1 - CONFIDENCE else (low, middle)
    return low


def _strength(claim: Claim, accuracy: float) -> float:
    """What an accuracy says of noise: Gaussian noise of ratio m lets Phi(m/2) be right, a pure epsilon its logistic."""
    accuracy = min(accuracy, 1 - 1e-12)
    if claim.ratio or claim.steps:
        return 2 * NormalDist().inv_cdf(accuracy)
    return math.log(accuracy / (1 - accuracy))


def _epsilon(claim: Claim, strength: float) -> float:
    """The epsilon of this claim with its noise so much smaller that it would be as easy to see.

    For Gaussian noise and pure claims it is exact; for steps of DP-SGD the Gaussian's epsilon, in proportion.
    """
    if not claim.ratio and not claim.steps:
        return strength
    if strength <= 0:
        return 0.0
    of_claim = gaussian_epsilon(_strength(claim, best_accuracy(claim)), claim.delta)
    return claim.epsilon_total * gaussian_epsilon(strength, claim.delta) / of_claim


def at_least(successes: int, trials: int, chance: float) -> float:
    """P(W >= successes) of a binomial W.

    >>> at_least(2, 2, 0.5)
    0.25
    """
    return float(_binomial(trials, chance)[successes:].sum())


def _binomial(trials: int, chance: float) -> Array:
    """The probabilities of 0 to all successes."""
    if chance >= 1:
        return np.asarray(np.eye(1, trials + 1, trials)[0])
    k = np.arange(trials + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    ways = logs[trials] - logs[k] - logs[trials - k]
    return np.asarray(np.exp(ways + k * math.log(chance) + (trials - k) * math.log1p(-chance)))


def proportion_above(successes: int, trials: int, error: float) -> float:
    """Clopper and Pearson's upper bound: the p at which so few successes have probability `error`.

    >>> round(proportion_above(0, 100, 0.05), 5)  # 1 - 0.05^(1/100)
    0.02951
    """
    if successes >= trials:
        return 1.0
    low, high = successes / trials, 1.0
    for _ in range(60):
        p = (low + high) / 2
        low, high = (p, high) if float(_binomial(trials, p)[: successes + 1].sum()) > error else (low, p)
    return high
