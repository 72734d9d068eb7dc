"""When a finished run has failed: nobody trained, no loss was finite, or the model cannot be told from guessing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.core.failures import LOG
from holdfast.core.names import Called, numbered
from holdfast.core.types import by_scenario
from holdfast.data.metrics import ACCURACY
from holdfast.record import Record
from holdfast.round import NO_FINITE_LOSS

SURE = 2.33  # deviations: guessing does better once in a hundred test sets
SLOWER = "a smaller lr may help"


def guessing(labels: Tensor, classes: int) -> float | None:
    """The accuracy that calling everything the most common class stays below in 99 of 100 test sets of this size.

    None where even a perfect model could not be told from it.

    >>> round(guessing(torch.arange(2000) % 10, 10), 4)  # 0.1 + 2.33 sqrt(0.1 x 0.9 / 2000)
    0.1156
    """
    if labels.dim() != 1 or labels.is_floating_point() or len(labels) == 0:
        return None
    share = float(torch.bincount(labels, minlength=classes).max()) / len(labels)
    bound = share + SURE * math.sqrt(share * (1 - share) / len(labels))
    return bound if bound < 1 else None


def guessing_ranks(labels: Tensor) -> float | None:
    """The area under the ROC curve that scores by chance stay below in 99 of 100 test sets of these two classes.

    Mann and Whitney's deviation is sqrt((P + N + 1) / (12 P N)).

    >>> round(guessing_ranks(torch.arange(100) % 2), 4)  # 0.5 + 2.33 sqrt(101 / 30,000)
    0.6352
    """
    if labels.dim() != 1 or labels.is_floating_point() or len(labels) == 0:
        return None
    positives = int((labels == 1).sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    bound = 0.5 + SURE * math.sqrt((len(labels) + 1) / (12 * positives * negatives))
    return bound if bound < 1 else None


def guessing_mean(labels: Tensor) -> float | None:
    """The root mean squared error of always naming the mean of these numbers, their deviation: where R2 is 0.

    >>> guessing_mean(torch.tensor([[1.0], [3.0]]))
    1.0
    """
    return float(labels.double().std(correction=0)) if len(labels) > 1 else None


def find_failures(records: Sequence[Record], clients: int, called: Called = numbered) -> list[str]:
    """What went wrong so thoroughly that the run's result is none, each with a hint; clients that a scenario sends
    away are no failure."""
    silent = [record for record in records if nobody_trained(record, clients)]
    refused = [record for record in silent if record.refused and all(map(by_scenario, record.absent.values()))]
    failed = [record for record in silent if record not in refused]
    found = []
    if failed:
        client, why = next((c, why) for c, why in failed[0].absent.items() if not by_scenario(why))
        shown = f"its full error is in {LOG} of the run's folder, and on the screen with --debug"
        hint = 'layout = "plain" may help' if "process died" in why else shown
        found.append(
            f"nobody trained in round {rounds_text([one.round for one in failed])}: {called(client)} {why}; {hint}."
        )
    if refused:
        client, why = next(iter(refused[0].refused.items()))
        found.append(
            f"all updates were refused in round {rounds_of(refused)}: {called(client)}'s, because {why}; {SLOWER}."
        )
    if lossless := [record for record in records if NO_FINITE_LOSS in record.notes]:
        found.append(f"no client's training loss was finite in round {rounds_of(lossless)}; {SLOWER}.")
    last = next((record for record in reversed(records) if record.measure is not None), None)
    if last is not None and last.measure is not None and last.leading is None:
        found.append(f"the {last.measure.name} of the final model is not a finite number; {SLOWER}.")
    if last is not None and last.measure is not None and last.leading is not None and last.chance is not None:
        sign = -1 if last.measure.smaller_is_better else 1
        if sign * last.leading <= sign * last.chance:
            found.append(no_better(last, last.leading, last.chance))
    return found


def no_better(record: Record, value: float, chance: float) -> str:
    assert record.measure is not None
    if record.measure == ACCURACY:
        told = (
            f"{value:.1%} of the test set is right, and always naming the most common class reaches up to {chance:.1%}"
        )
    elif record.measure.smaller_is_better:
        told = f"{record.measure.said(value)}, and always naming the mean reaches {record.measure.text(chance)}"
    else:
        told = f"{record.measure.said(value)} is within what chance reaches, {record.measure.text(chance)}"
    return f"the final model is no better than guessing: {told}; another lr or more rounds may help."


def nobody_trained(record: Record, clients: int) -> bool:
    """Whether no client's update was taken although the scenario left somebody there."""
    present = clients - sum(map(by_scenario, record.absent.values()))
    return present > 0 and len(record.absent) + len(record.refused) >= clients


def rounds_of(records: Sequence[Record]) -> str:
    return rounds_text([record.round for record in records])


def rounds_text(rounds: list[int]) -> str:
    """The first round, and how many more.

    >>> rounds_text([1]), rounds_text([5, 6, 8])
    ('1', '5 and 2 later')
    """
    return f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} and {len(rounds) - 1} later"
