"""Who takes part, and who holds what: the task's samples, dealt out to the clients and split at each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.absence import ABSENCES
from holdfast.core.config import choose
from holdfast.core.errors import HoldfastError, brief
from holdfast.core.randomness import rng
from holdfast.data.kinds import refuse_without_classes
from holdfast.data.named import check_own, load_task, reads_data
from holdfast.data.natural import PARTITIONS, Column, Parts, split_by
from holdfast.data.task import Samples, Task, as_tensor
from holdfast.runs.experiment import GIVEN, Experiment


def task_of(experiment: Experiment) -> Task:
    """The experiment's task, loaded."""
    if experiment.data and (experiment.given is not None or not reads_data(experiment.task)):
        name = experiment.task.removeprefix(GIVEN).partition("@")[0]
        raise HoldfastError(f"data: the task {name} brings its own data and reads no others; leave data out.")
    if experiment.given is not None:
        return check_own(experiment.given, experiment.given.name)
    if experiment.task.startswith(GIVEN):
        raise HoldfastError(
            f"task: {experiment.task.removeprefix(GIVEN)} was a Python object, which only its own program has; "
            "give it again, as in resume(folder, task=my_task)."
        )
    data, test = (Path(path) if path else None for path in (experiment.data, experiment.test))
    return load_task(experiment.task, data, experiment.download, test, experiment.names or ())


def complete(experiment: Experiment, task: Task) -> Experiment:
    """The experiment with the clients that the data themselves name."""
    partition = choose_partition(experiment)
    if not isinstance(partition, Column):
        return experiment
    sites = tuple(partition.sites(task))
    if experiment.clients not in (0, len(sites)):
        raise HoldfastError(
            f"clients: {experiment.clients}, but {experiment.partition} gives {len(sites)} ({brief(', '.join(sites))});"
            " leave out clients."
        )
    return replace(experiment, clients=len(sites), names=experiment.names or sites)


def counted(experiment: Experiment) -> Experiment:
    """The experiment with its number of clients, which may follow from the data."""
    return experiment if experiment.clients else complete(experiment, task_of(experiment))


def choose_partition(experiment: Experiment) -> Any:
    return choose(PARTITIONS, experiment.partition, "partition")


def first_samples(task: Task, samples: int) -> Tensor:
    """The first samples; where there are classes the first of each, as many of one as of another."""
    if not task.kind.has_classes:
        if len(task.train) < samples:
            raise HoldfastError(f"samples: {task.name} has {len(task.train)} training samples, not {samples}.")
        return torch.arange(samples)
    each, labels = -(-samples // task.classes), task.train.labels
    index = torch.cat([(labels == c).nonzero().flatten()[:each] for c in range(task.classes)]).sort().values
    if len(index) < samples:
        raise HoldfastError(f"samples: {task.name} has fewer than {each} training samples of some class.")
    return index


def moderators_samples(
    experiment: Experiment, task: Task, prepare: Callable[[Samples], Samples], count: int
) -> Samples:
    """Samples that the moderator holds itself, for the trust rules that need some: drawn from the training samples."""
    order = torch.randperm(len(task.train), generator=rng(experiment.seed, -1, -1, "the moderator's samples"))
    return prepare(task.train.take(order[:count]))


def deal(experiment: Experiment, task: Task) -> list[Parts]:
    """Deal the training samples out to the clients, and split each client's own."""
    partition = choose_partition(experiment)
    refuse_without_classes(
        task.kind, partition, f"partition {str(experiment.partition)!r}", "choose partition = 'iid' or 'sizes'"
    )
    if isinstance(partition, Column):
        shares = list(partition.sites(task).values())
    else:
        generator = rng(experiment.seed, -1, -1, "partition")
        shares = read_deal(partition(task.train.labels, experiment.clients, generator), experiment, task)
    promise = promises(experiment)
    return [
        split_by(experiment.split, task, share, rng(experiment.seed, -1, client, "split"), promise)
        for client, share in enumerate(shares)
    ]


def promises(experiment: Experiment) -> bool:
    """Whether anything that leaves a client has a promise about single records."""
    noised: bool = choose(ABSENCES, experiment.absence, "absence").noised
    return noised or experiment.protect.name != "none"


def read_deal(found: Any, experiment: Experiment, task: Task) -> list[Tensor]:
    """Who holds what, as a partition said it: tensors, NumPy arrays or lists of positions, none of them held twice."""
    name = f"partition {experiment.partition}"
    try:
        shares = [as_tensor(share, "positions") for share in found]
    except TypeError:
        raise HoldfastError(f"{name} must give a list with the positions of each client's samples.") from None
    if len(shares) != experiment.clients or any(len(share) == 0 for share in shares):
        raise HoldfastError(f"{name} did not give each of {experiment.clients} clients samples.")
    if any(share.ndim != 1 or share.dtype != torch.int64 for share in shares):
        raise HoldfastError(f"{name} must give whole numbers, one list of positions for each client.")
    dealt = torch.cat(shares)
    if int(dealt.min()) < 0 or int(dealt.max()) >= len(task.train):
        raise HoldfastError(f"{name} names positions that are not 0 to {len(task.train) - 1}.")
    if len(torch.unique(dealt)) < len(dealt):
        raise HoldfastError(f"{name} gives some samples to two clients; each sample is one client's.")
    return shares
