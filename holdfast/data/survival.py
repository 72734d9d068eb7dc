"""Survival times: Cox's partial likelihood, discrete-time hazards, the C-index and the Kaplan-Meier curve.

A target is a row (time, event): event 1 says that it happened at this time, 0 that the person was last seen then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.data.metrics import WholeMetric


@dataclass(frozen=True)
class Cox:
    """The negative log partial likelihood of Cox's model, over the number of records; o is the log of the risk.

        Breslow   sum over events i of              log sum_{j at risk} e^o_j                              - o_i
        Efron     sum over events i, the l-th of d, log (sum_{j at risk} e^o_j - l/d sum_{tied} e^o_j)     - o_i

    At risk are the records of the batch whose time is not earlier, so larger batches are better ones. It is divided by
    records, not by events: so clients weighted by samples minimise the sum of their likelihoods, which is Cox's model
    stratified by client. Each record's part depends on the others at risk, so DP-SGD refuses it. Efron, JASA 72, 1977;
    Breslow, 1974.

    >>> rows = torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]])
    >>> round(float(Cox()(torch.zeros(3, 1), rows)), 4)  # (log 3 + log 1) / 3
    0.3662
    """

    separable: ClassVar[bool] = False

    ties: Literal["efron", "breslow"] = "efron"

    def __call__(self, output: Tensor, labels: Tensor) -> Tensor:
        order = labels[:, 0].argsort(descending=True, stable=True)
        risk, event = output[order, 0].double(), labels[order, 1].double()
        _, group, sizes = torch.unique_consecutive(labels[order, 0], return_inverse=True, return_counts=True)
        at_risk = risk.logcumsumexp(0)[sizes.cumsum(0) - 1][group]  # log of the sum over all whose time is not earlier
        loss = at_risk - risk
        if self.ties == "efron":
            shares = torch.zeros(len(sizes), dtype=risk.dtype, device=risk.device)
            deaths = shares.index_add(0, group, event)
            before = deaths.cumsum(0) - deaths
            tied = shares.index_add(0, group, event * (risk - at_risk).exp())[group]
            nth = (event.cumsum(0) - 1 - before[group]).clamp(min=0)
            loss = loss + torch.log1p(-nth / deaths[group].clamp(min=1) * tied)
        return ((loss * event).sum() / len(labels)).to(output.dtype)


@dataclass(frozen=True)
class HazardLoss:
    """The negative log-likelihood of discrete times, mean over records: each interval that a record is seen to survive,
    or to end in, is one yes-or-no question. Each record's loss is its own. See `interval_targets`.
    """

    cuts: tuple[float, ...]

    def __call__(self, output: Tensor, labels: Tensor) -> Tensor:
        survived, ended = interval_targets(labels, self.cuts)
        return (survived * functional.softplus(output) + ended * functional.softplus(-output)).sum(1).mean()


def interval_targets(labels: Tensor, cuts: Sequence[float]) -> tuple[Tensor, Tensor]:
    """For each record and each interval (0, c_1], (c_1, c_2], ...: 1 where it was survived, and 1 where the event was.

    Of a record that was last seen within an interval nothing is known there: it counts up to the interval before.

    >>> survived, ended = interval_targets(torch.tensor([[1.5, 1.0], [1.5, 0.0], [2.0, 0.0], [9.0, 1.0]]), (1.0, 2.0))
    >>> survived.tolist(), ended.tolist()
    ([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]], [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    """
    ends = torch.tensor(cuts, dtype=labels.dtype, device=labels.device)
    starts = torch.cat([ends.new_full((1,), -math.inf), ends[:-1]])
    time, event = labels[:, :1], labels[:, 1:] > 0.5
    survived = (time > ends) | ((time == ends) & ~event)
    return survived.to(labels.dtype), (event & (starts < time) & (time <= ends)).to(labels.dtype)


def survival_of(hazards: Tensor) -> Tensor:
    """The chance to be beyond each cut, from the logits of the hazards: products of 1 - h."""
    return functional.logsigmoid(-hazards).cumsum(1).exp()


def risk_of(output: Tensor) -> Tensor:
    """One number for each record that is higher where the event is expected earlier, of either kind of model: the log
    risk (N, 1), or minus the sum of the chances to be beyond each cut, from the logits of hazards (N, cuts).
    """
    return output[:, 0].double() if output.shape[1] == 1 else -survival_of(output.double()).sum(1)


class CIndex(WholeMetric):
    """Harrell's C: of all pairs in which one's event is known to come first, the share in which its risk is higher.

    Equal risks count one half. A pair counts if the earlier time is an event; of two equal times, if only one is an
    event. Harrell et al., JAMA 247, 1982.

    >>> rows = torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]])  # pairs: first and second, first and third
    >>> CIndex().over(torch.tensor([[5.0], [6.0], [1.0]]), rows)
    0.5
    """

    name = "c-index"
    weighs = True

    def over(self, output: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
        risk, time, event = risk_of(output), labels[:, 0], labels[:, 1] > 0.5
        right, pairs = 0.0, 0.0
        for i in event.nonzero().flatten().split(512):
            later = (time[i, None] < time) | ((time[i, None] == time) & ~event)
            above, equal = risk[i, None] > risk, risk[i, None] == risk
            if weights is not None:  # a pair counts by the product of both
                both = later * weights[i, None].double() * weights.double()
                right += float((both * (above + 0.5 * equal)).sum())
                pairs += float(both.sum())
                continue
            right += float((later & above).sum()) + 0.5 * float((later & equal).sum())
            pairs += int(later.sum())
        return right / pairs if pairs else math.nan


def kaplan_meier(labels: Tensor) -> tuple[list[float], list[float]]:
    """The times of events, and the share that is beyond each: the product of 1 - events / at risk.

    >>> kaplan_meier(torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0], [4.0, 0.0]]))
    ([1.0, 3.0], [0.75, 0.375])
    """
    times, shares, left = [], [], 1.0
    for time in labels[labels[:, 1] > 0.5, 0].unique().tolist():
        at_risk, events = (labels[:, 0] >= time).sum(), ((labels[:, 0] == time) & (labels[:, 1] > 0.5)).sum()
        left *= 1 - float(events) / float(at_risk)
        times.append(time)
        shares.append(left)
    return times, shares
