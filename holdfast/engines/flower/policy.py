"""A site's own word on what may be asked of it, in a TOML file on its own disk; enforced there, before anything runs.

experiments = ["3f5a..."]   # fingerprints of the experiments it takes part in; left out: any
max_rounds = 50             # how often it trains for one experiment
digest = true               # whether a digest of its data may leave the house

[privacy]                   # what digests and updates may cost in all, for the site's ledger: see privacy/ledger.py
max_epsilon = 3.0
delta = 1e-5
modes = ["moments"]
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from holdfast.errors import HoldfastError, nearest
from holdfast.experiment import Experiment
from holdfast.files import append_line, make_folder, read_lines, write_file
from holdfast.privacy.house import POLICY
from holdfast.privacy.ledger import read_policy
from holdfast.tables import read_table, toml


@dataclass(frozen=True)
class SitePolicy:
    """What a site allows."""

    experiments: tuple[str, ...] | None = None
    max_rounds: int | None = None
    digest: bool = True
    privacy: dict[str, Any] | None = None


KINDS: dict[str, type] = {"experiments": list, "max_rounds": int, "digest": bool, "privacy": dict}
CARRIED = "# Written from [privacy] of the site's policy file: change it there."


def read_site_policy(path: Path) -> SitePolicy:
    """A policy from its file; an unknown key or a wrong value is an error, and then nothing runs."""
    try:
        table = read_table(path)
    except HoldfastError as error:
        raise HoldfastError(
            f"policy {path}: it cannot be read ({error}); this site does nothing until it can."
        ) from None
    for key, value in table.items():
        if key not in KINDS:
            raise HoldfastError(
                f"policy {path}: {key!r} is not known; {nearest(key, [f.name for f in fields(SitePolicy)])}"
            )
        if type(value) is not KINDS[key]:
            raise HoldfastError(f"policy {path}: {key} has the wrong type: {value!r}.")
    if "experiments" in table:
        if not all(isinstance(item, str) for item in table["experiments"]):
            raise HoldfastError(f"policy {path}: experiments must be a list of fingerprints.")
        table["experiments"] = tuple(table["experiments"])
    return SitePolicy(**table)


def carry_privacy(policy: SitePolicy, folder: Path) -> None:
    """Put the policy's [privacy] where whatever the site releases looks for it (privacy/house.py), and check it."""
    path = folder / POLICY
    ours = path.exists() and path.read_text(encoding="utf-8").startswith(CARRIED)
    if policy.privacy is None:
        if ours:
            path.unlink()
        return
    if path.exists() and not ours:
        raise HoldfastError(f"{path} and [privacy] of the site's policy both say what may leave; keep one of them.")
    text = f"{CARRIED}\n{toml(policy.privacy)}\n".encode()
    if not ours or path.read_bytes() != text:
        make_folder(folder)
        write_file(path, text)
    read_policy(path)


def fingerprint_of(experiment: Experiment) -> str:
    """SHA-256 of what decides the result, whichever folder a site keeps its data in."""
    task = Path(experiment.task).name if experiment.task.endswith(".npz") else experiment.task
    return replace(experiment, data=None, task=task).fingerprint


def check_experiment(policy: SitePolicy, fingerprint: str) -> None:
    if policy.experiments is not None and fingerprint not in policy.experiments:
        raise HoldfastError(
            f"the site's policy does not allow experiment {fingerprint[:12]}...; add its fingerprint to `experiments` "
            "there if the site agrees to it."
        )


def count_training(policy: SitePolicy, folder: Path, round: int) -> None:
    """Enter one more training in the site's own book, or refuse: the moderator's count is not taken for it."""
    book = folder / "trainings.jsonl"
    done = len(read_lines(book))
    if policy.max_rounds is not None and done >= policy.max_rounds:
        raise HoldfastError(f"the site's policy allows {policy.max_rounds} trainings for an experiment: all are used.")
    make_folder(folder)
    append_line(book, {"round": round})


def draw_token(folder: Path) -> str:
    """The token by which this site is known again; drawn once, kept on its disk."""
    path = folder / "identity.json"
    if not path.exists():
        make_folder(folder)
        write_file(path, json.dumps({"token": token_hex(32)}).encode())
    token = json.loads(path.read_text()).get("token")
    if not isinstance(token, str) or len(token) != 64:
        raise HoldfastError(f"{path} is damaged; delete it if this site has never joined a run that still goes on.")
    return token
