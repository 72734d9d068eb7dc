"""What `make coverage` measured, in words: `python tests/support/covered.py build/coverage.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LEAST = 8  # files that are named


def told(found: Mapping[str, Any]) -> str:
    """The share of lines, when it was measured, what is not counted, and the files that are reached least."""
    lines = found["summary"]["covered_lines"] + found["summary"]["missing_lines"]
    share, day = found["summary"]["percent_covered"], found["meta"]["timestamp"][:10]
    least = sorted(found["files"].items(), key=lambda file: file[1]["summary"]["percent_covered"])[:LEAST]
    files = ", ".join(f"{name} {one['summary']['percent_covered']:.0f} %" for name, one in least)
    return (
        f"Coverage: the quick tests run {share:.1f} % of the package's {lines:,} lines (`make coverage`, {day}; what\n"
        f"runs in worker processes, at Flower's sites and in a browser is not counted). Least: {files}."
    )


if __name__ == "__main__":
    sys.stdout.write(told(json.loads(Path(sys.argv[1]).read_text())) + "\n")
