"""Whether the parts of a plan fit together: model, loss, metrics, scenario and attack are tried once before round 1."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.absence import ABSENCES
from holdfast.algorithms.fedavg import shared
from holdfast.attacks import Attack, choose_attack, false_report, tamper_updates
from holdfast.attacks.contract import answer, told
from holdfast.context import Context
from holdfast.core.config import choose
from holdfast.core.errors import HoldfastError, brief
from holdfast.core.modules import told as told_error
from holdfast.core.randomness import rng
from holdfast.core.types import Tensors
from holdfast.data.task import Samples
from holdfast.learning.device import autocast, batch_on
from holdfast.learning.objective import TaskLoss, is_separable
from holdfast.privacy.dp_steps import check_fit
from holdfast.runs.choose_learning import named, rehearse_steps
from holdfast.runs.experiment import Experiment
from holdfast.runs.plan import Plan
from holdfast.runs.record_weights import check_record_losses
from holdfast.scenarios import Scenario, Stage, delays_of
from holdfast.trust import TRUSTS

REHEARSED = 1000  # rounds of a scenario that are asked for beforehand


def try_out(plan: Plan) -> None:
    """Try model, loss, metrics, attack and optimisers on a few samples: a misfit is a sentence now, not later."""
    raw = plan.task.train.take(torch.arange(min(4, len(plan.task.train))))
    few, model = plan.prepare(raw), plan.method.bench.model.eval()
    output = try_batch(plan, model, few, "model: it does not fit samples")
    for metric in plan.task.metrics:
        with named("metric", metric.name):
            sums = metric.sums(output.float().cpu(), few.labels)
            if len(sums) != metric.width:
                raise ValueError(f"width is {metric.width}, and it has {len(sums)} sums")
            json.dumps([*sums, float(metric.value(sums))])  # plain numbers, which can travel
    method, state = plan.method, plan.first_state()
    weights = shared(method.algorithm, state.model)
    server = method.algorithm.broadcast(method.algorithm.begin(weights))
    task = TaskLoss(plan.task.loss, each=few.weights is not None)
    objective = method.algorithm.objective(task, weights, server, memory={})
    if plan.guard is not None or few.weights is not None:
        check = check_fit if plan.guard is not None else check_record_losses
        check(plan.model(), few, objective)
    if method.learning.accumulate > 1 and not is_separable(objective):
        raise HoldfastError("accumulate: this loss compares the records of a batch, so parts do not add up to it.")
    if method.learning.groups and method.bench.producer is not None:
        raise HoldfastError("groups: FedDig's guidance is trained with the whole model; choose model = 'features'.")
    rehearse_steps(plan.experiment, method, state)
    if plan.attack is None:
        return
    features = plan.prepare if plan.method.absence.needs_features else None
    poisoned = rehearse(plan.attack, plan.hostile, method, state.model, raw, features)
    if poisoned is not None:
        try_batch(plan, model, plan.prepare(poisoned), "attack: the model does not fit the poisoned samples")


def try_batch(plan: Plan, model: nn.Module, few: Samples, misfit: str) -> Tensor:
    """The model's output for a few samples; what fits neither kind nor loss is a sentence."""
    inputs, labels = batch_on(model, few, torch.arange(len(few)))
    try:
        with torch.inference_mode(), autocast(plan.experiment.precision, plan.device):
            output: Tensor = model(*inputs)
            plan.task.kind.check_output(output, labels)
            plan.task.loss(output, labels)
    except HoldfastError:
        raise
    except Exception as error:  # a user's own network, kind or loss
        shape = " and ".join(str(tuple(tensor.shape[1:])) for tensor in inputs)
        raise HoldfastError(f"{misfit} of shape {shape} and their labels: {told_error(error)}.") from error
    return output


def rehearse(
    attack: Any,
    hostile: Sequence[int],
    context: Context,
    model: Tensors,
    few: Samples,
    features: Callable[[Samples], Samples] | None,
) -> Samples | None:
    """Let the attack do each of its works once, for nothing; what does not fit is a sentence. Its poisoned samples.

    `features` prepares samples where digests are made of them.
    """
    classes = context.bench.about.classes
    generator = rng(context.seed, -1, -1, "rehearsal")
    if isinstance(attack, Attack):
        attack.check(context.clients, len(hostile))
    if "update" in attack.kind:
        nothing = {name: torch.zeros_like(weight) for name, weight in model.items()}
        honest = [nothing] * (context.clients - len(hostile))
        tamper_updates(attack, [nothing] * len(hostile), honest, model, generator, nothing)
    if "tester" in attack.kind:
        false_report(attack, {0: 0.5, 1: 0.25}, frozenset(hostile), generator)
    if "digest" in attack.kind and features is not None:
        spoiled = answer(attack, "spoil", features(few).inputs[-1], few.labels, classes, generator)
        if not isinstance(spoiled, tuple) or [type(part) for part in spoiled] != [Tensor, Tensor]:
            raise HoldfastError(f"{told(attack, 'spoil')} must answer with features and labels, two tensors.")
    if "data" not in attack.kind:
        return None
    poisoned = answer(attack, "poison", few, classes, generator)
    if not isinstance(poisoned, Samples):
        raise HoldfastError(f"{told(attack, 'poison')} must answer with Samples, got {type(poisoned).__name__}.")
    return poisoned


def rehearse_scenario(scenario: Scenario, stage: Stage, named: str) -> None:
    """Ask a scenario who is away in each round; one that fails, or names a client that is not there, is a sentence."""
    if any(c not in stage.clients or type(d) is not int or d < 1 for c, d in delays_of(scenario, stage).items()):
        raise HoldfastError(f"scenario {named}: delays must name clients, each with whole rounds from 1 on.")
    for round in range(min(stage.rounds, REHEARSED)):
        try:
            odd = [client for client in scenario(round, stage) if client not in stage.clients]
        except HoldfastError:
            raise
        except Exception as error:  # a user's own
            raise HoldfastError(f"scenario {named} failed in round {round + 1}: {told_error(error)}.") from error
        if odd:
            there = f"clients are 0 to {len(stage.sizes) - 1}"
            raise HoldfastError(f"scenario {named} sends client {brief(odd[0])} away, and there is none; {there}.")


def without_effect(experiment: Experiment) -> str | None:
    """Why the experiment's attack changes nothing, if it does not.

    >>> without_effect(Experiment(attack="falsedigest", attackers=1))
    "attack 'falsedigest' has no effect: absence 'none' takes no digests."
    >>> without_effect(Experiment(attack="liar", attackers=1))
    """
    attack = choose_attack(experiment.attack)
    if attack is None:
        return None
    why = _asleep(attack, experiment) or _unheard(attack, experiment)
    return f"attack '{experiment.attack}' has no effect: {why}" if why else None


def _asleep(attack: Any, experiment: Experiment) -> str | None:
    since = getattr(attack, "since", 0)
    if since >= experiment.rounds:
        return f"it begins after {since} rounds, and the run has {experiment.rounds}."
    if getattr(attack, "omniscient", False) and experiment.attackers == experiment.clients:
        return "it copies from honest clients, and there is none."
    return None


def _unheard(attack: Any, experiment: Experiment) -> str | None:
    """Why nobody takes what it falsifies."""
    honest_update = "update" not in attack.kind or getattr(attack, "update", None) == "honest"  # of a lying tester
    alone = getattr(attack, "into", "both") == "digests"  # of a backdoor
    if not alone and (not honest_update or "data" in attack.kind):
        return None
    if alone or "digest" in attack.kind:
        absence = choose(ABSENCES, experiment.absence, "absence")
        return None if absence.needs_features else f"absence '{experiment.absence}' takes no digests."
    if experiment.trust.name == "auto":
        return "the algorithm's own weights ask no testers; choose a trust rule that does."
    rule = choose(TRUSTS, experiment.trust, "trust")
    return None if rule.testing(0) is not None else f"trust '{experiment.trust}' asks no testers."


def refuse_without_effect(experiment: Experiment) -> None:
    """Refuse an attack that changes nothing, where it is not compared with others."""
    if why := without_effect(experiment):
        raise HoldfastError(why)
