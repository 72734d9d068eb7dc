"""Where records have weights: what of an experiment can heed them, and what is refused because it cannot."""

from __future__ import annotations

import torch
from torch import nn

from holdfast.absence import AbsencePolicy
from holdfast.core.errors import HoldfastError
from holdfast.core.modules import told
from holdfast.data.metrics import WholeMetric
from holdfast.data.task import Samples, Task
from holdfast.digests.release_options import ReleaseOptions, check_weighted
from holdfast.learning.objective import Objective, is_separable
from holdfast.runs.experiment import Experiment

DROP = "or leave weight out of the schema"


def check_weights(experiment: Experiment, task: Task, absence: AbsencePolicy) -> None:
    """Refuse parts that would lose the weights of records, before round 1."""
    if task.train.weights is None:
        return
    if experiment.protect.name != "none":
        raise HoldfastError(
            "protect: noise on updates covers records that count once, and these have weights; leave out protect, "
            f"{DROP}."
        )
    for metric in task.metrics:
        if isinstance(metric, WholeMetric) and not metric.weighs:
            raise HoldfastError(f"metric {metric.name!r} cannot heed the weights of records; choose another, {DROP}.")
    if isinstance(absence, ReleaseOptions):
        check_weighted(absence, weighted=True)


def check_record_losses(model: nn.Module, few: Samples, objective: Objective) -> None:
    """Refuse an objective that has no loss of each record for its weight to count."""
    why = "the loss compares records (Cox's model does; discrete-time hazards do not)"
    if is_separable(objective):
        try:
            with torch.no_grad():
                losses = objective(model, *few.batch(torch.arange(len(few))))
            if losses.shape == (len(few),):
                return
            why = "the objective answers with the mean of a batch"
        except RuntimeError as error:  # a user's own loss that no single record can be given to
            why = told(error)
    raise HoldfastError(
        f"loss: records have weights, and none has a loss of its own: {why}; choose another loss, {DROP}."
    )
