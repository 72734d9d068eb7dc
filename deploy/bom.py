"""A bill of materials as CycloneDX 1.5 JSON: what requirements.lock names, with the licences that packages state.

`make bom` writes build/bom.json. Nothing is fetched; a package that is not installed, or states no licence, says so.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LONGEST = 60  # letters; more is the text of a licence rather than its name


def bill(lock: str) -> dict[str, Any]:
    """The whole document, the same for the same lock and the same packages."""
    own = re.search(r'__version__ = "(.+)"', (ROOT / "holdfast" / "__init__.py").read_text())
    subject = {"type": "application", "name": "holdfast", "version": own[1] if own else "unknown"}
    named = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", lock, re.MULTILINE)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**subject, "licenses": [{"license": {"name": "see LICENSE"}}]}},
        "components": [component(name, version) for name, version in named],
    }


def component(name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"
    found = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return {**found, "licenses": [licence_of(name)]}


def licence_of(name: str) -> dict[str, Any]:
    """What a package says of its licence: an SPDX expression, its classifiers, or a short text."""
    try:
        told: PackageMetadata = metadata(name)
    except PackageNotFoundError:
        return {"license": {"name": "unknown: not installed here"}}
    if expression := told.get("License-Expression"):
        return {"expression": expression}
    listed = [line.split(" :: ")[-1] for line in told.get_all("Classifier") or () if line.startswith("License :: ")]
    text = (told.get("License") or "").strip().split("\n")[0]
    names = " and ".join(dict.fromkeys(one for one in listed if one != "OSI Approved"))
    return {"license": {"name": names or (text if 0 < len(text) <= LONGEST else "unknown: the package states none")}}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(bill((ROOT / "requirements.lock").read_text()), indent=1) + "\n")
