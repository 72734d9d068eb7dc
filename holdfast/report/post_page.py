"""What a federation by post writes down: the report of a model made from digests, and its privacy page."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from holdfast.by_post import Outcome, Posted
from holdfast.data.kinds import kind_of
from holdfast.heads.choosing import Fitted
from holdfast.report.privacy_page import STYLE, html_rows
from holdfast.report.privacy_rows import number
from holdfast.report.privacy_words import Row

Section = tuple[str, Sequence[Row], str]
ONLY = "One file left each house. No rounds were played: no model, update, loss or metric of a member was ever sent."
AFTERWARDS = (
    "The model and this report are computed from the digests alone: whatever a digest promises of a record, they keep."
)
TWICE = "Promises hold for records at one site; what a person with records at several sites can lose adds up."


def report_json(outcome: Outcome) -> dict[str, Any]:
    """All that the report says, for a machine."""
    fitted, origin = outcome.fitted, outcome.origin
    digests = []
    for post, adds, counted in zip(outcome.posts, fitted.adds, outcome.counted, strict=True):
        claim = post.subject.claim
        digests.append({
            "file": post.file, "site": post.origin.site, "made": post.origin.made, "expires": post.origin.expires,
            "signature": post.signature, "records": post.records, "counted": counted, "adds": adds,
            "contradicted": outcome.contradicted.get(post.origin.site), "guarantee": claim.guarantee,
            "epsilon": number(claim.epsilon_total), "delta": claim.delta,
        })  # fmt: skip
    return {
        "task": origin.task,
        "encoder": origin.encoder,
        "classes": list(origin.class_names),
        "head": fitted.name,
        "model": fitted.model,
        "kind": origin.kind,
        "measure": fitted.measure,
        "expected": None if math.isnan(fitted.expected) else fitted.expected,
        "at_most": fitted.at_most,
        "judged_by": fitted.judges,
        "heads": dict(fitted.judged),
        "digests": digests,
        "disagreements": [list(pair) for pair in outcome.disagreements],
    }


def report_sections(outcome: Outcome) -> list[Section]:
    fitted, origin = outcome.fitted, outcome.origin
    facts: list[Row] = [
        ("task", f"{origin.task}, {kind_of(origin.kind).words(len(origin.class_names))}"),
        ("encoder", origin.encoder),
        ("head", f"{fitted.name} (model {fitted.model})"),
        (f"{fitted.measure} to expect", expectation(outcome)),
    ]
    found: list[Section] = [("The model", facts, "")]
    if len(fitted.judged) > 1:
        order = sorted(fitted.judged.items(), key=lambda one: -one[1])
        rows: list[Row] = [(head, f"{value:.1%}") for head, value in order]
        found.append(("Heads compared", rows, COMPARED))
    table: list[Row] = [("site", "records", "adds", "signature", "expires", "the others")]
    table += [
        digest_row(outcome, post, adds, counted)
        for post, adds, counted in zip(outcome.posts, fitted.adds, outcome.counted, strict=True)
    ]
    found.append(("The digests", table, ADDS + doubt_of(fitted)))
    if not kind_of(origin.kind).has_classes:
        return found
    pairs: list[Row] = [
        (f"{one}'s classes lie nearer to other classes of {other}'s than to their own ({agreement:+.2f}).",)
        for one, other, agreement in outcome.disagreements
    ]
    nobody: list[Row] = [("No two digests disagree about where classes lie.",)]
    found.append(("Who contradicts whom", pairs or nobody, ""))
    return found


COMPARED = (
    "Accuracy on rows of the digests that were left out of the fit. Another head than kernel is chosen only if it is "
    "ahead by more than two standard errors."
)
ADDS = (
    "What it adds: the expected accuracy with all digests, less that without this one. To withdraw a digest, train "
    "again without it: nothing of it is left."
)


def doubt_of(fitted: Fitted) -> str:
    return (
        f" Judged by {fitted.judges:,} rows: {100 * chance(fitted):.0f} points may be chance." if fitted.judges else ""
    )


def chance(fitted: Fitted) -> float:
    """Half of the 95 % interval of an accuracy that is judged by some rows."""
    return 1.96 * math.sqrt(max(fitted.expected * (1 - fitted.expected), 1 / fitted.judges) / fitted.judges)


def expectation(outcome: Outcome) -> str:
    fitted = outcome.fitted
    if math.isnan(fitted.expected):
        return "not known: these digests and this head cannot tell; try the model on records of your own"
    if fitted.measure == "R2":
        return f"{fitted.expected:.3f}, by generalised cross-validation"
    if fitted.at_most is not None:
        return (
            f"{fitted.expected:.1%} to {fitted.at_most:.1%}, from moments, which do not say how far records are from "
            "Gaussian; try the model on records of your own"
        )
    within = f"{fitted.expected:.1%} (± {100 * chance(fitted):.1f} points)"
    return f"{within}, from {fitted.judges:,} rows that were left out of the fit; rows are smoother than records"


def digest_row(outcome: Outcome, post: Posted, adds: float | None, counted: int) -> Row:
    records = f"{post.records:,}" + (f", {counted:,} count" if counted < post.records else "")
    agreement = outcome.contradicted.get(post.origin.site)
    against = "-" if agreement is None else f"contradict it ({agreement:+.2f})"
    fitted = outcome.fitted
    added = "-" if adds is None else f"{adds:+.3f}" if fitted.measure == "R2" else f"{100 * adds:+.1f} points"
    return post.origin.site, records, added, post.signature, post.origin.expires or "never", against


def privacy_sections(outcome: Outcome) -> list[Section]:
    rows: list[Row] = [("site", "mode", "promise")]
    rows += [(post.origin.site, post.subject.claim.mode, post.subject.claim.guarantee) for post in outcome.posts]
    notes = dict.fromkeys(note for post in outcome.posts for note in post.subject.claim.notes)
    words: list[Row] = [(ONLY,), (AFTERWARDS,), (TWICE,), *((note,) for note in notes)]
    return [
        ("What each digest promises", rows, "Recomputed from its settings; what a file claims is not believed."),
        ("What this means", words, "`holdfast privacy report FILE` attacks a single digest."),
    ]


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """One HTML file without any script."""
    body = [f"<h1>{html.escape(title)}</h1><p class=verdict>{html.escape(lead)}</p>"]
    for heading, rows, sentence in sections:
        body.append(f"<h2>{html.escape(heading)}</h2>{html_rows(rows)}")
        body += [f"<p class=quiet>{html.escape(sentence)}</p>"] if sentence else []
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def report_page(outcome: Outcome) -> str:
    sites = ", ".join(post.origin.site for post in outcome.posts)
    measure = outcome.fitted.measure.capitalize()
    lead = f"A model of {outcome.origin.task} from the digests of {sites}. {measure} to expect: {expectation(outcome)}."
    return page("A federation by post", lead, report_sections(outcome))


def privacy_page(outcome: Outcome) -> str:
    worst = max(post.subject.claim.epsilon_total for post in outcome.posts)
    lead = f"Epsilon of all that left a house: {number(worst)} at most. {ONLY}"
    return page("What left the houses", lead, privacy_sections(outcome))
