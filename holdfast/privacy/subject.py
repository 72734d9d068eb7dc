"""What a privacy report is about: a digest's file, a run, or an experiment that has not been run."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from holdfast.absence import ABSENCES, FedDig
from holdfast.absence.release import claim_of
from holdfast.choices import choose
from holdfast.compact import bytes_of
from holdfast.core import Tensors
from holdfast.digests import Digest, load_digest, open_digest
from holdfast.errors import HoldfastError
from holdfast.experiment import Experiment, load
from holdfast.plan import Plan, make_plan
from holdfast.privacy.claim import Claim
from holdfast.privacy.house import house_of
from holdfast.privacy.wire import is_moments, open_moments, read_manifest
from holdfast.runs import Run


@dataclass(frozen=True)
class Account:
    """What one client has released so far, and what its policy leaves."""

    client: int
    releases: int
    spent: float
    allowed: float  # infinite without a policy
    note: str = ""  # what is wrong with its ledger or policy

    @property
    def left(self) -> float:
        return max(0.0, self.allowed - self.spent) if math.isfinite(self.spent) else 0.0


@dataclass(frozen=True)
class Subject:
    """A release by its options; the claim follows from them, what a file claims of itself is not believed."""

    name: str
    kind: str  # "digest", "run" or "experiment"
    options: FedDig
    claim: Claim
    feature_shape: tuple[int, ...]
    classes: int
    plan: Plan | None = None  # of a run or experiment whose data are on this machine
    accounts: tuple[Account, ...] = ()
    digest: Digest | None = None  # of a file that holds a mixed digest
    size: int | None = None
    task: str = ""
    encoder: str = ""  # fingerprint


def subject_of(path: Path) -> Subject:
    """What a path names."""
    if path.is_dir():
        run = Run.open(path)
        plan = make_plan(run.experiment)
        subject = _of_experiment(str(path), "run", run.experiment, plan)
        accounts = tuple(
            _account(client, path / "clients" / f"{client:04d}", subject) for client in range(run.experiment.clients)
        )
        return replace(subject, accounts=accounts)
    if not path.is_file():
        raise HoldfastError(f"{path} does not exist; name a digest's file, a run's folder or an experiment.")
    if path.suffix in (".toml", ".json"):
        experiment = load(path)
        return _of_experiment(str(path), "experiment", experiment, make_plan(experiment))
    return subject_of_file(path)


def _of_experiment(name: str, kind: str, experiment: Experiment, plan: Plan) -> Subject:
    options = choose(ABSENCES, experiment.absence, "absence")
    if not isinstance(options, FedDig):
        raise HoldfastError(
            f"{name}: no digests leave the clients (absence = {experiment.absence.name!r}), only updates of the model, "
            "which promise nothing."
        )
    about = plan.method.bench.about
    claim = claim_of(options, about.feature_shape, about.classes)
    return Subject(name, kind, options, claim, about.feature_shape, about.classes, plan)


def _account(client: int, folder: Path, subject: Subject) -> Account:
    house = house_of(folder, subject.options.policy)
    try:
        policy = house.read_policy(subject.claim.delta)
        ledger = house.read_ledger()
        return Account(client, len(ledger.entries), ledger.epsilon(policy.delta), policy.max_epsilon)
    except HoldfastError as error:
        return Account(client, 0, math.inf, 0.0, str(error))


def subject_of_file(path: Path) -> Subject:
    """A digest's file: what it is follows from its settings."""
    where = f"digest file {path}"
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
        classes, k = made.sums.shape
        said = read_manifest(tensors["manifest"], where)
        facts: dict[str, Any] = {"size": size, "task": said["task"], "encoder": said["encoder"]}
        return Subject(str(path), "digest", options, claim_of(options, (k,), classes), (k,), classes, **facts)
    if saved_by_command:
        digest = load_digest(path)
    else:
        digest = open_digest({n: t for n, t in tensors.items() if n != "claim"}, where=where)
    options = options_of(digest, tensors.get("claim"), where)
    claim = claim_of(options, digest.feature_shape, digest.classes)
    facts = {"size": size, "task": digest.task, "encoder": digest.encoder}
    return Subject(str(path), "digest", options, claim, digest.feature_shape, digest.classes, digest=digest, **facts)


def options_of(digest: Digest, claim: Tensor | None, where: str) -> FedDig:
    """The options with which a mixed digest was made."""
    common: dict[str, Any] = {"spd": digest.spd, "strategy": digest.strategy}
    if claim is None:
        nominal = re.match(r"laplace:epsilon=([\d.e+-]+),samples=(\d+)", digest.noise)
        if nominal:
            common |= {"epsilon": float(nominal[1]), "size": int(nominal[2])}
        return FedDig(**common)
    try:
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
    except (ValueError, TypeError, KeyError, ArithmeticError):
        raise HoldfastError(f"{where}: it has no proper claim; ask the client to make it again.") from None
