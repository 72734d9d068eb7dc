"""A site's own word on what may be asked of it, in a TOML file on its own disk; enforced there, before anything runs.

experiments = ["3f5a..."]   # fingerprints of the experiments it takes part in; left out: any
max_rounds = 50             # how often it trains for one experiment
min_records = 50            # the fewest records that any of its answers may be about
digest = true               # whether a digest of its data may leave the house
approvals = 2               # how many people must approve an experiment first (`holdfast site approve`); left out: none
approvers = "approvers"     # folder of their public keys NAME.pub: only what these signed counts
members = "keys"            # folder of the members' public keys: it tests nothing that none of them signed, and takes
                            # part in secure sums with these members alone

[privacy]                   # what digests and updates may cost in all, for the site's ledger: see privacy/ledger.py
max_epsilon = 3.0
delta = 1e-5
modes = ["moments"]
protect_updates = true      # what a finite max_epsilon means anyway, unless the file says false
open = ["evaluate"]         # exact answers that leave all the same: "test", "evaluate"; left out: none
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from holdfast.core.errors import HoldfastError, nearest
from holdfast.core.failures import Refusal
from holdfast.core.files import make_folder, write_file
from holdfast.core.tables import read_table, toml
from holdfast.data.sources.described import read_description
from holdfast.data.tables.schema import read_schema
from holdfast.privacy.gate import POLICY
from holdfast.privacy.ledger import read_policy
from holdfast.runs.experiment import SOURCES, Experiment


@dataclass(frozen=True)
class SitePolicy:
    """What a site allows."""

    experiments: tuple[str, ...] | None = None
    max_rounds: int | None = None
    min_records: int = 50
    digest: bool = True
    members: Path | None = None
    approvals: int = 0
    approvers: Path | None = None
    privacy: dict[str, Any] | None = None


KINDS: dict[str, type] = {
    "experiments": list,
    "max_rounds": int,
    "min_records": int,
    "digest": bool,
    "members": str,
    "approvals": int,
    "approvers": str,
    "privacy": dict,
}
WITHDRAWN = "withdrawn.json"
CARRIED = "# Written from [privacy] of the site's policy file: change it there."


def read_site_policy(path: Path) -> SitePolicy:
    """A policy from its file; an unknown key or a wrong value is an error, and then nothing runs."""
    try:
        table = read_table(path)
    except HoldfastError as error:
        raise Refusal(
            "policy", f"policy {path}: it cannot be read ({error}); this site does nothing until it can."
        ) from None
    for key, value in table.items():
        if key not in KINDS:
            raise Refusal(
                "policy", f"policy {path}: {key!r} is not known; {nearest(key, [f.name for f in fields(SitePolicy)])}"
            )
        if type(value) is not KINDS[key]:
            raise Refusal("policy", f"policy {path}: {key} has the wrong type: {value!r}.")
    if "experiments" in table:
        if not all(isinstance(item, str) for item in table["experiments"]):
            raise Refusal("policy", f"policy {path}: experiments must be a list of fingerprints.")
        table["experiments"] = tuple(table["experiments"])
    for key in ("members", "approvers"):
        if key in table:
            table[key] = path.parent / Path(table[key]).expanduser()
    if table.get("approvals", 0) < (1 if "approvers" in table else 0):
        raise Refusal("policy", f"policy {path}: approvals must say how many people approve an experiment first.")
    return SitePolicy(**table)


def carry_privacy(policy: SitePolicy, folder: Path) -> None:
    """Put the policy's [privacy] where whatever the site releases looks for it (privacy/gate.py), and check it."""
    path = folder / POLICY
    ours = path.exists() and path.read_text(encoding="utf-8").startswith(CARRIED)
    if policy.privacy is None:
        if ours:
            path.unlink()
        return
    if path.exists() and not ours:
        raise Refusal("policy", f"{path} and [privacy] of the site's policy both say what may leave; keep one of them.")
    text = f"{CARRIED}\n{toml(policy.privacy)}\n".encode()
    if not ours or path.read_bytes() != text:
        make_folder(folder)
        write_file(path, text)
    read_policy(path)


def fingerprint_of(experiment: Experiment) -> str:
    """SHA-256 of what decides the result, whichever folder a site keeps its data in."""
    task = experiment.task
    source = next((source for source in SOURCES if task.startswith(source)), "")
    path = Path(task.removeprefix(source))
    if source and path.suffix == ".toml":  # what the description says counts, wherever its file lies
        task = f"{source}{path.stem}@{read_description(path, source.removesuffix(':')).fingerprint}"
    elif source or task.endswith(".npz"):
        task = source + path.name
    elif task.endswith(".toml"):
        schema = read_schema(path)
        task = f"{schema.name}@{schema.fingerprint}"
    return replace(experiment, data=None, test=None, task=task).fingerprint


def check_experiment(policy: SitePolicy, fingerprint: str) -> None:
    if policy.experiments is not None and fingerprint not in policy.experiments:
        raise Refusal(
            "stranger",
            f"the site's policy does not allow experiment {fingerprint[:12]}...; add its fingerprint to `experiments` "
            "there if the site agrees to it.",
        )


def bind_client(folder: Path, client: int, clients: int) -> None:
    """Be the client that one was first asked as in this experiment, for good; refuse to be another."""
    path = folder / "client.json"
    if not 0 <= client < clients:
        raise Refusal("identity", f"it is asked to be client {client} of {clients}.")
    if not path.exists():
        make_folder(folder)
        write_file(path, json.dumps({"client": client}).encode())
    try:
        bound = json.loads(path.read_text())["client"]
    except (OSError, ValueError, TypeError, KeyError):
        raise Refusal("identity", f"{path} is damaged, so it is not known which client this site is.") from None
    if bound != client:
        raise Refusal("identity", f"this site is client {bound} of the experiment, and is asked as client {client}.")


def withdraw(folder: Path, by: str) -> None:
    """Note in a site's folder of an experiment that the site has withdrawn from it, for good."""
    make_folder(folder)
    note = {"by": by, "when": datetime.now(UTC).isoformat(timespec="seconds")}
    write_file(folder / WITHDRAWN, json.dumps(note).encode())


def check_withdrawn(folder: Path) -> None:
    if (folder / WITHDRAWN).exists():
        raise Refusal("withdrawn", f"this site has withdrawn from the experiment: {folder / WITHDRAWN}.")


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
