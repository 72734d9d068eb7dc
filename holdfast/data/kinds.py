"""Kinds of tasks: what a target is, and the loss, metrics and outputs that go with it.

A kind is one object without state. Another one is a class like these, given to `Task(kind=...)`; what needs classes
says so itself (`needs_classes`) and is refused where a kind has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.core.errors import HoldfastError, brief, nearest
from holdfast.data.class_metrics import (
    F1,
    BalancedAccuracy,
    Brier,
    CalibrationError,
    LabelAccuracy,
    Sensitivity,
    Specificity,
)
from holdfast.data.contract import Kind, Loss, Part, numbers, refuse_other_shape
from holdfast.data.losses import Focal, Huber, LabelFocal, Smoothed, Weighted, poisson
from holdfast.data.metrics import ACCURACY, R2, Accuracy, CountMae, CountRmse, Deviance, Mae, Metric, Rmse
from holdfast.data.ranking_metrics import Auprc, Auroc
from holdfast.data.survival import CIndex, Cox, HazardLoss, survival_of

OF_ALL_CLASSES = (Auroc, Auprc, BalancedAccuracy, F1, Sensitivity, Specificity, CalibrationError)  # none of one alone


class Classes(Kind):
    """One of several classes; of two, the second is the positive one."""

    name = "classes"
    has_classes = True
    has_names = True
    answer = "probabilities"
    losses: ClassVar[Mapping[str, type]] = {"weighted": Weighted, "focal": Focal, "smoothed": Smoothed}

    @property
    def loss(self) -> Loss:
        return functional.cross_entropy

    def metrics(self, classes: int) -> tuple[Metric, ...]:
        return (Auroc(), BalancedAccuracy(2), Accuracy()) if classes == 2 else (Accuracy(),)

    def all_metrics(self, classes: int) -> tuple[Metric, ...]:
        of_any = (Accuracy(), BalancedAccuracy(classes), Auroc(), Auprc(), F1(classes), Brier(), CalibrationError())
        return (*of_any, Sensitivity(), Specificity()) if classes == 2 else of_any

    def by_class(self, output: Tensor, labels: Tensor) -> list[Part]:
        """The samples of each class."""
        places = [(labels == c).nonzero().flatten() for c in range(output.shape[1])]
        return [(at, output[at], labels[at]) for at in places]

    def of_class(self, metrics: Sequence[Metric]) -> tuple[Metric, ...]:
        """The task's own ones, and the accuracy: the share of the class that is recognised."""
        own = [metric for metric in metrics if metric.name != ACCURACY.name and type(metric) not in OF_ALL_CLASSES]
        return (Accuracy(), *own)

    def outputs(self, classes: int) -> int:
        return classes

    def read(self, labels: Tensor, classes: int, where: str) -> Tensor:
        """Whole numbers (N,), or soft labels (N, classes)."""
        if labels.ndim == 1 and (
            labels.is_floating_point() or not 0 <= int(labels.min()) <= int(labels.max()) < classes
        ):
            raise HoldfastError(f"{where}: labels must be whole numbers 0 to {classes - 1}, one for each class name.")
        return labels

    def readout(self, output: Tensor) -> Tensor:
        return torch.softmax(output, dim=1)

    def columns(self, names: Sequence[str]) -> list[str]:
        return list(names)

    def words(self, classes: int) -> str:
        return f"{classes} classes"


class Labels(Kind):
    """Several labels, each of which a sample has or has not; `class_names` names them."""

    name = "labels"
    has_names = True
    answer = "probabilities"
    losses: ClassVar[Mapping[str, type]] = {"focal": LabelFocal}

    @property
    def loss(self) -> Loss:
        return functional.binary_cross_entropy_with_logits

    def metrics(self, classes: int) -> tuple[Metric, ...]:
        return Auroc(several=True), F1(classes, several=True), LabelAccuracy()

    def all_metrics(self, classes: int) -> tuple[Metric, ...]:
        return *self.metrics(classes), Auprc(several=True), Brier(several=True)

    def by_class(self, output: Tensor, labels: Tensor) -> list[Part]:
        """Each label as a question of its own."""
        return [(torch.arange(len(labels)), output[:, [c]], labels[:, [c]]) for c in range(output.shape[1])]

    def of_class(self, metrics: Sequence[Metric]) -> tuple[Metric, ...]:
        return Auroc(several=True), LabelAccuracy()

    def outputs(self, classes: int) -> int:
        return classes

    def read(self, labels: Tensor, classes: int, where: str) -> Tensor:
        """0 or 1 for each label, as float32 (N, labels)."""
        if labels.ndim != 2 or labels.shape[1] != classes:
            raise HoldfastError(
                f"{where}: expected {classes} numbers for each sample, 0 or 1, one for each label's name; got shape "
                f"{tuple(labels.shape)}."
            )
        if not ((labels == 0) | (labels == 1)).all():
            raise HoldfastError(f"{where}: a label is 0 or 1, and some are neither.")
        return labels if labels.dtype == torch.float32 else labels.float()

    def check_output(self, output: Tensor, labels: Tensor) -> None:
        refuse_other_shape(self, output, labels, labels.shape[1])

    def readout(self, output: Tensor) -> Tensor:
        return torch.sigmoid(output)

    def columns(self, names: Sequence[str]) -> list[str]:
        return list(names)

    def words(self, classes: int) -> str:
        return f"{classes} labels"


class Regression(Kind):
    """A number for each sample."""

    name = "regression"
    losses: ClassVar[Mapping[str, type]] = {"huber": Huber}

    @property
    def loss(self) -> Loss:
        return functional.mse_loss

    def metrics(self, classes: int) -> tuple[Metric, ...]:
        return Rmse(), Mae(), R2()

    def outputs(self, classes: int) -> int:
        return 1

    def read(self, labels: Tensor, classes: int, where: str) -> Tensor:
        return numbers(labels, where)

    def check_output(self, output: Tensor, labels: Tensor) -> None:
        refuse_other_shape(self, output, labels, 1)


class Counts(Kind):
    """How often something happens: a whole number of at least 0, whose expected value is exp(output) (Poisson)."""

    name = "count"
    answer = "counts"

    @property
    def loss(self) -> Loss:
        return poisson

    def metrics(self, classes: int) -> tuple[Metric, ...]:
        return Deviance(), CountMae(), CountRmse()

    def outputs(self, classes: int) -> int:
        return 1

    def read(self, labels: Tensor, classes: int, where: str) -> Tensor:
        counts = numbers(labels, where)
        if not ((counts >= 0) & (counts == counts.floor())).all():
            raise HoldfastError(f"{where}: counts must be whole numbers of at least 0, and some are not.")
        return counts

    def check_output(self, output: Tensor, labels: Tensor) -> None:
        refuse_other_shape(self, output, labels, 1)

    def readout(self, output: Tensor) -> Tensor:
        return output.exp()

    def columns(self, names: Sequence[str]) -> list[str]:
        return ["expected count"]


class Survival(Kind):
    """When something happens, and whether it did: (time, event). The output is the log of Cox's relative risk."""

    name = "survival"
    answer = "risks"
    losses: ClassVar[Mapping[str, type]] = {"cox": Cox}

    @property
    def loss(self) -> Loss:
        return Cox()

    def metrics(self, classes: int) -> tuple[Metric, ...]:
        return (CIndex(),)

    def outputs(self, classes: int) -> int:
        return 1

    def read(self, labels: Tensor, classes: int, where: str) -> Tensor:
        """Rows (time, event) as float32: time at least 0, event 1 if it happened then, 0 if it was last seen then."""
        if labels.ndim != 2 or labels.shape[1] != 2:
            raise HoldfastError(f"{where}: expected rows of time and event (0 or 1), got shape {tuple(labels.shape)}.")
        rows = labels.float()
        if not (rows[:, 0].isfinite() & (rows[:, 0] >= 0)).all():
            raise HoldfastError(f"{where}: times must be numbers of at least 0, and some are not.")
        if not ((rows[:, 1] == 0) | (rows[:, 1] == 1)).all():
            raise HoldfastError(f"{where}: an event is 0 (last seen) or 1 (it happened), and some are neither.")
        if not rows[:, 1].any():
            raise HoldfastError(f"{where}: there is no event among its {len(rows)} samples, so nothing can be learnt.")
        return labels if labels.dtype == rows.dtype else rows

    def check_output(self, output: Tensor, labels: Tensor) -> None:
        refuse_other_shape(self, output, labels, 1)

    def readout(self, output: Tensor) -> Tensor:
        return output.exp()

    def columns(self, names: Sequence[str]) -> list[str]:
        return ["relative risk"]


@dataclass(frozen=True)
class Hazards(Survival):
    """Survival in discrete time: one output for each interval (0, c_1], (c_1, c_2], ..., the logit of its hazard.

    The cuts are public. A record's loss is its own, as it is not in Cox's model, so DP-SGD and digests can protect it.

    >>> Hazards((1.0, 2.5)).spec, kind_of("hazards:1,2.5") == Hazards((1.0, 2.5))
    ('hazards:1,2.5', True)
    """

    name: ClassVar[str] = "hazards"
    answer: ClassVar[str] = "survival"
    losses: ClassVar[Mapping[str, type]] = {}

    cuts: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip((0.0, *self.cuts), self.cuts, strict=False))
        if not self.cuts or not rising or not self.cuts[-1] < math.inf:
            raise HoldfastError(f"hazards: cuts must be rising numbers above 0, got {brief(self.cuts)}.")

    @property
    def spec(self) -> str:
        return f"{self.name}:{','.join(f'{cut:.10g}' for cut in self.cuts)}"

    @property
    def loss(self) -> Loss:
        return HazardLoss(self.cuts)

    def outputs(self, classes: int) -> int:
        return len(self.cuts)

    def check_output(self, output: Tensor, labels: Tensor) -> None:
        refuse_other_shape(self, output, labels, len(self.cuts))

    def readout(self, output: Tensor) -> Tensor:
        return survival_of(output)

    def columns(self, names: Sequence[str]) -> list[str]:
        return [f"beyond {cut:.10g}" for cut in self.cuts]


KINDS: dict[str, type[Kind]] = {kind.name: kind for kind in (Classes, Labels, Regression, Counts, Survival, Hazards)}


LOSSES: dict[str, type] = {name: loss for kind in reversed(KINDS.values()) for name, loss in kind.losses.items()}


def kind_of(text: str, where: str = "kind") -> Kind:
    """The kind that a text names, as a model's file or a schema says it: "classes", "survival", "hazards:1,2,5"."""
    name, _, argument = text.partition(":")
    if name not in KINDS or (bool(argument) != (name == Hazards.name)):
        needs = " with its cuts, as in 'hazards:1,2,5'" if name == Hazards.name else ""
        raise HoldfastError(f"{where}: {brief(text)} is no kind of target{needs}; {nearest(name, KINDS)}")
    if not argument:
        return KINDS[name]()
    try:
        return Hazards(tuple(float(cut) for cut in argument.split(",")))
    except ValueError:
        raise HoldfastError(f"{where}: the cuts of {brief(text)} are no numbers; write 'hazards:1,2,5'.") from None


def refuse_without_classes(kind: Kind, part: object, named: str, remedy: str) -> None:
    """Refuse a part that needs classes where there are none."""
    if getattr(part, "needs_classes", False) and not kind.has_classes:
        raise HoldfastError(f"{named} needs classes, and this task is of kind {kind.name!r}, without any; {remedy}.")
