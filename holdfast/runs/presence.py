"""Which sites are connected, and since when: kept in the run's folder for whoever watches the run."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.core.files import write_file
from holdfast.core.tables import read_table

PRESENCE = "presence.json"


class Presence:
    """Written when it changes; a moderator that was started again goes on with what it knew."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._told: dict[str, Any] = read_presence(path.parent) if path else {}

    def saw(self, connected: Mapping[str, bool], refused: Collection[str]) -> None:
        """Which sites have a node, and why other nodes were turned away."""
        before = self._told.get("sites", {})
        now = datetime.now(UTC).isoformat(timespec="seconds")
        sites = {
            name: old if (old := before.get(name, {})).get("connected") is there else {"connected": there, "since": now}
            for name, there in connected.items()
        }
        self._keep({**self._told, "sites": sites, "refused": sorted(refused)})

    def waits(self, sites: Collection[str], asked: Collection[str]) -> None:
        """Of those asked, the sites whose people have not approved the experiment yet."""
        others = {*self._told.get("approval", ())} - {*asked}
        self._keep({**self._told, "approval": sorted(others | {*sites})})

    def _keep(self, told: dict[str, Any]) -> None:
        if self._path is not None and told != self._told:
            write_file(self._path, json.dumps(told, indent=1).encode())
        self._told = told


def read_presence(folder: Path) -> dict[str, Any]:
    """What was last kept; nothing of a run on one machine, or where the file is damaged: it is for looking only."""
    try:
        told = read_table(folder / PRESENCE) if (folder / PRESENCE).is_file() else {}
    except HoldfastError:
        return {}
    sites = told.get("sites", {})
    lists = all(isinstance(told.get(key, []), list) for key in ("refused", "approval"))
    whole = isinstance(sites, dict) and all(isinstance(one, dict) and "since" in one for one in sites.values())
    return told if whole and lists else {}
