"""The privacy report's first screen: what leaves and what it can show, for somebody who is no researcher."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date

import torch

from holdfast.audit.findings import Findings
from holdfast.privacy.accounting import group_epsilon
from holdfast.privacy.claim import Claim

Row = Sequence[str]
LEAVES = {
    "protected": "with noise, counted in the ledger",
    "open": "exactly, without protection",
    "public": "exactly; the promise does not cover it",
    "off": "stays at home",
}


def plain_rows(findings: Findings, client: int = 0) -> list[Row]:
    """Who, which data, what leaves, what it can show, what is left, whom to ask."""
    subject = findings.subject
    rows: list[Row] = [("about", f"{subject.name}, {date.today().isoformat()}"), *data_rows(findings, client)]
    for state, how in LEAVES.items():
        if named := ", ".join(channel.name for channel in findings.in_state(state)):
            rows.append((how, named))
    rows.append(("what it can show", shows(findings)))
    rows.append(("what it cannot show", hides(findings)))
    if math.isfinite(subject.claim.epsilon_total):
        rows.append(("epsilon counts", counts_for(subject.claim)))
    if accounts := [account for account in subject.accounts if account.client in (None, client)]:
        account = accounts[0]
        left = (
            "no bound is set" if math.isinf(account.allowed) else f"epsilon {account.left:.3g} of {account.allowed:g}"
        )
        rows.append(("left of the budget", f"{left}, after {account.releases} releases"))
    rows.append(("whom to ask", next((p.contact for p in subject.policies if p is not None and p.contact), NOBODY)))
    return rows


NOBODY = "nobody is named; write `contact` into the policy"


def data_rows(findings: Findings, client: int) -> list[Row]:
    """Whose data, and how many records and persons."""
    plan = findings.subject.plan
    if plan is None:
        digest = findings.subject.digest
        return [] if digest is None else [("records", f"{digest.samples} of task {digest.task or 'unknown'}")]
    own = torch.cat(plan.parts[client])
    said = f"{len(own):,} of {plan.task.name}"
    rows: list[Row] = [("whose", plan.experiment.name_of(client)), ("records", said)]
    if plan.task.person is None:
        return [*rows, ("patients", "not known: the data have no column that says whose a record is")]
    whose = plan.task.train.facts[plan.task.person]
    persons = torch.unique(whose[own])
    others = [torch.cat(part) for id, part in enumerate(plan.parts) if id != client]
    elsewhere = int(torch.isin(persons, whose[torch.cat(others)]).sum()) if others else 0
    told = f"{len(persons):,}"
    if elsewhere:
        told += f", of whom {elsewhere:,} have records at other clients too: {TWICE}"
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
    several = group_epsilon(claim, 5)
    if math.isfinite(several) and not claim.for_patients:
        told += f" (50% is chance), for a person with five records {success(several, delta):.1%} by one digest"
    return told


def hides(findings: Findings) -> str:
    if math.isinf(findings.epsilon_total):
        return "nothing is promised; a reconstruction that failed here proves little"
    return (
        f"more than that about any {'patient' if findings.subject.claim.for_patients else 'one record'}, whatever else "
        "somebody knows; facts about the whole group are no secret"
    )
