"""The page: one HTML file that opens from disk, with its style, its script and its data inside."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"
SCRIPTS = ("data.js", "draw.js", "heat.js", "sections.js", "curves.js", "moderator.js", "page.js")


def page(content: Mapping[str, Any], live: bool = False) -> str:
    """The page for a payload; a live one goes on listening to the server it came from.

    Its security policy allows exactly this script, so a run's texts can never become code.
    """
    script = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = json.dumps({**content, "live": live}, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    title = next(iter(content["headline"]), "Holdfast")
    parts = {
        "TITLE": html.escape(title),
        "POLICY": f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
        + ("; connect-src 'self'" if live else ""),
        "STYLE": (STATIC / "page.css").read_text(encoding="utf-8"),
        "DATA": data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"),
        "SCRIPT": script,
    }
    text = (STATIC / "page.html").read_text(encoding="utf-8")
    pieces = text.split("%%")
    return "".join(parts[piece] if position % 2 else piece for position, piece in enumerate(pieces))
