"""Which head to take, without test data, and what to expect of it.

Of mixed digests every fifth row is left out: each head is fitted to the others and judged by the rows left out, which
are stretched like all. `kernel`, which was best on other data sets, is taken unless one is ahead of it by more than two
standard errors: a few dozen rows choose by chance, and rows, being means, favour heads that take classes as Gaussian.
Moments have no rows: records drawn from them follow the very Gaussians that heads assume, so
they cannot judge between heads. There `lda` is taken, which was best on other seeds, and a range is told of what to
expect (expecting.py). Sums of classes have one covariance, for which `lda` is made.

Sums of other kinds have one head each. Of a regression, generalised cross-validation says what to expect, and what a
site adds is how much better its own sums are explained with it than without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError, nearest
from holdfast.core.randomness import rng
from holdfast.core.types import Tensors
from holdfast.data.kinds import Counts, Hazards, Regression, kind_of
from holdfast.data.task import Samples
from holdfast.digests.digest import Digest
from holdfast.digests.moments import MomentDigest
from holdfast.digests.stretching import stretched
from holdfast.digests.sums import SumDigest
from holdfast.heads import expecting, solved, trained
from holdfast.heads.evidence import Evidence, mixed_evidence, moment_evidence
from holdfast.heads.from_sums import class_evidence, explained, labels, regression
from holdfast.heads.kernel import kernel
from holdfast.heads.sum_samples import most_likely
from holdfast.learning.loop import outputs_of
from holdfast.models.heads import Form, Head
from holdfast.models.networks import WIDE, Features, fill, initialise, weights_of

SOLVED: Mapping[str, tuple[Form, Callable[[Evidence], Tensors]]] = {
    "nearest-mean": ("linear", solved.nearest_mean),
    "lda": ("linear", solved.lda),
    "fedcgs": ("linear", solved.fedcgs),
    "qda": ("quadratic", solved.qda),
    "ridge": ("linear", solved.ridge),
    "ccvr": ("linear", trained.ccvr),
    "fishermix": ("cosine", trained.fishermix),
}
SERVER_STEP = "server-step"
KERNEL = "kernel"
HEADS = (*SOLVED, KERNEL, SERVER_STEP)
OF_MOMENTS = "lda"
OF_TOTAL = "lda"  # of moments without classwise ones
LEFT_OUT = 5  # one row of so many

LEAST_SQUARES, LOG_ODDS, LIKELIEST = (
    "least-squares",
    "log-odds",
    "likeliest",
)  # the heads of sums, by the kind of target

Received = Digest | MomentDigest | SumDigest


@dataclass(frozen=True)
class Noise:
    """What is known of mixed rows beyond the rows: the variance of their noise, and the bound on a record's length."""

    variance: float = 0.0
    bound: float | None = None


@dataclass(frozen=True)
class Fitted:
    """A head, the model that it is, and what to expect of it."""

    name: str
    model: str  # as an experiment names it
    network: nn.Module
    expected: float  # of the measure; not a number where nothing is known
    at_most: float | None  # where moments leave a range: its upper end, while `expected` is the lower one
    judged: Mapping[str, float]  # the accuracy of each head that was compared
    adds: Sequence[float | None]  # what each digest adds to the measure; None: nothing is left without it, or not known
    measure: str = "accuracy"  # or R2
    judges: int = 0  # rows that were left out of the fit and judged it


def check_head(name: str) -> None:
    if name != "auto" and name not in HEADS:
        raise HoldfastError(f"head: {name!r} is not known; {nearest(name, ('auto', *HEADS))}")


def model_of(name: str) -> str:
    """The model that a head is, as an experiment names it."""
    if name == SERVER_STEP:
        return f"features:hidden={WIDE}"
    return f"head:form={KERNEL if name == KERNEL else SOLVED[name][0]}"


def fit(name: str, digests: Sequence[Received], noise: Noise = Noise(), seed: int = 0) -> nn.Module:
    """A head fitted to digests, all of one mode."""
    evidence = evidence_of(digests, noise)
    classes, width = evidence.means.shape
    if name == SERVER_STEP:
        network = initialise(lambda: Features(WIDE).build((), classes, (width,)), seed, "plain")
        trained.server_step(network, records_of(digests, evidence, noise, seed), seed)
        return network
    if name == KERNEL:
        network = Head("kernel").build((), classes, (width,))
        weights = kernel(evidence, records_of(digests, evidence, noise, seed), seed)
    else:
        form, solve = SOLVED[name]
        network, weights = Head(form).build((), classes, (width,)), solve(evidence)
    fill(network, weights, weights)
    return network


def choose_for_sums(digests: Sequence[SumDigest], seed: int = 0) -> Fitted:
    """The head of sums of kinds without classes: the kind decides which."""
    kind = kind_of(digests[0].kind)
    names = LOG_ODDS
    judged: dict[str, float] = {}
    adds: list[float | None] = [None] * len(digests)
    if isinstance(kind, Regression):
        weights, expected = regression(digests)
        names, judged = LEAST_SQUARES, {LEAST_SQUARES: expected}
        adds = [left_out(digests, place, weights) for place in range(len(digests))]
    elif isinstance(kind, Counts | Hazards):
        names, weights, expected = LIKELIEST, most_likely(digests, seed), math.nan
    else:
        weights, expected = labels(digests), math.nan
    network = Head("linear").build((), len(weights["bias"]), (digests[0].width,))
    fill(network, weights, weights)
    return Fitted(names, "head:form=linear", network, expected, None, judged, adds, "R2")


def left_out(digests: Sequence[SumDigest], place: int, weights: Tensors) -> float | None:
    """How much better the head of all explains a site's own sums than the head of the others: R2, from sums alone."""
    others = [*digests[:place], *digests[place + 1 :]]
    if not others:
        return None
    without, _ = regression(others)
    return explained(digests[place], weights) - explained(digests[place], without)


def evidence_of(digests: Sequence[Received], noise: Noise) -> Evidence:
    summed = [digest for digest in digests if isinstance(digest, SumDigest)]
    if summed and len(summed) == len(digests):
        return class_evidence(summed)
    mixed = [digest for digest in digests if isinstance(digest, Digest)]
    moments = [digest for digest in digests if isinstance(digest, MomentDigest)]
    if (mixed and moments) or summed:
        raise HoldfastError("digests: some are rows, some moments or sums; all must be of one mode.")
    return mixed_evidence(mixed, noise.variance) if mixed else moment_evidence(moments)


def records_of(digests: Sequence[Received], evidence: Evidence, noise: Noise, seed: int) -> Samples:
    """What a network is trained on: stretched rows, or records drawn from moments."""
    mixed = [stretched(d, noise.bound, noise.variance) for d in digests if isinstance(d, Digest)]
    if not mixed:
        return trained.drawn(evidence, rng(seed, -1, -1, "records of moments"))
    return Samples((torch.cat([d.features for d in mixed]).flatten(1),), torch.cat([d.labels for d in mixed]))


def choose_head(name: str, digests: Sequence[Received], noise: Noise = Noise(), seed: int = 0) -> Fitted:
    """The head of this name, or with "auto" the best one, fitted to all digests."""
    check_head(name)
    sums = [digest for digest in digests if isinstance(digest, SumDigest)]
    if sums and not kind_of(sums[0].kind).has_classes:
        if name != "auto":
            raise HoldfastError(f"head: {name!r} is for classes, and these are of kind {sums[0].kind!r}; say 'auto'.")
        return choose_for_sums(sums, seed)
    mixed = [digest for digest in digests if isinstance(digest, Digest)]
    if not mixed:
        return expect_of_moments(("lda" if sums else OF_MOMENTS) if name == "auto" else name, digests, seed)
    kept, judge = held_out(mixed, noise, seed)
    right = {one: answers(fit(one, kept, noise, seed), judge) for one in (HEADS if name == "auto" else [name])}
    judged = {one: share(found) for one, found in right.items()}
    best = best_of(right) if name == "auto" else name
    adds: list[float | None] = []
    for place in range(len(digests)):
        others = [*kept[:place], *kept[place + 1 :]]
        adds.append(judged[best] - accuracy(fit(best, others, noise, seed), judge) if others else None)
    network = fit(best, digests, noise, seed)
    if not len(judge):
        return Fitted(best, model_of(best), network, math.nan, None, {}, [None] * len(digests))
    return Fitted(best, model_of(best), network, judged[best], None, judged, adds, judges=len(judge))


def best_of(right: Mapping[str, Tensor], usual: str = KERNEL) -> str:
    """The head that is right most often, if by more than two standard errors more often than the usual one.

    >>> usual, other = torch.arange(100) < 80, torch.arange(100) < 84
    >>> best_of({"kernel": usual, "qda": other}), best_of({"kernel": usual, "qda": torch.arange(100) < 90})
    ('kernel', 'qda')
    """
    best = max(right, key=lambda one: share(right[one]))
    lead = right[best].double() - right[usual].double()
    return best if float(lead.sum()) > 2 * float(lead.square().sum()) ** 0.5 else usual


def expect_of_moments(name: str, digests: Sequence[Received], seed: int) -> Fitted:
    """This head fitted to moments or sums of classes, and the range to expect; of scores that are not linear nothing
    is known."""
    model, network = model_of(name), fit(name, digests, seed=seed)
    adds: list[float | None] = [None] * len(digests)
    if model != "head:form=linear":
        return Fitted(name, model, network, math.nan, None, {}, adds)
    sums = [digest for digest in digests if isinstance(digest, SumDigest)]
    moments = [digest for digest in digests if isinstance(digest, MomentDigest)]
    ones, others = expecting.halves_of_moments(moments, seed)
    judge = expecting.halves_of_sums(sums, seed)[1] if sums else expecting.judge_of_moments(others)

    def range_of(places: Sequence[int]) -> tuple[float, float]:
        if sums:
            weights = SOLVED[name][1](expecting.halves_of_sums([sums[place] for place in places], seed)[0])
        else:
            weights = weights_of(fit(name, [ones[place] for place in places], seed=seed))
        return expecting.expected(weights["weight"], weights["bias"], judge, seed)

    low, high = range_of(range(len(digests)))
    if len(digests) > 1:
        for place in range(len(digests)):
            without, at_most = range_of([other for other in range(len(digests)) if other != place])
            adds[place] = (low + high - without - at_most) / 2
    return Fitted(name, model, network, low, high, {name: low}, adds)


def held_out(digests: Sequence[Digest], noise: Noise, seed: int) -> tuple[list[Digest], Samples]:
    """Each digest without a fifth of its rows, and these rows, stretched around the class means of all its rows."""
    kept, left = [], []
    for place, digest in enumerate(digests):
        order = torch.randperm(len(digest), generator=rng(seed, -1, place, "rows left out"))
        out, rest = order[: len(order) // LEFT_OUT], order[len(order) // LEFT_OUT :].sort().values
        rows = stretched(digest, noise.bound, noise.variance)
        left.append(Samples((rows.features[out].flatten(1),), rows.labels[out]))
        share = len(rest) / len(digest)
        kept.append(replace(digest, features=digest.features[rest], labels=digest.labels[rest],
                            used=max(1, round(digest.used * share))))  # fmt: skip
    return kept, Samples((torch.cat([s.inputs[0] for s in left]),), torch.cat([s.labels for s in left]))


def accuracy(network: nn.Module, judge: Samples) -> float:
    """The share of records whose strongest class is found; mixed rows may be of several."""
    return share(answers(network, judge))


def answers(network: nn.Module, judge: Samples) -> Tensor:
    """Of each record, whether its strongest class is found."""
    if not len(judge):
        return torch.zeros(0, dtype=torch.bool)
    right: Tensor = outputs_of(network, judge).argmax(1) == judge.labels.argmax(1)
    return right


def share(right: Tensor) -> float:
    return float(right.double().mean()) if len(right) else 0.0
