"""The experiment's choices of how steps are taken; what does not fit together is refused before round 1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from holdfast.algorithms.fedavg import FedAvg, shared
from holdfast.core.config import choose, convert, refuse_other
from holdfast.core.errors import HoldfastError, brief
from holdfast.core.types import State, Tensors
from holdfast.core.validate import misfit
from holdfast.learning.compress import COMPRESSIONS, Compression
from holdfast.learning.late import LATE, LateReplies
from holdfast.learning.optimizers import OPTIMIZERS, Adam
from holdfast.learning.schedules import SCHEDULES, Schedule
from holdfast.learning.server_optimizers import SERVER_OPTIMIZERS, ServerOptimizer
from holdfast.learning.settings import Group, Learning, Optimizer
from holdfast.learning.workload import WORKLOADS, Workload
from holdfast.method import Method
from holdfast.models.networks import weights_of
from holdfast.runs.experiment import Experiment
from holdfast.runs.scaling import FROZEN
from holdfast.selection import select
from holdfast.selection.informed import Informed

ROWS = 4  # of each weight, on which steps are rehearsed


def choose_learning(experiment: Experiment, algorithm: FedAvg, network: nn.Module) -> Learning:
    """How a client trains; an algorithm whose formulas hold for SGD only is refused with any other optimiser."""
    optimizer = choose(OPTIMIZERS, experiment.optimizer, "optimizer")
    refuse_other(Optimizer, optimizer, experiment.optimizer, "optimizer")
    if algorithm.needs_reach and (optimizer.keep or not optimizer.has_reach):
        raise HoldfastError(
            f"optimizer: {experiment.algorithm} divides by how far SGD's steps reach from a fresh start, which is not "
            f"known of {experiment.optimizer}; choose optimizer = 'sgd', or another algorithm ('lac' is for Adam)."
        )
    if algorithm.needs_fresh_start and (optimizer.keep or type(optimizer).carry is Optimizer.carry):
        raise HoldfastError(
            f"optimizer: {experiment.algorithm} needs one that begins anew each round and says how far it carries a "
            f"gradient, which {experiment.optimizer} does not; choose 'sgd', 'adam' or 'adamw', without keep."
        )
    if (algorithm.needs_gradient or algorithm.asks_gradients) and experiment.protect.name != "none":
        raise HoldfastError(
            f"protect: {experiment.algorithm} has clients send exact gradients; choose another algorithm."
        )
    if isinstance(optimizer, Adam) and experiment.momentum != Experiment.momentum:
        raise HoldfastError(f"momentum is of 'sgd', and {experiment.optimizer} has beta1 in its place; leave it out.")
    if experiment.local_steps is not None and experiment.epochs != Experiment.epochs:
        raise HoldfastError("local_steps stand in place of epochs; leave out one of them.")
    if experiment.accumulate > 1:
        check_accumulate(experiment, network)
    return Learning(
        experiment.epochs,
        experiment.batch_size,
        experiment.lr,
        experiment.momentum,
        experiment.weight_decay,
        optimizer,
        experiment.clip_norm,
        experiment.precision,
        experiment.local_steps,
        experiment.accumulate,
        choose_groups(experiment, algorithm, network),
    )


def choose_groups(experiment: Experiment, algorithm: FedAvg, network: nn.Module) -> tuple[Group, ...]:
    """Patterns of weights' names, factors of lr and weight_decay; refused if one means nothing, or nothing learns."""
    groups: list[Group] = [FROZEN] if experiment.scaling == "federated" else []
    names = [name for name, _ in network.named_parameters()]
    for said in experiment.groups or ():
        pattern, *numbers = said.split(":")
        factor, *decay = [convert(number, float, f"groups, {brief(said)}") for number in numbers] or [math.nan]
        if not pattern or len(decay) > 1 or not all(0 <= one < math.inf for one in (factor, *decay)):
            raise HoldfastError(
                "groups: expected 'pattern:factor' such as 'conv*:0', or with the factor of weight_decay "
                f"'*bias:1:0', got {brief(said)}."
            )
        taken = [name for name in names if any(fnmatchcase(name, earlier[0]) for earlier in groups)]
        if not any(fnmatchcase(name, pattern) for name in names if name not in taken):
            raise HoldfastError(f"groups: no weight is left for {brief(pattern)}; the model has {listed(names)}.")
        if algorithm.needs_reach and factor not in (0, 1):
            raise HoldfastError(f"groups: {experiment.algorithm} needs one lr for all weights that learn; say 0 or 1.")
        groups.append((pattern, factor, decay[0]) if decay else (pattern, factor))
    if groups and not any(Learning(groups=tuple(groups)).factor(name) for name in names):
        raise HoldfastError("groups: every weight is frozen, so nothing can be learnt; leave one group above 0.")
    return tuple(groups)


def listed(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def check_accumulate(experiment: Experiment, network: nn.Module) -> None:
    """Refuse parts of a batch that would not add up to its gradient."""
    if experiment.batch_size % experiment.accumulate:
        raise HoldfastError(
            f"accumulate: {experiment.accumulate} parts must divide batch_size {experiment.batch_size}."
        )
    if experiment.protect.name != "none":
        raise HoldfastError("accumulate: protected gradients are computed record by record already; leave it out.")
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules()):
        raise HoldfastError(
            "accumulate: a batch norm would see parts of a batch; choose another norm, or leave it out."
        )


def choose_schedule(experiment: Experiment, algorithm: FedAvg) -> Schedule:
    """The schedule, if it makes a positive learning rate of every round."""
    schedule: Schedule = choose(SCHEDULES, experiment.schedule, "schedule")
    if getattr(schedule, "per_step", False) and (algorithm.needs_reach or algorithm.normalises):
        raise HoldfastError(
            f"schedule: {experiment.algorithm} counts on one lr for all steps of a round; leave out per_step."
        )
    with named("schedule", experiment.schedule):
        factors = [schedule(round, experiment.rounds) for round in range(experiment.rounds)]
        wrong = [(round, f) for round, f in enumerate(factors) if not 0 < experiment.lr * f < math.inf]
    if wrong:
        round, factor = wrong[0]
        raise HoldfastError(
            f"schedule: {experiment.schedule} makes lr {experiment.lr} x {factor} in round {round + 1}; it must stay "
            "positive."
        )
    return schedule


def choose_server_optimizer(experiment: Experiment) -> ServerOptimizer:
    made: ServerOptimizer = choose(SERVER_OPTIMIZERS, experiment.server_optimizer, "server_optimizer")
    refuse_other(ServerOptimizer, made, experiment.server_optimizer, "server_optimizer")
    return made


def choose_compression(experiment: Experiment, algorithm: FedAvg) -> Compression:
    made: Compression = choose(COMPRESSIONS, experiment.compress, "compress")
    refuse_other(Compression, made, experiment.compress, "compress")
    if made.keeps and algorithm.remembers:
        raise HoldfastError(
            f"compress: {experiment.algorithm} remembers of its whole update what the moderator cannot work out from a "
            "part; choose another algorithm, or leave out compress."
        )
    return made


def choose_workload(experiment: Experiment, algorithm: FedAvg) -> Workload:
    """How many steps clients take; by speed where nothing counts on their usual number."""
    made: Workload = choose(WORKLOADS, experiment.workload, "workload")
    refuse_other(Workload, made, experiment.workload, "workload")
    faults = {
        f"{experiment.algorithm} would give those who take more steps more say; choose 'fednova', or 'lac' with Adam": (
            not algorithm.normalises
        ),
        "what protects updates counts on the usual steps; leave out protect": experiment.protect.name != "none",
        "a late update is of steps asked for earlier; leave out late": experiment.late.name != "none",
    }
    if made.by_speed and (wrong := [fault for fault, found in faults.items() if found]):
        raise HoldfastError(f"workload: {wrong[0]}.")
    return made


def choose_late(experiment: Experiment) -> LateReplies:
    made: LateReplies = choose(LATE, experiment.late, "late")
    refuse_other(LateReplies, made, experiment.late, "late")
    return made


def check_late(experiment: Experiment, method: Method) -> None:
    """Refuse late updates where something goes by the round that an update answers."""
    if not method.late.takes:
        return
    keeps = method.algorithm.remembers or method.learning.optimizer.keep or method.keeps_home or method.compress.keeps
    extra = method.algorithm.extra(shared(method.algorithm, weights_of(method.bench.model)))
    faults = {
        "clients keep something from round to round, which a late update would tear apart": keeps,
        f"{experiment.algorithm} sends more with an update, which is of its own round": bool(extra),
        f"{experiment.algorithm} has clients agree on a gradient of its own round": method.algorithm.asks_gradients,
        f"trust {experiment.trust} has clients test updates against the model that they started from": (
            method.trust.testing(0) is not None
        ),
    }
    if wrong := [fault for fault, found in faults.items() if found]:
        raise HoldfastError(f"late: {wrong[0]}; leave out late, or choose otherwise.")


def rehearse_steps(experiment: Experiment, method: Method, state: State) -> None:
    """Take one step as a client and one as the moderator, and select once: users' own may do anything.

    Steps are of a few rows of each weight, since a large model would be held many times over.
    """
    optimizer, few = method.learning.optimizer, {n: w[:ROWS] if w.ndim else w for n, w in state.model.items()}
    with named("optimizer", experiment.optimizer), torch.no_grad():
        for weight in few.values():
            own = optimizer.begin(weight)
            optimizer.step(weight.clone(), torch.zeros_like(weight), own, method.learning)
            if not all(isinstance(part, Tensor) for part in own.values()):
                raise TypeError("its state must be named tensors")
    with named("server_optimizer", experiment.server_optimizer):
        before = shared(method.algorithm, few)
        aggregated: Tensors = {name: weight.clone() for name, weight in before.items()}
        model, _ = method.server_optimizer.step(before, aggregated, method.server_optimizer.begin(before))
        if fault := misfit(model, before):
            raise ValueError(f"in its model {fault}")
    chosen = method.selection
    if isinstance(chosen, Informed) and chosen.needs_loss and (method.poisson or method.absence.protects):
        raise HoldfastError(
            f"selection: {experiment.selection} goes by training losses, which protected clients do not tell; choose "
            "'uniform', 'size' or 'tiers'."
        )
    with named("selection", experiment.selection):
        select(method.selection, range(method.clients), state, method.seed)


@contextmanager
def named(key: str, choice: object) -> Iterator[None]:
    """Whatever a user's own part raises becomes one sentence that names it."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:  # a user's own code may raise anything
        reason = (str(error).splitlines() or [""])[0]
        raise HoldfastError(f"{key}: {choice} does not work here ({type(error).__name__}: {reason}).") from error
