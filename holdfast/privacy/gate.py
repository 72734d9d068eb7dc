"""Where a client keeps its policy and its ledger, and the door through which a release leaves.

A client's folder is `clients/NNNN` of a run, or of what a real site keeps of an experiment. Its policy is the nearest
`privacy.toml` there or in the three folders above: its own, the run's, or the site's, which holds for all of the
site's experiments. Only where there is none, the policy counts that the experiment names: a moderator can be stricter
than a client, never laxer. The ledger lies in the client's folder; at a real site (known by its identity.json) in the
site's, because there all experiments release from the same records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.failures import ABOUT_THE_QUESTION, Refusal
from holdfast.core.files import make_folder
from holdfast.core.types import Tensors
from holdfast.privacy.channels import CARRIER, OFF
from holdfast.privacy.claim import Claim
from holdfast.privacy.ledger import MODES, Ledger, Policy, check, read_ledger, read_policy, spend

POLICY = "privacy.toml"
LEDGER = "privacy-ledger.json"
SITE = "identity.json"  # what a real site keeps in its folder
LARGEST_DELTA = 1e-3
LEVELS = 3  # clients/NNNN -> clients -> the run, or a site's experiment -> the site


@dataclass(frozen=True)
class House:
    """A client's policy, and the ledger of what it has released; without a folder there is no ledger."""

    policy: Path | None
    ledger: Path | None

    def read_policy(self, delta: float) -> Policy:
        """What the client allows; without a policy everything is, and entered all the same."""
        return Policy(math.inf, delta, MODES) if self.policy is None else read_policy(self.policy)

    def read_ledger(self) -> Ledger:
        return Ledger() if self.ledger is None else read_ledger(self.ledger)


def house_of(folder: Path | None, named: str | None = None) -> House:
    """The house of the client that keeps its things in this folder; `named` is the experiment's policy."""
    here = [] if folder is None else [folder, *folder.absolute().parents[:LEVELS]]
    policy = next((path / POLICY for path in here if (path / POLICY).is_file()), None)
    if policy is None and named is not None:
        policy = named_policy(named)
    site = next((path for path in here if (path / SITE).is_file()), folder)
    return House(policy, None if site is None else site / LEDGER)


def named_policy(named: str) -> Path:
    """The file of a policy that an experiment names: itself, or the one in a folder."""
    policy = Path(named).expanduser()
    return policy / POLICY if policy.is_dir() else policy


def beside(policy: Path | None) -> House:
    """The house of one client alone, whose ledger lies beside its policy wherever its digests go."""
    return House(policy, None if policy is None else policy.parent / LEDGER)


def check_delta(delta: float, records: int, where: str, insist: str) -> None:
    """Refuse a delta that promises nothing: with delta = 1 / records, to publish one record whole would keep it."""
    if delta > (most := min(LARGEST_DELTA, 1 / max(1, records))):
        raise Refusal(
            "delta",
            f"{where}: {delta:g} is above {most:.2g}, the lesser of {LARGEST_DELTA:g} and 1 / {records} records, so it "
            f"promises little; lower it, or insist with {insist}.",
        )


def let_out(house: House, claim: Claim, what: str, series: str = "") -> None:
    """Enter a release in the ledger, or refuse it; only after this returns may the release leave."""
    policy = house.read_policy(claim.delta)
    if house.ledger is None:
        if house.policy is not None:
            raise Refusal(
                "ledger",
                f"policy {house.policy}: what is released cannot be entered in a ledger, as the run has no folder; "
                "nothing was released: give the run a folder.",
            )
        check(policy, Ledger(), claim, series)
        return
    make_folder(house.ledger.parent)
    spend(policy, house.ledger, claim, what, series)


def pass_gate(policy: Policy | None, tensors: Tensors, scalars: Mapping[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """What of a reply leaves: parts whose channel is off stay at home, and so does whatever no channel declares."""
    if policy is None:
        return tensors, dict(scalars)
    said = dict(scalars)
    for part in {*(name.split("/", 1)[0] for name in tensors), *said}:
        if part not in CARRIER:
            raise Refusal("undeclared", f"{part!r} is no part of a reply that a channel declares; nothing left.")
    closed = {part for part, channel in CARRIER.items() if policy.rule(channel.name).state == OFF}
    if "buffers" in closed and any(name.startswith("buffers/") for name in tensors):
        raise Refusal("closed", "policy: the model has buffers, which are off; nothing left: see [channels].")
    kept = {name: tensor for name, tensor in tensors.items() if name.split("/", 1)[0] not in closed}
    return kept, {name: value for name, value in said.items() if name not in closed}


def tell_code(policy: Policy | None, code: str) -> str:
    """The code that leaves for an error: one that may depend on records is withheld where the channel is off."""
    withheld = policy is not None and policy.rule("errors").state == OFF and code not in ABOUT_THE_QUESTION
    return "withheld" if withheld else code
