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
    """A line through the values, from the least to the largest."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 1, high + 1  # a level line is drawn in the middle
    step, scale = width / (len(values) - 1), (height - 4) / (high - low)
    points = " ".join(f"{i * step:.1f},{2 + (high - value) * scale:.1f}" for i, value in enumerate(values))
    line = f'<polyline points="{points}" fill="none" stroke="#0072b2" stroke-width="2"/>'
    return f'<svg role="img" aria-label="{html.escape(label)}" width="{width}" height="{height}">{line}</svg>'
