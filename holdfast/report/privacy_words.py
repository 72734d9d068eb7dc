"""The privacy report's first screen: what leaves and what it can show, for somebody who is no researcher."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date

import torch

from holdfast.audit.findings import Findings
from holdfast.audit.target import Account
from holdfast.privacy.accounting import group_epsilon
from holdfast.privacy.claim import Claim

Row = Sequence[str]
LEAVES = {
    "protected": "leaves with noise, counted in the ledger",
    "open": "leaves exactly, without protection",
    "public": "leaves exactly, not covered by the promise",
    "off": "stays at home",
}


def plain_rows(findings: Findings, client: int = 0) -> list[Row]:
    """Who, which data, when, what leaves, what it can show, what is left, whom to ask."""
    subject = findings.subject
    rows: list[Row] = [*data_rows(findings, client), ("date", date.today().isoformat())]
    for state, how in LEAVES.items():
        if named := ", ".join(channel.name for channel in findings.in_state(state)):
            rows.append((how, named))
    rows.append(("what it can show", shows(findings)))
    rows.append(("what it cannot show", hides(findings)))
    if math.isfinite(subject.claim.epsilon_total):
        rows.append(("epsilon counts", counts_for(subject.claim)))
    accounts = [account for account in subject.accounts if account.client in (None, client)]
    rows.append(("left of the budget", budget(findings, accounts[0] if accounts else None)))
    rows.append(("whom to ask", next((p.contact for p in subject.policies if p is not None and p.contact), NOBODY)))
    if findings.signed:
        rows.append(
            (
                "signed with the key",
                f"{findings.signed}, in the file .sig beside this one: `holdfast privacy verify` checks it",
            )
        )
    return rows


def budget(findings: Findings, account: Account | None) -> str:
    """What is left of a client's budget, and what the experiment takes of it."""
    subject = findings.subject
    if account is not None and account.note:
        return f"not known: {account.note}"
    bounds = [policy.max_epsilon for policy in subject.policies if policy is not None]
    allowed = min(bounds, default=math.inf) if account is None else account.allowed
    if math.isinf(allowed):
        return "no bound is set: write `max_epsilon` into the policy"
    spent = 0 if account is None else account.releases
    left = f"epsilon {allowed if account is None else account.left:.3g} of {allowed:g}"
    left += f", after {spent} release{'' if spent == 1 else 's'}"
    if subject.kind != "experiment":
        return left
    asked = subject.claim.mode
    if not all(policy is None or asked in policy.modes for policy in subject.policies):
        return f"{left}; the policy does not allow {asked!r}, so nothing of this experiment would leave"
    after = findings.epsilon_protected
    used = f"{left}; with all that this experiment plans, {after:.3g} would be used".replace("inf ", "without bound ")
    return f"{used}: more than that, so the last of it would be refused" if after > allowed else used


NOBODY = "nobody is named; write `contact` into the policy"


def data_rows(findings: Findings, client: int) -> list[Row]:
    """Who, for what, which data, and how many records and persons."""
    subject, plan = findings.subject, findings.subject.plan
    if plan is None:
        digest, known = subject.digest, subject.task or "an unknown task"
        records = [] if digest is None else [("records", f"{digest.samples:,}")]
        return [("digest", subject.name), ("which data", known), *records]
    own = torch.cat(plan.parts[client])
    where = f", from {subject.data}" if subject.data else ""
    rows: list[Row] = [
        ("who", subject.site or plan.experiment.name_of(client)),
        (subject.kind, subject.name),
        ("which data", f"{plan.task.name}{where}"),
        ("records", f"{len(own):,}"),
    ]
    if plan.task.person is None:
        return [*rows, ("patients", "not known: the data have no column that says whose a record is")]
    whose = plan.task.train.facts[plan.task.person]
    persons = torch.unique(whose[own])
    others = torch.cat([torch.cat(part) for part in plan.parts])
    elsewhere = int(torch.isin(persons, whose[others[~torch.isin(others, own)]]).sum())
    told = f"{len(persons):,}"
    if elsewhere:
        told += f", of whom {elsewhere:,} have records at other clients too: {TWICE}"
    if subject.site:
        told += f"; whether other sites know them too is not seen here: {TWICE}"
    return [*rows, ("patients", told)]


TWICE = "nobody is covered twice, what several clients promise adds up"


def counts_for(claim: Claim) -> str:
    """Whom epsilon counts for, in words.

    >>> from holdfast.privacy.counts import noised_counts
    >>> from holdfast.privacy.noise import system
    >>> counts_for(noised_counts([10.0], 1.0, 3.0, 1e-5, system())[1])
    'per record; for a person with 5 records this is about 21'
    """
    if claim.for_patients:
        return f"per patient with all records, at this site; of a patient known at two sites {TWICE}"
    several = group_epsilon(claim, 5)
    if math.isinf(several):
        return "per record; what it is for a person with several is not known"
    return f"per record; for a person with 5 records this is about {several:.0f}"


def success(epsilon: float, delta: float) -> float:
    """How often the best guess whether a record was used can be right, where it is as likely as not before.

    TPR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon (1 - TPR) + delta bound (TPR + 1 - FPR) / 2, at its largest
    where the errors are alike, by (e^epsilon + delta) / (e^epsilon + 1).

    >>> round(success(0.0, 0.0), 3), round(success(1.0, 1e-5), 3), round(success(3.0, 1e-5), 3)
    (0.5, 0.731, 0.953)
    """
    return 1.0 if epsilon > 500 else (math.exp(epsilon) + delta) / (math.exp(epsilon) + 1)


def shows(findings: Findings) -> str:
    """What somebody may learn who receives everything that leaves."""
    epsilon, delta = findings.epsilon_total, findings.delta
    if math.isinf(epsilon):
        updates = any(channel.name == "updates" for channel in findings.in_state("open"))
        more = "; from updates of the model, records have been reconstructed" if updates else ""
        return f"without a bound: somebody may be able to tell whether a certain record was used{more}"
    claim = findings.subject.claim
    unit = "patient's records were" if claim.for_patients else "record was"
    told = f"whether a certain {unit} used can be guessed right at most {success(epsilon, delta):.0%} of the time"
    told += " (50% is chance)"
    several = group_epsilon(claim, 5)
    if math.isfinite(several) and not claim.for_patients:
        told += f", for a person with five records {success(several, delta):.0%} by one release"
    return told


def hides(findings: Findings) -> str:
    if math.isinf(findings.epsilon_total):
        return "nothing is promised; a reconstruction that failed here proves little"
    return (
        f"more than that about any {'patient' if findings.subject.claim.for_patients else 'one record'}, whatever else "
        "somebody knows; facts about the whole group are no secret"
    )
