"""The privacy report as text, as one HTML page that opens from disk without any script, and as PDF."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from datetime import date
from typing import Any

from torch import Tensor

from holdfast.audit.channels import Channel
from holdfast.audit.findings import SHOWN, Findings, claim_holds
from holdfast.audit.reconstruct import psnr
from holdfast.audit.tradeoff import Audit
from holdfast.report.pdf import QUIET, SIZE, Paper
from holdfast.report.privacy_rows import name_of, number, sections
from holdfast.report.privacy_words import Row

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

NEAREST = "The nearest reconstructions. They were made here by the owner and are never sent."
NO_ATTACK = " Nothing was attacked here: this is what its noise promises."


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
