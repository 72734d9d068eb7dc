"""From an experiment to the objects that play it; whatever does not fit together is refused here, before round 1."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

from holdfast.absence import ABSENCES, AbsencePolicy
from holdfast.algorithms import ALGORITHMS
from holdfast.algorithms.fedavg import FedAvg
from holdfast.attacks import choose_attack
from holdfast.attacks.adversary import choose_hostile
from holdfast.context import About, Bench
from holdfast.core.config import choose, refuse_other
from holdfast.core.errors import HoldfastError
from holdfast.core.modules import search
from holdfast.core.randomness import rng
from holdfast.core.validate import Sizes
from holdfast.data.kinds import refuse_without_classes
from holdfast.data.losses import InUnits
from holdfast.data.task import Task
from holdfast.encoders import Encoder, guidance_producer, never_negative
from holdfast.learning.augment import Augment, choose_augment
from holdfast.learning.device import choose_device
from holdfast.method import Method
from holdfast.models.networks import initialise, laid_out
from holdfast.models.scaling import in_range
from holdfast.privacy.dp_sgd import PROTECTIONS, DpSgd, Guard
from holdfast.privacy.ledger import DP_SGD
from holdfast.runs.choose_learning import (
    check_late,
    choose_compression,
    choose_late,
    choose_learning,
    choose_schedule,
    choose_server_optimizer,
    choose_workload,
)
from holdfast.runs.choose_metrics import with_chosen
from holdfast.runs.choose_model import choose_model, read_inputs, target_range
from holdfast.runs.deal import complete, deal, first_samples, moderators_samples, task_of
from holdfast.runs.early_stopping import choose_stop
from holdfast.runs.experiment import Experiment
from holdfast.runs.one_message import check_in_rounds, check_one_message, sends_one_message
from holdfast.runs.plan import Plan
from holdfast.runs.record_weights import check_weights
from holdfast.runs.rehearse import rehearse_scenario, try_out
from holdfast.runs.secure_sums import check_plan
from holdfast.scenarios import SCENARIOS, Stage
from holdfast.secure_sum.options import SecureSum
from holdfast.selection import SELECTIONS
from holdfast.trust import TRUSTS, Trust
from holdfast.trust.base import check_rule


def make_plan(experiment: Experiment) -> Plan:
    """Choose, load and deal out what the experiment names."""
    if experiment.modules is not None:
        search(experiment.modules)
    for key in ("model", "trust", "attack"):  # the others have a class for "none", which knows its options
        choice = getattr(experiment, key)
        if choice.name in ("auto", "none") and str(choice) != choice.name:
            raise HoldfastError(f"{key}: {choice.name!r} has no options, got {choice}; name the {key} itself.")
    device = choose_device(experiment.device)
    scenario = choose(SCENARIOS, experiment.scenario, "scenario")
    absence = choose(ABSENCES, experiment.absence, "absence")
    refuse_other(AbsencePolicy, absence, experiment.absence, "absence")
    task = with_chosen(experiment, task_of(experiment))
    experiment = complete(experiment, task)
    if experiment.samples is not None:
        task = replace(task, train=task.train.take(first_samples(task, experiment.samples)))
    if sends_one_message(experiment):
        check_one_message(experiment, task, absence)
    else:
        check_in_rounds(experiment, task, absence)
    check_weights(experiment, task, absence)
    build, inputs, encoder, layout = choose_model(experiment, task, absence)
    if unit := target_range(experiment, task):
        build, task = partial(in_range, build, unit), replace(task, loss=InUnits(task.loss, unit.half))
    prepare = partial(read_inputs, inputs, encoder)
    about = about_of(experiment, task, encoder)
    bench = Bench(initialise(build, experiment.seed, layout).to(device), task.loss, about)
    if encoder and "image" in inputs and absence.needs_features:
        generator = rng(experiment.seed, -1, -1, "guidance")
        producer = guidance_producer(encoder.feature_shape, task.shape, generator)
        bench = replace(bench, producer=laid_out(producer, layout).to(device))
    method = choose_method(experiment, absence, bench)
    method = replace(method, own_samples=lru_cache(maxsize=2)(partial(moderators_samples, experiment, task, prepare)))
    others = "choose one that goes by the updates themselves, such as 'median', 'krum' or 'fltrust'"
    refuse_without_classes(task.kind, method.trust, f"trust {str(experiment.trust)!r}", others)
    check_rule(method.trust, experiment.trust.name, method)
    check_late(experiment, method)
    parts = deal(experiment, task)
    stage = Stage(experiment.rounds, [len(train) for train, _, _ in parts], experiment.seed, experiment.names or ())
    rehearse_scenario(scenario, stage, str(experiment.scenario))
    attack = choose_attack(experiment.attack)
    refuse_without_classes(task.kind, attack, f"attack {str(experiment.attack)!r}", "choose an attack on updates")
    if attack is not None and method.algorithm.one_message and not {"digest", "data"} & set(attack.kind):
        raise HoldfastError(
            "attack: with algorithm 'oneshot' there are no updates to attack; choose one on data or digests."
        )
    hostile = choose_hostile(experiment.clients, experiment.attackers, experiment.seed)
    guard, method = choose_guard(experiment, method)
    method = replace(
        method,
        sizes=Sizes(stage.sizes, experiment.agreed_samples or ()),
        poisson=guard is not None,
        metrics=task.metrics,
        evaluate_every=experiment.evaluate_every,
    )
    chosen = (experiment, task, method, scenario, stage, attack, hostile, parts, build, layout, prepare, device)
    plan = Plan(*chosen, guard, choose_stop(experiment, task), encoder, augment_for(experiment, task, inputs))
    try_out(plan)
    return plan


def about_of(experiment: Experiment, task: Task, encoder: Encoder | None) -> About:
    """What is publicly known of the samples and of their features."""
    about = About(task.name, task.classes, kind=task.kind.spec, person=task.person, shape=tuple(task.shape))
    if encoder is None:
        return about
    return replace(
        about,
        encoder=encoder.fingerprint,
        feature_shape=encoder.feature_shape,
        signed=not never_negative(experiment.encoder),
        norm_bound=encoder.norm_bound,
    )


def augment_for(experiment: Experiment, task: Task, inputs: tuple[str, ...]) -> Augment | None:
    """How images are changed by chance in training; refused where the model sees none, or updates are protected."""
    augment = choose_augment(experiment.augment)
    if augment is None:
        return None
    if len(task.shape) != 3 or "image" not in inputs:
        raise HoldfastError("augment: only a model that reads images has use for it; leave it out, or name a model.")
    if experiment.protect.name == DP_SGD:
        raise HoldfastError("augment: protected updates are not augmented; leave out augment, or protect.")
    return augment


def choose_guard(experiment: Experiment, method: Method) -> tuple[Guard | None, Method]:
    """What protects updates; a policy that the experiment names holds for digests and updates alike."""
    options = choose(PROTECTIONS, experiment.protect, "protect")
    if isinstance(options, SecureSum):
        check_plan(method)
        return None, replace(method, secure=options)
    if not isinstance(options, DpSgd):
        return None, method
    if experiment.precision != "float32":  # its rounding is far beyond what the bound on each gradient allows for
        raise HoldfastError("protect: 'dp-sgd' bounds gradients in float32; leave out precision, or protect.")
    absence = method.absence
    named = {policy for policy in (options.policy, absence.named_policy) if policy}
    if len(named) > 1:
        raise HoldfastError("absence.policy and protect.policy name two files; a client has one policy.")
    for policy in named:
        options = replace(options, policy=policy)
        method = replace(method, absence=absence.with_policy(policy))
    keep = 2 * experiment.checkpoint_every + 2
    series = replace(experiment, data=None).fingerprint[:16]  # wherever its data lie
    return Guard(options, experiment.rounds, series, keep), method


def choose_method(experiment: Experiment, absence: AbsencePolicy, bench: Bench) -> Method:
    algorithm = choose(ALGORITHMS, experiment.algorithm, "algorithm")
    refuse_other(FedAvg, algorithm, experiment.algorithm, "algorithm")
    algorithm = algorithm.fitted(bench.model)
    if algorithm.needs_absence and experiment.absence.name != algorithm.needs_absence:
        raise HoldfastError(
            f"algorithm {experiment.algorithm.name!r} learns from what absence = {algorithm.needs_absence!r} hands to "
            f"clients; say that, not {experiment.absence.name!r}."
        )
    by_paper = experiment.trust.name == "auto"
    trust = TRUSTS[algorithm.weights]() if by_paper else choose(TRUSTS, experiment.trust, "trust")
    if not isinstance(trust, Trust) or type(trust).judge is Trust.judge:
        rule = "derive a class from holdfast.trust.Trust, with a method judge"
        raise HoldfastError(f"trust: {experiment.trust} is no trust rule; {rule}.")
    return Method(
        algorithm=algorithm,
        absence=absence,
        trust=trust,
        learning=choose_learning(experiment, algorithm, bench.model),
        rounds=experiment.rounds,
        clients=experiment.clients,
        names=experiment.names,
        seed=experiment.seed,
        bench=bench,
        max_norm=experiment.max_norm,
        schedule=choose_schedule(experiment, algorithm),
        server_optimizer=choose_server_optimizer(experiment),
        compress=choose_compression(experiment, algorithm),
        late=choose_late(experiment),
        workload=choose_workload(experiment, algorithm),
        selection=choose(SELECTIONS, experiment.selection, "selection"),
    )
