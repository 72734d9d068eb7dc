"""Objects as a notebook shows them: a small table of facts, every text escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def card(title: str, rows: Iterable[tuple[str, object]], below: str = "") -> str:
    """A title and facts as HTML.

    >>> card("<b>", [("rounds", 3)])
    '<table><caption style="text-align:left;font-weight:600">&lt;b&gt;</caption><tr><th style="text-align:left">rounds</th><td style="text-align:left">3</td></tr></table>'
    """  # noqa: E501
    left = 'style="text-align:left"'
    cells = "".join(
        f"<tr><th {left}>{html.escape(name)}</th><td {left}>{html.escape(str(value))}</td></tr>" for name, value in rows
    )
    caption = f'<caption style="text-align:left;font-weight:600">{html.escape(title)}</caption>'
    return f"<table>{caption}{cells}</table>{below}"


def curve(values: Sequence[float], label: str, width: int = 320, height: int = 60) -> str:
    """A line through the values; the largest and the least stand beside it, so that a small change looks small."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    level = low == high  # then the line is drawn in the middle
    step, scale = (width - 60) / (len(values) - 1), (height - 12) / ((high - low) or 1.0)
    heights = [height / 2 if level else 6 + (high - value) * scale for value in values]
    points = " ".join(f"{i * step:.1f},{y:.1f}" for i, y in enumerate(heights))
    line = f'<polyline points="{points}" fill="none" stroke="#0072b2" stroke-width="2"/>'
    ends = {heights[0]: low} if level else {6.0: high, height - 6.0: low}
    words = "".join(
        f'<text x="{width - 54}" y="{y + 4:.0f}" font-size="11" fill="currentColor">{value:.3g}</text>'
        for y, value in ends.items()
    )
    shape = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg role="img" aria-label="{html.escape(label)}" {shape}>{line}{words}</svg>'
