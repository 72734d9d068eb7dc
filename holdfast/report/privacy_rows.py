"""The parts of a privacy report, as tables of text: what is promised, what leaves, what was attacked."""

from __future__ import annotations

import math

from holdfast.audit.findings import Findings, bound_words, versions
from holdfast.audit.target import Account, Updates
from holdfast.report.privacy_words import Row, counts_for, plain_rows


def sections(findings: Findings) -> list[tuple[str, list[Row], str]]:
    """Each part of the report: its heading, its table, and a sentence about it."""
    subject = findings.subject
    parts: list[tuple[str, list[Row], str]] = [("In plain words", plain_rows(findings, findings.client), "")]
    if subject.options is not None:
        parts.append(("What a digest promises", digest_rows(findings), " ".join(subject.claim.notes)))
    if subject.updates is not None:
        rows = update_rows(findings, subject.updates)
        parts.append(("What updates promise", rows, " ".join(subject.updates.claim.notes)))
    spent = "spent" if any(account.counts for account in subject.accounts) else "planned"
    spent = "released before and planned" if subject.site and subject.before else spent
    protected: Row = (f"epsilon of what is protected, all releases, {spent}", number(findings.epsilon_protected))
    total: Row = ("epsilon of all that leaves", number(findings.epsilon_total))
    rest = [("delta", f"{findings.delta:g}"), ("added up", findings.added_up), ("entropy", entropy(findings))]
    parts.append(("In all", [protected, total, *rest], ""))
    parts.append(("What leaves", channel_rows(findings), ""))
    if subject.accounts:
        parts.append(("Ledgers", account_rows(findings), "Spent on digests and protected updates together."))
    if subject.kind == "digest":
        parts.append(("Not covered, in a federation", [(sentence,) for sentence in findings.not_covered], ""))
    if findings.members:
        parts.append(("Attack: which of two records is it?", membership_rows(findings), MEMBERSHIP))
    if findings.audits:
        parts.append(("Audit with canaries", [(name, str(audit)) for name, audit in findings.audits.items()], AUDIT))
    if findings.seen:
        parts.append(("Attack: seeing a record again", seen_rows(findings), SEEN))
    elif subject.kind == "digest":
        parts.append(("Attack: seeing a record again", [(NO_RECORDS,)], ""))
    if findings.index is not None:
        parts.append(("Guessing index", index_rows(findings), INDEX))
    parts.append(("Versions", list(versions().items()), ""))
    return parts


def channel_rows(findings: Findings) -> list[Row]:
    return [("what", "", "how"), *((channel.name, channel.state, channel.says) for channel in findings.channels)]


def digest_rows(findings: Findings) -> list[Row]:
    subject, claim = findings.subject, findings.subject.claim
    rows: list[Row] = [
        ("mode", claim.mode),
        ("adjacency", claim.adjacency),
        ("epsilon asked for (nominal)", number(claim.epsilon_nominal)),
        ("epsilon of the features", number(claim.epsilon_features)),
        ("epsilon of the labels", number(claim.epsilon_labels)),
        ("epsilon of one release", number(claim.epsilon_total)),
        ("that counts", counts_for(claim)),
        ("delta", f"{claim.delta:g}"),
        ("clip", number(claim.clip)),
        ("noise", f"{claim.noise}, scale {claim.scale:.4g} for a sensitivity of {claim.sensitivity:.4g}"),
        ("grid", claim.grid),
    ]
    return rows if subject.size is None else [*rows, ("size", f"{subject.size:,} bytes")]


def update_rows(findings: Findings, updates: Updates) -> list[Row]:
    claim = updates.claim
    return [
        ("mode", claim.mode),
        ("adjacency", claim.adjacency),
        (f"epsilon asked for, for {updates.rounds} rounds", number(claim.epsilon_nominal)),
        ("epsilon of one round", number(claim.epsilon_total)),
        ("epsilon of all updates", number(findings.epsilon_updates)),
        ("delta", f"{claim.delta:g}"),
        ("clip", number(claim.clip)),
        ("noise", f"{claim.noise}, scale {claim.scale:.4g} for a sensitivity of {claim.sensitivity:.4g}"),
        ("grid", claim.grid),
    ]


def account_rows(findings: Findings) -> list[Row]:
    head: Row = ("whose", "releases", "epsilon spent", "of updates alone", "allowed", "left", "")
    rows = [
        (name_of(a), str(a.releases), number(a.spent), number(a.updates), number(a.allowed), number(a.left), a.note)
        for a in findings.subject.accounts
    ]
    return [head, *rows] if any(a.note for a in findings.subject.accounts) else [row[:-1] for row in (head, *rows)]


def name_of(account: Account) -> str:
    return "this house" if account.client is None else f"client {account.client}"


def entropy(findings: Findings) -> str:
    claim = findings.subject.claim
    return claim.entropy if claim.mode == "paper" and findings.subject.updates is None else findings.entropy


MEMBERSHIP = (
    "The adversary knows every other record, and that the last one is one of two. AUC 0.5: it can only guess; 1: it "
    "knows. Limits hold with 99 % confidence."
)
AUDIT = (
    "The real code was run on hundreds of canaries, each in one of two forms by chance, and what left was read from "
    "its bytes; guesses are held to the claim's whole trade-off curve. An audit can refute a claim, never prove one: "
    "what it would have found stands beside it."
)
SEEN = (
    "A decoder was trained on other pictures. PSNR in dB and SSIM, larger is nearer; worst: the 1 % of records "
    "that are seen best. A picture no nearer than its class mean tells of no record in particular, but proves "
    "no privacy."
)
NO_RECORDS = (
    "Not tried: a digest's file has none of its owner's records to compare with. A report on the experiment or on the "
    "run's folder, at the owner's, shows the nearest reconstructions beside their originals."
)
INDEX = "log10 of the chance to split a digest by blind guessing, as published. An index, not a guarantee."


def membership_rows(findings: Findings) -> list[Row]:
    rows: list[Row] = [("records", "AUC", "predicted", "TPR at 1 % FPR", "TPR at 0.1 % FPR")]
    for f in findings.members:
        predicted = "-" if f.predicted is None else f"{f.predicted:.3f}"
        rows.append(
            (
                f.who,
                limits(f.auc, f.auc_limits),
                predicted,
                limits(f.tpr_1, f.tpr_1_limits),
                limits(f.tpr_01, f.tpr_01_limits),
            )
        )
    return rows


def seen_rows(findings: Findings) -> list[Row]:
    head: Row = ("attack", "PSNR (worst)", "class mean (worst)", "SSIM (worst)", "class mean", "nearer than class mean")
    return [head] + [
        (
            s.attack,
            f"{s.psnr:.1f} ({s.psnr_worst:.1f})",
            f"{s.mean_psnr:.1f} ({s.mean_psnr_worst:.1f})",
            f"{s.ssim:.2f} ({s.ssim_worst:.2f})",
            f"{s.mean_ssim:.2f}",
            f"{s.nearer:.0%} of records",
        )
        for s in findings.seen
    ]


def index_rows(findings: Findings) -> list[Row]:
    index = findings.index
    assert index is not None
    rows: list[Row] = [
        ("average, unordered (ordered)", f"{index['average']} ({index['average_ordered']})"),
        ("bound", bound_words(index)),
    ]
    if "worst" in index:
        rows.append(("digests here: easiest, median", f"{index['worst']:.1f}, {index['median']:.1f}"))
        rows.append(("elements that are certain (zero)", str(index["certain_elements"])))
    return rows


def limits(value: float, between: tuple[float, float]) -> str:
    return f"{value:.3f} ({between[0]:.3f} to {between[1]:.3f})"


def number(value: float) -> str:
    """A number for people.

    >>> number(math.inf), number(2.99996)
    ('infinite', '3')
    """
    return "infinite" if math.isinf(value) else f"{value:.4g}"
