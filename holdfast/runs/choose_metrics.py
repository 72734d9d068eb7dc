"""The loss and the metrics that an experiment names, of those that its task's kind has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError, brief, nearest
from holdfast.data.kinds import KINDS
from holdfast.data.task import Kind, Loss, Metric, Task
from holdfast.runs.experiment import Experiment


def with_chosen(experiment: Experiment, task: Task) -> Task:
    """The task with the loss and the metrics that the experiment names."""
    loss = choose_loss(experiment.loss, task.kind, task.classes)
    task = task if loss is None else replace(task, loss=loss)
    if experiment.metrics is None:
        return task
    return replace(task, metrics=choose_metrics(experiment.metrics, task.metrics, task.kind, task.classes))


def choose_loss(choice: Choice, kind: Kind, classes: int) -> Loss | None:
    """The loss that an experiment names; none: the task's own."""
    if choice.name == "auto":
        if str(choice) != choice.name:
            raise HoldfastError(f"loss: 'auto' has no options, got {choice}; name the loss itself.")
        return None
    known = {name for other in KINDS.values() for name in other.losses}
    if choice.name in known - kind.losses.keys():
        others = f"it has {', '.join(kind.losses)}" if kind.losses else "leave out loss"
        raise HoldfastError(f"loss: {choice.name!r} is not for tasks of kind {kind.name!r}; {others}.")
    loss: Loss = choose(kind.losses, choice, "loss")
    if (weights := getattr(loss, "weights", ())) and choice.name in known and len(weights) != classes:
        raise HoldfastError(f"loss: {choice.name!r} needs a weight for each of {classes} classes, got {len(weights)}.")
    if not callable(loss):
        raise HoldfastError(f"loss: {choice} cannot be called with outputs and labels.")
    return loss


def choose_metrics(names: Sequence[str], task: Sequence[Metric], kind: Kind, classes: int) -> tuple[Metric, ...]:
    """The metrics of these names: a task's own, or others of its kind."""
    known = {metric.name: metric for metric in (*kind.all_metrics(classes), *task)}
    for name in names:
        if name not in known:
            what = kind.words(classes)
            raise HoldfastError(f"metrics: {brief(name)} is no metric of a task with {what}; {nearest(name, known)}")
    if not names or len({*names}) < len(names):
        raise HoldfastError("metrics: name at least one, and none twice; the first one leads.")
    return tuple(known[name] for name in names)
