"""The privacy report as text, as one HTML page that opens from disk without any script, and as PDF."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence
from datetime import date
from typing import Any

from torch import Tensor

from holdfast.audit.channels import Channel
from holdfast.audit.findings import SHOWN, Findings, bound_words, claim_holds, versions
from holdfast.audit.target import Account, Updates
from holdfast.audit.tradeoff import Audit
from holdfast.report.pdf import QUIET, SIZE, Paper
from holdfast.report.privacy_words import Row, counts_for, plain_rows

STYLE = """
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem; font: 1rem/1.55 system-ui, sans-serif; color: #1d2327;
  background: #fbfaf8; }
h1 { font: 600 1.8rem/1.25 Georgia, serif; margin: 0 0 .3rem; }
h2 { font: 600 1.2rem Georgia, serif; margin: 1.8rem 0 .3rem; }
.verdict { padding: .7rem 1rem; border-left: .4rem solid #5d666d; background: #fff; font-size: 1.05rem; }
.pass { border-color: #009e73; } .fail, .none { border-color: #c84e00; }
.scroll { overflow-x: auto; background: linear-gradient(to left, #fbfaf8 2rem, transparent) right / 4rem 100%,
  linear-gradient(to left, #9aa3a9, transparent) right / .9rem 100%; background-repeat: no-repeat;
  background-attachment: local, scroll; }  /* a shadow where more lies to the right */
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
.facts td:first-child { color: #5d666d; width: 16rem; } ul { margin: .4rem 0; padding-left: 1.2rem; font-size: .92rem; }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #dfdcd6; }
th { color: #5d666d; font-weight: 600; } .quiet { color: #5d666d; font-size: .92rem; }
.facts td { overflow-wrap: anywhere; }
@media (max-width: 36rem) { .facts, .facts tbody, .facts tr, .facts td { display: block; width: auto; }
  .facts td:first-child { border: 0; padding-bottom: 0; width: auto; } }
@media print { body { background: #fff; } h2 { break-after: avoid; } tr { break-inside: avoid; } }
img { image-rendering: pixelated; width: 4.5rem; height: 4.5rem; margin: 0 .3rem .3rem 0; }
@media (prefers-color-scheme: dark) { body { background: #13171a; color: #e9e8e4; } .verdict { background: #1a1f23; }
  .scroll { background-image: linear-gradient(to left, #13171a 2rem, transparent),
    linear-gradient(to left, #6b747a, transparent); }
  th, .quiet, .facts td:first-child { color: #a2abb1; } th, td { border-color: #333b41; } }
"""


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
NEAREST = "The nearest reconstructions. They were made here by the owner and are never sent."
NO_ATTACK = " Nothing was attacked here: this is what its noise promises."
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


def headline(findings: Findings) -> str:
    """The report in one sentence."""
    subject, claim = findings.subject, findings.subject.claim
    unread = ", ".join(map(name_of, subject.unread))
    if findings.verdict == "NO GUARANTEE":
        why = claim.guarantee.removeprefix("no guarantee").strip(" :()")  # the verdict has said so already
        said = [] if claim_holds(findings) else [f"{why[0].upper() + why[1:]}."]
        said += [f"What was released by {unread} is not known: see its ledger."] if unread else []
        return f"NO GUARANTEE. {' '.join([*said, *protected_and_open(findings)])}"
    if findings.verdict == "FAIL":
        audits = "; ".join(f"{name}: {audit}" for name, audit in findings.audits.items())
        return f"FAIL: an attack did better than the claim allows. {audits}"
    said = [f"one digest is {claim.guarantee}"] if subject.options is not None else []
    if subject.updates is not None:
        said.append(f"all updates cost epsilon {number(findings.epsilon_updates)} at delta {claim.delta:g}")
    said.append(f"all releases together epsilon {number(findings.epsilon_total)} ({claim.adjacency})")
    found = found_from(findings)
    power = f" No attack here did better; audits would have found epsilon {found} with 95 %." if found else NO_ATTACK
    alone = " This file alone: in a federation more leaves, see below." if subject.kind == "digest" else ""
    return f"PASS: {'; '.join(said)}.{power}{alone}"


def found_from(findings: Findings) -> str:
    """The power of each audit, in a line."""
    audits = {name: one for name, one in findings.audits.items() if isinstance(one, Audit)}
    return ", ".join(f">= {one.would_find:.2g} ({name})" for name, one in audits.items())


def protected_and_open(findings: Findings) -> list[str]:
    """In words, what is protected and what is not."""
    protected, left_open = (names(findings.in_state(state)) for state in ("protected", "open"))
    if not left_open:
        return []
    said = [f"Not protected: {left_open}; so epsilon of all that leaves is infinite."]
    if protected and claim_holds(findings) and not findings.subject.unread:
        spent = f"epsilon {number(findings.epsilon_protected)} at delta {findings.delta:g}"
        said = [f"Protected: {protected}, together {spent} ({findings.subject.claim.adjacency}).", *said]
    return said


def names(channels: Sequence[Channel]) -> str:
    return ", ".join(channel.name for channel in channels)


def as_text(findings: Findings) -> str:
    """The report to be read in a terminal."""
    lines = [f"What leaves the house: {findings.subject.name}", "", headline(findings)]
    for heading, rows, sentence in sections(findings):
        lines += ["", heading, "-" * len(heading)]
        widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows
        ]
        lines += [sentence] if sentence else []
    return "\n".join(lines) + "\n"


def as_html(findings: Findings) -> str:
    """The report as a page; the owner's pictures are inside, so the page is the owner's to keep."""
    kind = {"PASS": "pass", "FAIL": "fail"}.get(findings.verdict, "none")
    body = [f"<h1>What leaves the house</h1><p class=quiet>{html.escape(findings.subject.name)}</p>"]
    body.append(f"<p class='verdict {kind}'>{html.escape(headline(findings))}</p>")
    for heading, rows, sentence in sections(findings):
        body.append(f"<h2>{html.escape(heading)}</h2>{html_rows(rows)}")
        body += [f"<p class=quiet>{html.escape(sentence)}</p>"] if sentence else []
        if heading.startswith("Attack: seeing") and findings.originals is not None:
            body.append(f"<p>{NEAREST}</p>")
            for name, pictures in picture_rows(findings):
                body.append(f"<p class=quiet>{html.escape(name)}</p><div>{''.join(map(image, pictures))}</div>")
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>What leaves the house</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def as_pdf(findings: Findings) -> bytes:
    return on_paper(findings).content(f"What leaves the house: {findings.subject.name}")


def on_paper(findings: Findings) -> Paper:
    """What the page says, on sheets of paper."""
    name = findings.subject.name
    paper = Paper(f"What leaves the house: {name}, {date.today().isoformat()}")
    paper.text("What leaves the house", 19, name="DejaVu Serif:bold")
    paper.text(name, color=QUIET, after=4)
    paper.verdict(headline(findings), "#009e73" if findings.verdict == "PASS" else "#c84e00")
    for heading, rows, sentence in sections(findings):
        paper.need(70)
        paper.at -= 14
        paper.text(heading, 12, name="DejaVu Serif:bold", after=3)
        paper.table(rows)
        if sentence:
            paper.at -= 3
            paper.text(sentence, SIZE - 0.5, QUIET)
        if heading.startswith("Attack: seeing") and findings.originals is not None:
            paper.at -= 5
            paper.text(NEAREST)
            for said, pictures in picture_rows(findings):
                paper.pictures(said, [pixels_of(picture) for picture in pictures])
    return paper


def html_rows(rows: Sequence[Row]) -> str:
    """Sentences as a list, facts as a table with two columns, anything wider as a table with a head."""
    if len(rows[0]) == 1:
        return f"<ul>{''.join(f'<li>{html.escape(row[0])}</li>' for row in rows)}</ul>"
    wide = len(rows[0]) > 2
    cells = []
    for position, row in enumerate(rows):
        tag = "th" if wide and position == 0 else "td"
        cells.append("<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>")
    return f"<div class=scroll><table class={'wide' if wide else 'facts'}>{''.join(cells)}</table></div>"


def picture_rows(findings: Findings) -> list[tuple[str, Tensor]]:
    """The records that the strongest attack sees best, and what it sees."""
    from holdfast.audit.reconstruct import psnr

    assert findings.originals is not None
    strongest = max(findings.seen, key=lambda one: one.psnr_worst)
    order = psnr(strongest.pictures, findings.originals).argsort(descending=True)[:SHOWN]
    return [("originals", findings.originals[order]), (f"what is seen ({strongest.attack})", strongest.pictures[order])]


def pixels_of(picture: Tensor) -> Any:
    """A picture (channels, height, width) in [0, 1] as an array, grey ones without channels."""
    pixels: Any = picture.clamp(0, 1).permute(1, 2, 0).numpy()
    return pixels if pixels.shape[2] == 3 else pixels.mean(2)


def image(picture: Tensor) -> str:
    """A picture as an image tag."""
    from matplotlib.image import imsave

    file = io.BytesIO()
    imsave(file, pixels_of(picture), cmap="gray", vmin=0, vmax=1, format="png")
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'


def limits(value: float, between: tuple[float, float]) -> str:
    return f"{value:.3f} ({between[0]:.3f} to {between[1]:.3f})"


def number(value: float) -> str:
    """A number for people.

    >>> number(math.inf), number(2.99996)
    ('infinite', '3')
    """
    return "infinite" if math.isinf(value) else f"{value:.4g}"
