"""What a privacy report is about: a digest's file, a run, or an experiment that has not been run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from holdfast.absence import FedDig
from holdfast.core.errors import HoldfastError
from holdfast.core.tensors import bytes_of
from holdfast.core.types import Tensors
from holdfast.data.metrics import moving_sums
from holdfast.digests.digest import Digest, load_digest, open_digest
from holdfast.digests.moment_wire import is_moments, open_moments, read_manifest
from holdfast.digests.release import claim_of, for_record, paper_claim
from holdfast.digests.sums import is_sums, open_sums, read_sums_manifest
from holdfast.encoders import never_negative
from holdfast.privacy.accounting import compose
from holdfast.privacy.channels import NOISED
from holdfast.privacy.claim import Claim, unprotected
from holdfast.privacy.counts import noised_counts
from holdfast.privacy.gate import House, beside, house_of
from holdfast.privacy.ledger import DP_SGD, Policy
from holdfast.privacy.noise import system
from holdfast.privacy.patients import for_patients, patients_in
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment, load
from holdfast.runs.plan import Plan
from holdfast.runs.store import Run


@dataclass(frozen=True)
class Account:
    """What one client has released so far, and what its policy leaves."""

    client: int | None  # None: the house that keeps a digest's file
    releases: int
    spent: float
    allowed: float  # infinite without a policy
    updates: float  # the part that updates alone would cost
    note: str = ""  # what is wrong with its ledger or policy

    @property
    def counts(self) -> bool:
        """Whether it has released something, or might have."""
        return bool(self.releases or self.note)

    @property
    def left(self) -> float:
        return max(0.0, self.allowed - self.spent) if math.isfinite(self.spent) else 0.0


@dataclass(frozen=True)
class Updates:
    """What protects a client's updates: the claim of one round, and for how many rounds it was made."""

    claim: Claim
    rounds: int


@dataclass(frozen=True)
class Subject:
    """A release by its options; the claim follows from them, what a file claims of itself is not believed."""

    name: str
    kind: str  # "digest", "run" or "experiment"
    options: FedDig | None  # of digests; None: none leave
    claim: Claim  # of a digest; where none leaves, of a round's update
    feature_shape: tuple[int, ...]
    classes: int
    plan: Plan | None = None  # of a run or experiment whose data are on this machine
    accounts: tuple[Account, ...] = ()
    digest: Digest | None = None  # of a file that holds a mixed digest
    size: int | None = None
    task: str = ""
    encoder: str = ""  # fingerprint
    targets: str = "classes"  # their kind
    updates: Updates | None = None  # None: they leave as they are
    releases: int = 1  # digests planned for each client
    counts: tuple[Claim, ...] = ()  # of metrics and reports that leave with noise
    policies: tuple[Policy | None, ...] = (None,)  # of its clients; none: everything may leave
    site: str = ""  # whose page it is, at a real site
    data: str = ""  # the file of its records there
    before: tuple[Claim, ...] = ()  # what its ledger holds, whatever experiment it was for

    @property
    def unread(self) -> list[Account]:
        """Those of which it is not known what they have released."""
        return [account for account in self.accounts if account.note]

    @property
    def planned(self) -> list[Claim]:
        """All that one client is to release, after what it has released before."""
        digests = [] if self.options is None else [self.claim] * self.releases
        updates = [] if self.updates is None else [self.updates.claim] * self.updates.rounds
        return [*self.before, *digests, *updates, *self.counts]


def subject_of(path: Path, client: int = 0, policy: Path | None = None, changes: Iterable[str] = ()) -> Subject:
    """What a path names; updates are told of as this client would send them, a file with its house's policy."""
    changes = list(changes)
    if changes and path.suffix not in (".toml", ".json"):
        raise HoldfastError(f"--set changes keys of an experiment, and {path} is none.")
    if path.is_dir():
        run = Run.open(path)
        plan = make_plan(run.experiment)
        subject = _of_experiment(str(path), "run", run.experiment, plan, client)
        houses = [_house(path / "clients" / f"{id:04d}", subject) for id in range(run.experiment.clients)]
        accounts = tuple(_read(id, house, subject.claim.delta) for id, house in enumerate(houses))
        return replace(subject, accounts=accounts, policies=tuple(map(_policy, houses)))
    if not path.is_file():
        raise HoldfastError(f"{path} does not exist; name a digest's file, a run's folder or an experiment.")
    if path.suffix in (".toml", ".json"):
        experiment = load(path, changes)
        subject = _of_experiment(str(path), "experiment", experiment, make_plan(experiment), client)
        allowed = _policy(_house(None, subject))
        return replace(subject, policies=(allowed,), counts=tuple(_counts(allowed, subject)))
    subject = subject_of_file(path)
    house = beside(policy or house_of(path.parent).policy)
    return subject if house.policy is None else replace(subject, accounts=(_read(None, house, subject.claim.delta),))


def subject_at(site: str, name: str, data: str, plan: Plan, client: int, house: House) -> Subject:
    """An experiment as one real site has it: its own records, policy and ledger."""
    subject = _of_experiment(name, "experiment", plan.experiment, plan, client)
    allowed = None if house.policy is None else house.read_policy(0.0)
    account = _read(client, house, subject.claim.delta)
    before = () if account.note else tuple(house.read_ledger().claims)
    facts: dict[str, Any] = {"site": site, "data": data, "before": before, "accounts": (account,)}
    return replace(subject, policies=(allowed,), counts=tuple(_counts(allowed, subject)), **facts)


def _of_experiment(name: str, kind: str, experiment: Experiment, plan: Plan, client: int) -> Subject:
    if not 0 <= client < len(plan.parts):
        raise HoldfastError(f"--client: there are clients 0 to {len(plan.parts) - 1}, not {client}.")
    options, about, updates = plan.method.absence, plan.method.bench.about, None
    promise = for_record if about.person is None else for_patients
    if plan.guard is not None:
        own = plan.task.train.take(plan.parts[client][0])
        claim = plan.guard.claim(patients_in(own, about.person), plan.method.learning, system())
        updates = Updates(promise(claim), experiment.rounds)
    if isinstance(options, FedDig):
        signed = not never_negative(experiment.encoder)
        claim = promise(claim_of(options, about.feature_shape, about.classes, signed, about.kind))
        releases = math.ceil(experiment.rounds / options.refresh) if options.refresh else 1
        shape = about.feature_shape
        facts: dict[str, Any] = {"updates": updates, "releases": releases, "targets": about.kind}
        return Subject(name, kind, options, claim, shape, about.classes, plan, **facts)
    claim = unprotected() if updates is None else updates.claim
    return Subject(name, kind, None, claim, (), about.classes, plan, updates=updates)


def _house(folder: Path | None, subject: Subject) -> House:
    """The house of a client; it keeps to its own policy, or to the experiment's."""
    assert subject.plan is not None
    options = subject.plan.guard.options if subject.plan.guard else subject.options
    return house_of(folder, options.policy if options else None)


def _counts(policy: Policy | None, subject: Subject) -> Iterator[Claim]:
    """What answers with noise promise, one for each that a run will ask for."""
    plan = subject.plan
    if policy is None or plan is None:
        return
    promise = for_record if plan.task.person is None else for_patients
    _, count, reach = moving_sums(plan.task.metrics)
    if policy.rule("metrics").state == NOISED and count:
        claim = noised_counts([0.0] * count, reach, policy.rule("metrics").epsilon, policy.delta, system())[1]
        yield from [promise(claim)] * math.ceil(plan.experiment.rounds / plan.experiment.evaluate_every)
    if policy.rule("reports").state == NOISED and plan.method.trust.testing(0) is not None:
        others = max(1, plan.experiment.clients - 1)
        epsilon = policy.rule("reports").epsilon
        claim = noised_counts([0.0] * others, math.sqrt(others), epsilon, policy.delta, system())[1]
        yield from [promise(claim)] * plan.experiment.rounds


def _policy(house: House) -> Policy | None:
    """What a client's policy allows; none where there is none, or none that can be read."""
    try:
        return None if house.policy is None else house.read_policy(0.0)
    except HoldfastError:
        return None


def _read(client: int | None, house: House, delta: float) -> Account:
    try:
        policy = house.read_policy(delta)
        ledger = house.read_ledger()
        updates = compose([entry.claim for entry in ledger.entries if entry.claim.mode == DP_SGD], policy.delta)
        return Account(client, len(ledger.entries), policy.total(ledger.claims), policy.max_epsilon, updates)
    except HoldfastError as error:
        return Account(client, 0, math.inf, 0.0, math.inf, str(error))


def subject_of_file(path: Path) -> Subject:
    """A digest's file: what it is follows from its settings."""
    where = f"digest file {path}"
    if not path.is_file():
        raise HoldfastError(f"{where}: there is no such file; name one that `holdfast digest make` wrote.")
    try:
        with safe_open(path, framework="pt") as file:
            saved_by_command = "digest" in (file.metadata() or {})
        tensors: Tensors = {} if saved_by_command else safetensors.torch.load_file(path)
    except (SafetensorError, OSError, ValueError):
        raise HoldfastError(f"{where}: it is damaged or no digest at all; fetch or make it again.") from None
    size = path.stat().st_size
    if is_moments(tensors):
        made = open_moments(tensors, where=where)
        options = FedDig(mode="moments", epsilon=made.claim.epsilon_nominal, delta=made.claim.delta)
        classes, k = made.means.shape
        said = read_manifest(tensors["manifest"], where)
        facts: dict[str, Any] = {"size": size, "task": said["task"], "encoder": said["encoder"]}
        return Subject(str(path), "digest", options, claim_of(options, (k,), classes), (k,), classes, **facts)
    if is_sums(tensors):
        summed = open_sums(tensors, where=where)
        epsilon = None if summed.claim.mode == "sums" else summed.claim.epsilon_nominal
        delta = {} if epsilon is None else {"delta": summed.claim.delta}
        options = FedDig(mode=summed.claim.mode, epsilon=epsilon, target_range=summed.range, **delta)  # type: ignore[arg-type]
        claim = claim_of(options, (summed.width,), summed.classes, kind=summed.kind)
        said = read_sums_manifest(tensors["manifest"], where)
        facts = {"size": size, "task": said["task"], "encoder": said["encoder"], "targets": summed.kind}
        return Subject(str(path), "digest", options, claim, (summed.width,), summed.classes, **facts)
    if saved_by_command:
        digest = load_digest(path)
    else:
        digest = open_digest({n: t for n, t in tensors.items() if n != "claim"}, where=where)
    options = options_of(digest, tensors.get("claim"), where)
    claim = claim_of_digest(digest, options)
    facts = {"size": size, "task": digest.task, "encoder": digest.encoder}
    return Subject(str(path), "digest", options, claim, digest.feature_shape, digest.classes, digest=digest, **facts)


def claim_of_digest(digest: Digest, options: FedDig) -> Claim:
    """What a mixed digest promises: some of its rows may be made of fewer records than SpD."""
    if options.mode == "paper":
        return paper_claim(options, digest.feature_shape, digest.signed, digest.fewest)
    claim = claim_of(options, digest.feature_shape, digest.classes)
    return replace(claim, spd=min(claim.spd, digest.fewest))


def options_of(digest: Digest, claim: Tensor | None, where: str) -> FedDig:
    """The options with which a mixed digest was made."""
    common: dict[str, Any] = {"spd": digest.spd, "strategy": digest.strategy}
    try:
        if claim is None:
            nominal = re.match(r"laplace:epsilon=([\d.e+-]+),samples=(\d{1,15})", digest.noise)
            if nominal:
                common |= {"epsilon": float(nominal[1]), "size": int(nominal[2])}
            return FedDig(**common, weights=digest.weights)
        said = Claim.from_json(json.loads(bytes_of(claim)))
        share = said.epsilon_labels / said.epsilon_nominal if said.mode == "dp-full" else 0.5
        clip = said.clip if said.delta else said.clip / math.sqrt(math.prod(digest.feature_shape))
        return FedDig(
            **common,
            mode=said.mode,  # type: ignore[arg-type]  # another mode is refused below
            epsilon=said.epsilon_nominal,
            delta=said.delta,
            clip=clip,
            label_share=share,
        )
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        raise HoldfastError(f"{where}: it has no proper claim; ask the client to make it again.") from None
