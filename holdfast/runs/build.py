"""From an experiment to the objects that play it; whatever does not fit together is refused here, before round 1."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.absence import ABSENCES, AbsencePolicy
from holdfast.algorithms import ALGORITHMS
from holdfast.algorithms.fedavg import FedAvg, at_home, shared
from holdfast.attacks import choose_attack
from holdfast.attacks.adversary import choose_hostile
from holdfast.client import Client
from holdfast.context import About, Bench
from holdfast.core.config import choose, refuse_other
from holdfast.core.errors import HoldfastError
from holdfast.core.memory import Memory
from holdfast.core.modules import search, told
from holdfast.core.randomness import rng
from holdfast.core.types import State, Tensors
from holdfast.core.validate import Sizes
from holdfast.data.kinds import refuse_without_classes
from holdfast.data.task import Samples, Task
from holdfast.encoders import Encoder, guidance_producer, never_negative
from holdfast.learning.augment import Augment, choose_augment
from holdfast.learning.device import autocast, batch_on, choose_device
from holdfast.learning.objective import TaskLoss, is_separable
from holdfast.method import Method
from holdfast.models.networks import Layout, initialise, laid_out, weights_of
from holdfast.privacy.dp_sgd import PROTECTIONS, DpSgd, Guard
from holdfast.privacy.dp_steps import check_fit
from holdfast.privacy.gate import named_policy
from holdfast.privacy.ledger import DP_SGD, read_policy
from holdfast.runs.choose_learning import (
    check_late,
    choose_compression,
    choose_late,
    choose_learning,
    choose_schedule,
    choose_server_optimizer,
    named,
    rehearse_steps,
)
from holdfast.runs.choose_metrics import with_chosen
from holdfast.runs.choose_model import choose_model, read_inputs
from holdfast.runs.deal import complete, deal, first_samples, moderators_samples, task_of
from holdfast.runs.early_stopping import Stop, choose_stop
from holdfast.runs.experiment import Experiment
from holdfast.runs.one_message import check_in_rounds, check_one_message, sends_one_message
from holdfast.runs.record_weights import check_record_losses, check_weights
from holdfast.runs.rehearse import rehearse, rehearse_scenario
from holdfast.runs.secure_sums import check_plan
from holdfast.runs.start_weights import first_tensors
from holdfast.scenarios import SCENARIOS, Changed, Scenario, Stage
from holdfast.secure_sum.options import SecureSum
from holdfast.selection import SELECTIONS
from holdfast.trust import TRUSTS, Trust
from holdfast.trust.backdoor_probe import IMAGES, Stamped, fit_for_squares, stamp_everywhere
from holdfast.trust.base import check_rule
from holdfast.trust.measures import held_out


@dataclass(frozen=True)
class Plan:
    """An experiment with everything chosen, loaded and dealt out."""

    experiment: Experiment
    task: Task
    method: Method
    scenario: Scenario
    stage: Stage
    attack: Any  # None: nobody is hostile
    hostile: tuple[int, ...]
    parts: list[tuple[Tensor, Tensor, Tensor]]  # for each client: train, validation, test
    build: Callable[[], nn.Module]
    layout: Layout
    prepare: Callable[[Samples], Samples]  # raw samples -> what the model reads
    device: torch.device
    guard: Guard | None = None  # protects updates
    stop: Stop | None = None  # when it may end early
    encoder: Encoder | None = None  # of a model that reads features
    augment: Augment | None = None  # of the images that clients train on

    def client(self, id: int, model: nn.Module, folder: Path | None) -> Client:
        """One client with its own samples; the model is the workbench of whoever computes for it."""
        train, validation = (self.task.train.take(part) for part in self.parts[id][:2])
        method, seed = self.method, self.experiment.seed
        attack = self.attack if id in self.hostile else None
        poisoned, later = None, None
        if isinstance(self.scenario, Changed) and id == self.stage.largest:
            train, other = halves(train)
            later = self.prepare(other)
        if attack is not None and "data" in attack.kind:
            poisoned = self.prepare(attack.poison(train, self.task.classes, rng(seed, -1, id, "poison")))
        return Client(
            id=id,
            seed=seed,
            about=method.bench.about,
            memory=Memory(folder and folder / "clients" / f"{id:04d}", keep=2 * self.experiment.checkpoint_every + 2),
            attack=attack,
            train=self.prepare(train),
            validation=self.prepare(validation),
            model=model,
            loss=self.task.loss,
            metrics=self.task.metrics,
            learning=method.learning,
            algorithm=method.algorithm,
            absence=method.absence,
            compress=method.compress,
            poisoned=poisoned,
            guard=self.guard,
            secure=method.secure,
            augment=self.augment,
            stamped=self.stamped(held_out(validation, train, IMAGES)),
            trust=method.trust,
            interval_from=self.interval_from,
            home=self.home(),
            later=later,
            later_from=self.scenario.back(self.stage) if isinstance(self.scenario, Changed) else 0,
        )

    def encode_ahead(self, threads: int) -> None:
        """Let a costly encoder see what the clients will read, before worker processes do so one by one."""
        if self.encoder is None or not self.encoder.costly:
            return
        rows = torch.cat([rows for train, validation, _ in self.parts for rows in (train, validation)])
        self.encoder.encode_ahead(self.task.train.inputs[0], rows, threads)

    @property
    def interval_from(self) -> int:
        """The first round whose test may be the last one: from it on intervals are told."""
        return 0 if self.stop is not None else self.experiment.rounds - 1

    def home(self) -> Tensors:
        """What stays at each client, as it is before its first training."""
        if not self.method.keeps_home:
            return {}
        weights, buffers = first_tensors(self.model(), self.experiment.start)
        return at_home(self.method.algorithm, {**weights, **buffers})

    def stamped(self, few: Samples) -> Stamped | None:
        """A client's held-out images with squares on them, where the trust rule looks for backdoors."""
        if not self.method.trust.stamps_images or not fit_for_squares(self.task.shape):
            return None
        return Stamped(self.prepare(stamp_everywhere(few)), len(few))

    def model(self) -> nn.Module:
        """A model with the first weights of the run, on its device."""
        return initialise(self.build, self.experiment.seed, self.layout).to(self.device)

    def start(self) -> State:
        """The state before round 1; a policy that cannot be read would be a refusal by every client in every round."""
        named = self.method.absence.named_policy if self.guard is None else self.guard.options.policy
        if named is not None:
            read_policy(named_policy(named))
        return self.first_state(self.experiment.start)

    def first_state(self, start: str | None = None) -> State:
        """The state before round 1, with the weights of this file; sites rehearse without, since they are sent them."""
        weights, buffers = first_tensors(self.model(), start)
        method = self.method
        common = shared(method.algorithm, weights)
        return State(
            round=0,
            model=weights,
            buffers=buffers,
            algorithm=method.algorithm.begin(common),
            absence=method.absence.begin(method),
            trust=method.trust.begin(method.clients),
            server_optimizer=method.server_optimizer.begin(common),
        )


def halves(samples: Samples) -> tuple[Samples, Samples]:
    """Two halves of some samples by their targets, as many in one as in the other."""
    targets, half = samples.labels.reshape(len(samples), -1)[:, 0], len(samples) // 2
    order = targets.argsort(stable=True)
    return samples.take(order[:half]), samples.take(order[half : 2 * half])


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
    stage = Stage(experiment.rounds, [len(train) for train, _, _ in parts], experiment.seed)
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
    about = About(task.name, task.classes, kind=task.kind.spec, person=task.person)
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
        schedule=choose_schedule(experiment),
        server_optimizer=choose_server_optimizer(experiment),
        compress=choose_compression(experiment, algorithm),
        late=choose_late(experiment),
        selection=choose(SELECTIONS, experiment.selection, "selection"),
    )


def try_out(plan: Plan) -> None:
    """Try model, loss, metrics, attack and optimisers on a few samples: a misfit is a sentence now, not later."""
    raw = plan.task.train.take(torch.arange(min(4, len(plan.task.train))))
    few, model = plan.prepare(raw), plan.model().eval()
    output = try_batch(plan, model, few, "model: it does not fit samples")
    for metric in plan.task.metrics:
        with named("metric", metric.name):
            sums = metric.sums(output.float().cpu(), few.labels)
            if len(sums) != metric.width:
                raise ValueError(f"width is {metric.width}, and it has {len(sums)} sums")
            json.dumps([*sums, float(metric.value(sums))])  # plain numbers, which can travel
    method, weights = plan.method, shared(plan.method.algorithm, weights_of(model))
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
    rehearse_steps(plan.experiment, plan.method, plan.first_state())
    if plan.attack is None:
        return
    features = plan.prepare if plan.method.absence.needs_features else None
    poisoned = rehearse(plan.attack, plan.hostile, plan.method, weights_of(model), raw, features)
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
        raise HoldfastError(f"{misfit} of shape {shape} and their labels: {told(error)}.") from error
    return output
