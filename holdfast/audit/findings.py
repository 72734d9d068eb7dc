"""All that a privacy report says of a subject: the claim, the accounts, and what attacks could do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.audit import guessing
from holdfast.audit.canary import Finding, Record, tell_apart, worst_pair
from holdfast.audit.canary_digests import audit_digest
from holdfast.audit.canary_ledger import Counted, audit_ledger
from holdfast.audit.canary_sums import attack_sums
from holdfast.audit.canary_updates import attack_updates
from holdfast.audit.channels import Channel, channels_of, federation_channels
from holdfast.audit.reconstruct import Seen, attacks_on
from holdfast.audit.target import Subject
from holdfast.audit.tradeoff import Audit
from holdfast.core.cards import card
from holdfast.data.task import Samples
from holdfast.encoders import Encoder, encoder_for
from holdfast.encoders.contract import as_read
from holdfast.privacy.accounting import compose, group_epsilon
from holdfast.privacy.claim import Claim
from holdfast.privacy.ledger import Policy
from holdfast.privacy.noise import SEEDED, Source

MOST_RECORDS = 500  # of the owner's that are attacked
SHOWN = 8  # reconstructions shown beside their originals
INDEX_DIGESTS = 20


@dataclass(frozen=True)
class Findings:
    """What was found; `pictures` are the owner's and are never part of what is sent."""

    subject: Subject
    members: tuple[Finding, ...]
    audits: dict[str, Audit | Counted]  # by what was audited
    seen: tuple[Seen, ...]
    index: dict[str, Any] | None
    originals: Tensor | None
    entropy: str
    client: int = 0  # the owner whose records are there, if any are
    signed: str = ""  # the fingerprint of the key that signs the page

    @property
    def verdict(self) -> str:
        """FAIL only where an attack did better than its own claim allows, each at 99 % confidence.

        Where a channel is open, or it is not known what a client has released, nothing is guaranteed.
        """
        if not claim_holds(self):
            return "NO GUARANTEE"
        audited = all(audit.passed for audit in self.audits.values())
        if not audited or any(member.better_than_predicted for member in self.members):
            return "FAIL"
        return "NO GUARANTEE" if self.subject.unread or self.in_state("open") else "PASS"

    def _repr_html_(self) -> str:
        rows = [
            ("verdict", self.verdict),
            ("epsilon of all that leaves", f"{self.epsilon_total:.4g}".replace("inf", "infinite")),
            ("epsilon of what is protected", f"{self.epsilon_protected:.4g}".replace("inf", "infinite")),
            ("delta", f"{self.delta:g}"),
            *((channel.name, f"{channel.state}: {channel.says}") for channel in self.channels),
        ]
        return card(f"What leaves the house: {self.subject.name}", rows)

    @property
    def channels(self) -> list[Channel]:
        return channels_of(self.subject)

    def in_state(self, state: str) -> list[Channel]:
        return [channel for channel in self.channels if channel.state == state]

    @property
    def epsilon_total(self) -> float:
        """Of all that leaves: infinite while any channel is open."""
        return math.inf if self.in_state("open") else self.epsilon_protected

    @property
    def epsilon_protected(self) -> float:
        """Of what is protected, over all releases of the client that has released most, or over the planned ones."""
        at_site = bool(self.subject.site)  # there, what is planned comes to what was released before
        spent = [account.spent for account in self.subject.accounts if account.counts and not at_site]
        planned = self.subject.planned
        if not spent and len(planned) > 1:
            return max(self._together(policy, planned) for policy in self.subject.policies)
        return max(spent, default=self.subject.claim.epsilon_total)

    def _together(self, policy: Policy | None, claims: Sequence[Claim]) -> float:
        return policy.total(claims) if policy is not None and policy.adaptive else compose(claims, self.delta)

    @property
    def added_up(self) -> str:
        """What the sum of several releases assumes of how their budgets were chosen."""
        policies, claims = self.subject.policies, self.subject.planned
        if all(policy is not None and policy.adaptive and policy.limited for policy in policies):
            return "by a filter that holds even where later budgets are chosen after seeing earlier answers"
        gaussian, pure, steps = (
            any(getattr(claim, name) for claim in claims) for name in ("ratio", "epsilon_pure", "steps")
        )
        if len(claims) < 2 or not (steps or (gaussian and pure)):
            return "by rules that hold even where later budgets are chosen after seeing earlier answers"
        return "as if budgets were fixed before any answer was seen; `adaptive = true` in the policy assumes less"

    @property
    def epsilon_updates(self) -> float:
        """The same of updates alone; infinite where they are not protected."""
        updates = self.subject.updates
        if updates is None:
            return math.inf
        spent = [account.updates for account in self.subject.accounts if account.counts]
        return max(spent) if spent else compose([updates.claim] * updates.rounds, updates.claim.delta)

    @property
    def delta(self) -> float:
        return max((claim.delta for claim in self.subject.planned), default=self.subject.claim.delta)

    @property
    def not_covered(self) -> list[str]:
        """What no promise covers; beside a digest's file, whatever a federation would send."""
        channels = federation_channels(self.subject) if self.subject.kind == "digest" else self.channels
        return [channel.says for channel in channels if channel.state != "protected"]


def claim_holds(findings: Findings) -> bool:
    """Whether anything is promised at all."""
    return findings.entropy != SEEDED and math.isfinite(findings.subject.claim.epsilon_total)


def examine(subject: Subject, source: Source, client: int = 0, trials: int = 500, see: bool = True) -> Findings:
    """Attack a subject with everything at hand; `client` is the owner whose records are there, if any are."""
    members: list[Finding] = []
    audits: dict[str, Audit | Counted] = {}
    seen: list[Seen] = []
    originals = index = None
    if subject.options is not None:
        members, found, seen, originals, index = _attack_digest(subject, source, client, trials, see)
        audits |= found
    if subject.updates is not None:
        member, audits["updates"] = attack_updates(subject.updates, trials, source)
        members = [*members, member]
    if audits and math.isfinite(subject.claim.epsilon_total):
        audits["ledger"] = audit_ledger(subject.claim)
    return Findings(subject, tuple(members), audits, tuple(seen), index, originals, source.guarantee, client)


def _attack_digest(
    subject: Subject, source: Source, client: int, trials: int, see: bool
) -> tuple[list[Finding], dict[str, Audit], list[Seen], Tensor | None, dict[str, Any] | None]:
    options, claim = subject.options, subject.claim
    assert options is not None
    if options.mode == "sums" or subject.targets != "classes":
        told = subject.targets, subject.classes, math.prod(subject.feature_shape)
        told_apart, canaries = attack_sums(options, claim, *told, trials, source)
        return told_apart, canaries, [], None, None
    worst = worst_pair(options.mode, math.prod(subject.feature_shape), subject.classes)
    arguments = (subject.classes, max(1000, trials), source)
    members = [tell_apart(options, claim, worst, *arguments, who="the worst pair of records")]
    seen: list[Seen] = []
    originals = None
    features: Tensor | None = None if subject.digest is None else subject.digest.features
    if subject.plan is not None and see:
        encoder, own, others = _owner(subject, client)
        encoded = encoder.encode(own.inputs[0]).flatten(1)
        pair = _random_pair(encoded, own.labels)
        members.append(tell_apart(options, claim, pair, *arguments, who="two of the owner's records, at random"))
        if own.inputs[0].ndim == 4:  # a picture: anything else is nobody's to recognise
            seen = attacks_on(options, claim, encoder, own, others, subject.classes)
            originals = as_read(own.inputs[0])
        if claim.mode != "moments":
            features = torch.stack([group.mean(0) for group in encoded.split(options.spd)])
    audited = audit_digest(options, claim, math.prod(subject.feature_shape), trials, source)
    index = None if claim.mode == "moments" else guessing_index(options.spd, subject.feature_shape, features, claim.spd)
    return members, audited, seen, originals, index


def _owner(subject: Subject, client: int) -> tuple[Encoder, Samples, Samples]:
    """The encoder, the owner's records, and as many of other clients' for the adversary."""
    plan = subject.plan
    assert plan is not None
    encoder = encoder_for(plan.experiment.encoder, plan.task.train.inputs[0], plan.task.schema)
    own, others = plan.parts[client][0][:MOST_RECORDS], torch.cat([part for part, _, _ in plan.parts])
    others = others[~torch.isin(others, plan.parts[client][0])]
    others = others if len(others) else plan.parts[client][1]  # at a real site, or of a single client
    few = others[:: max(1, len(others) // 2000)][:2000]
    return encoder, plan.task.train.take(own), plan.task.train.take(few)


def _random_pair(features: Tensor, labels: Tensor) -> tuple[Record, Record]:
    """Two records of the owner, the first and the last after shuffling."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    a, b = (int(order[i]) for i in (0, -1))
    rows: Any = features.double().numpy()
    return (rows[a], int(labels[a])), (rows[b], int(labels[b]))


def guessing_index(spd: int, shape: tuple[int, ...], features: Tensor | None, fewest: int) -> dict[str, Any]:
    """The published guessing index: its average, and of the digests at hand the easiest and the median.

    Any of the digests may be one that mixes the fewest records: the easiest is told as if it did.
    """
    elements = math.prod(shape)
    found: dict[str, Any] = {
        "average": round(guessing.log10_mean(spd, 2**32, elements=elements), 1),
        "average_ordered": round(guessing.log10_mean(spd, 2**32, ordered=True, elements=elements), 1),
        "paper_bound": round(elements * math.log10(guessing.PAPER_BOUND), 1),
        "paper_bound_holds": guessing.paper_bound_holds(fewest),
    }
    values = None if features is None else np.asarray(features[:INDEX_DIGESTS].double().flatten(1))
    if values is not None and float(values.max()) > 0:
        rows = [guessing.elements(row, float(values.max())) for row in values]
        totals = sorted(guessing.index_of(row, spd).total for row in rows)
        easiest = [guessing.index_of(row, fewest) for row in rows]
        found |= {
            "worst": max(one.total for one in easiest),
            "median": totals[len(totals) // 2],
            "certain_elements": max(one.certain for one in easiest),
        }
    return found


def bound_words(index: dict[str, Any]) -> str:
    """Whether the published bound holds: on average over all values, and for each digest at hand."""
    bound = f"the published bound {index['paper_bound']}"
    if not index["paper_bound_holds"]:
        return f"{bound} does NOT hold where so few are mixed"
    if index.get("worst", -math.inf) > index["paper_bound"]:
        return f"{bound} holds on average over all values, NOT for the easiest digest here"
    return f"{bound} holds on average over all values"


def as_json(findings: Findings) -> dict[str, Any]:
    """The report for a machine; an infinite number is written as text, as JSON has none."""
    subject, claim = findings.subject, findings.subject.claim
    first = next((one for one in findings.audits.values() if isinstance(one, Audit)), None)
    updates = subject.updates
    report: dict[str, Any] = {
        "subject": subject.name,
        "kind": subject.kind,
        **{name: getattr(claim, name) for name in ("mode", "adjacency", "epsilon_nominal", "epsilon_features")},
        "epsilon_labels": claim.epsilon_labels,
        "epsilon_release": claim.epsilon_total,
        "epsilon_updates": findings.epsilon_updates,
        "epsilon_protected": findings.epsilon_protected,
        "epsilon_total": findings.epsilon_total,
        "delta": claim.delta,
        "guarantee": claim.guarantee,
        "membership_auc": findings.members[0].auc if findings.members else None,
        "audit_lower_bound": first and first.lower,
        "audit_would_find": first and first.would_find,
        "epsilon_person_with_5_records": group_epsilon(claim, 5),
        "verdict": findings.verdict,
        **{name: getattr(claim, name) for name in ("noise", "scale", "sensitivity", "grid", "clip", "spd")},
        "entropy": findings.entropy if claim.mode != "paper" else claim.entropy,
        "notes": list(claim.notes),
        "channels": [asdict(channel) for channel in findings.channels],
        "not_covered": findings.not_covered,
        "updates": None if updates is None else {**updates.claim.as_json(), "rounds": updates.rounds},
        "audits": {name: {**asdict(one), "passed": one.passed} for name, one in findings.audits.items()},
        "accounts": [{**asdict(account), "left": account.left} for account in subject.accounts],
        "membership": [asdict(member) for member in findings.members],
        "reconstruction": [
            {name: value for name, value in vars(one).items() if name != "pictures"} | {"verdict": one.verdict}
            for one in findings.seen
        ],
        "guessing_index": findings.index,
        "bytes": subject.size,
        "versions": versions(),
    }
    plain: dict[str, Any] = _plain(report)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return "infinite" if isinstance(value, float) and math.isinf(value) else value


def versions() -> dict[str, str]:
    found = {}
    for name in ("holdfast", "numpy", "torch", "dp-accounting", "opacus"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
