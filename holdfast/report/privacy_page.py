"""The privacy report as text and as one HTML page that opens from disk, without any script."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from holdfast.privacy.findings import NOT_COVERED, SHOWN, Findings, versions

Row = Sequence[str]
STYLE = """
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem; font: 1rem/1.55 system-ui, sans-serif; color: #1d2327;
  background: #fbfaf8; }
h1 { font: 600 1.8rem/1.25 Georgia, serif; margin: 0 0 .3rem; }
h2 { font: 600 1.2rem Georgia, serif; margin: 1.8rem 0 .3rem; }
.verdict { padding: .7rem 1rem; border-left: .4rem solid #5d666d; background: #fff; font-size: 1.05rem; }
.pass { border-color: #009e73; } .fail, .none { border-color: #c84e00; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #dfdcd6; }
th { color: #5d666d; font-weight: 600; } .quiet { color: #5d666d; font-size: .92rem; }
img { image-rendering: pixelated; width: 4.5rem; height: 4.5rem; margin: 0 .3rem .3rem 0; }
@media (prefers-color-scheme: dark) { body { background: #13171a; color: #e9e8e4; } .verdict { background: #1a1f23; }
  th, .quiet { color: #a2abb1; } th, td { border-color: #333b41; } }
"""


def sections(findings: Findings) -> list[tuple[str, list[Row], str]]:
    """Each part of the report: its heading, its table, and a sentence about it."""
    subject, claim = findings.subject, findings.subject.claim
    entropy = claim.entropy if claim.mode == "paper" else findings.entropy
    promise: list[Row] = [
        ("mode", claim.mode),
        ("adjacency", claim.adjacency),
        ("epsilon asked for (nominal)", number(claim.epsilon_nominal)),
        ("epsilon of the features", number(claim.epsilon_features)),
        ("epsilon of the labels", number(claim.epsilon_labels)),
        ("epsilon of one release", number(claim.epsilon_total)),
        ("epsilon over all releases", number(findings.epsilon_total)),
        ("delta", f"{claim.delta:g}"),
        ("clip", number(claim.clip)),
        ("noise", f"{claim.noise}, scale {claim.scale:.4g} for a sensitivity of {claim.sensitivity:.4g}"),
        ("grid", claim.grid),
        ("entropy", entropy),
    ]
    if subject.size is not None:
        promise.append(("size", f"{subject.size:,} bytes"))
    parts = [("What is promised", promise, " ".join(claim.notes))]
    if subject.accounts:
        head: Row = ("client", "releases", "epsilon spent", "allowed", "left")
        rows = [
            (
                str(a.client),
                str(a.releases),
                number(a.spent),
                number(a.allowed),
                number(a.left) + (a.note and f": {a.note}"),
            )
            for a in subject.accounts
        ]
        parts.append(("Ledgers", [head, *rows], "The total holds for all that a client has released from its records."))
    parts.append(("Not covered", [(sentence,) for sentence in NOT_COVERED], ""))
    parts.append(("Attack: which of two records is it?", membership_rows(findings), MEMBERSHIP))
    parts.append(("Audit with canaries", [(str(findings.audit),)], AUDIT))
    if findings.seen:
        parts.append(("Attack: seeing a record again", seen_rows(findings), SEEN))
    parts.append(("Guessing index", index_rows(findings), INDEX))
    parts.append(("Versions", list(versions().items()), ""))
    return parts


MEMBERSHIP = (
    "The adversary knows every other record, and that the last one is one of two. AUC 0.5: it can only guess; 1: it "
    "knows. Limits hold with 99 % confidence."
)
AUDIT = (
    "The real release was made again and again with each of two canaries. An audit can refute a claim, it cannot prove "
    "one; it shows nothing beyond its cap, however weak the release."
)
SEEN = (
    "A decoder was trained on other pictures. PSNR in dB and SSIM, larger is nearer; worst: the 1 % of records "
    "that are seen best. A picture no nearer than its class mean tells of no record in particular, but proves "
    "no privacy."
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
    if index is None:
        return [("does not apply: nothing is mixed in groups",)]
    holds = "holds" if index["paper_bound_holds"] else "does NOT hold at this SpD"
    rows: list[Row] = [
        ("average, unordered (ordered)", f"{index['average']} ({index['average_ordered']})"),
        ("the published bound", f"{index['paper_bound']}, which {holds}"),
    ]
    if "worst" in index:
        rows.append(("digests here: easiest, median", f"{index['worst']:.1f}, {index['median']:.1f}"))
        rows.append(("elements that are certain (zero)", str(index["certain_elements"])))
    return rows


def headline(findings: Findings) -> str:
    """The report in one sentence."""
    claim = findings.subject.claim
    if findings.verdict == "NO GUARANTEE":
        return f"NO GUARANTEE. {claim.guarantee[0].upper() + claim.guarantee[1:]}."
    if findings.verdict == "FAIL":
        return f"FAIL: an attack did better than the claim allows. {findings.audit}"
    return (
        f"PASS: one release is {claim.guarantee}; over all releases epsilon {number(findings.epsilon_total)}. No "
        "attack here did better."
    )


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
        wide = len(rows[0]) > 2
        cells = []
        for position, row in enumerate(rows):
            tag = "th" if wide and position == 0 else "td"
            cells.append("<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>")
        body.append(f"<h2>{html.escape(heading)}</h2><div class=scroll><table>{''.join(cells)}</table></div>")
        body += [f"<p class=quiet>{html.escape(sentence)}</p>"] if sentence else []
        if heading.startswith("Attack: seeing") and findings.originals is not None:
            body.append(picture_rows(findings))
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>What leaves the house</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def picture_rows(findings: Findings) -> str:
    """The records that the strongest attack sees best, and what it sees."""
    from holdfast.privacy.reconstruct import psnr

    assert findings.originals is not None
    strongest = max(findings.seen, key=lambda one: one.psnr_worst)
    order = psnr(strongest.pictures, findings.originals).argsort(descending=True)[:SHOWN]
    rows = [("originals", findings.originals[order]), (f"what is seen ({strongest.attack})", strongest.pictures[order])]
    text = "".join(
        f"<p class=quiet>{html.escape(name)}</p><div>{''.join(map(image, pictures))}</div>" for name, pictures in rows
    )
    return f"<p>The nearest reconstructions. They were made here by the owner and are never sent.</p>{text}"


def image(picture: Tensor) -> str:
    """One picture (channels, height, width) in [0, 1] as an image tag."""
    from matplotlib.image import imsave

    pixels: Any = picture.clamp(0, 1).permute(1, 2, 0).numpy()
    file = io.BytesIO()
    imsave(file, pixels if pixels.shape[2] == 3 else pixels.mean(2), cmap="gray", vmin=0, vmax=1, format="png")
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'


def limits(value: float, between: tuple[float, float]) -> str:
    return f"{value:.3f} ({between[0]:.3f} to {between[1]:.3f})"


def number(value: float) -> str:
    """A number for people.

    >>> number(math.inf), number(2.99996)
    ('infinite', '3')
    """
    return "infinite" if math.isinf(value) else f"{value:.4g}"
