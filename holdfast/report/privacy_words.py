"""The privacy report's first screen: what leaves and what it can show, for somebody who is no researcher."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date

import torch

from holdfast.audit.findings import Findings
from holdfast.privacy.accounting import group_epsilon

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
    if plan.task.person is None:
        said += "; who they belong to is not known, so the promise is for a record, not for a person"
    else:
        persons = len(torch.unique(plan.task.train.facts[plan.task.person][own]))
        said += f", of {persons:,} persons; the promise is for a record, and weaker for who has several"
    return [("whose", plan.experiment.name_of(client)), ("records", said)]


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
    told = f"whether a certain record was used can be guessed right at most {success(epsilon, delta):.0%} of the time"
    several = group_epsilon(findings.subject.claim, 5)
    if math.isfinite(several):
        told += f" (50% is chance), for a person with five records {success(several, delta):.1%} by one digest"
    return told


def hides(findings: Findings) -> str:
    if math.isinf(findings.epsilon_total):
        return "nothing is promised; a reconstruction that failed here proves little"
    return (
        "more than that about any one record, whatever else somebody knows; facts about the whole group are no secret"
    )
