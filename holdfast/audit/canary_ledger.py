"""Does the ledger count? Releases are let out of a house that was made for it, until its policy must refuse.

The house allows a claim's release three times (once where composing is slow). Each must be on disk once it was let
out, for no less than a sum of the auditor's own: squares of Gaussian ratios add up, and so do steps of DP-SGD and, at
delta 0, pure epsilons. The next release, beyond the budget, must be refused. Nothing of the user's is touched.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.core.failures import Refusal
from holdfast.privacy.accounting import compose
from holdfast.privacy.claim import Claim
from holdfast.privacy.gate import LEDGER, POLICY, beside, let_out
from holdfast.privacy.ledger import read_ledger
from holdfast.privacy.noise import SEEDED, SYSTEM

RELEASES = 3
LEAST = 1e-3  # what the auditor's own sum may differ by


@dataclass(frozen=True)
class Counted:
    """Whether a ledger counts what is let out."""

    passed: bool
    says: str

    def __str__(self) -> str:
        return f"{'not refuted' if self.passed else 'REFUTED'}: {self.says}."


def audit_ledger(claim: Claim) -> Counted:
    """Let a claim's releases out until the budget is used up, and look at what was entered."""
    if claim.entropy == SEEDED:
        claim = replace(claim, entropy=SYSTEM)  # a seeded release is refused for another reason
    releases = 1 if claim.epsilon_pure and claim.ratio else RELEASES
    allowed = compose([claim] * releases, claim.delta)
    with tempfile.TemporaryDirectory() as folder:
        house = beside(Path(folder) / POLICY)
        modes = f'"{claim.mode}"' if claim.mode != "counts" else ""
        text = f"max_epsilon = {allowed * (1 + LEAST)!r}\ndelta = {claim.delta!r}\nmodes = [{modes}]\n"
        (Path(folder) / POLICY).write_text(text, encoding="utf-8")
        for number in range(1, releases + 1):
            try:
                let_out(house, claim, f"audit {number}")
                ledger = read_ledger(Path(folder) / LEDGER)
            except Refusal as refusal:
                return Counted(False, f"release {number} of {releases}, within the budget, ended in: {refusal}")
            if len(ledger.entries) != number or ledger.entries[-1].claim != claim:
                return Counted(
                    False, f"{number} releases left, and the ledger on disk has {len(ledger.entries)} of them"
                )
            if (said := ledger.epsilon(claim.delta)) < together(claim, number) * (1 - LEAST):
                return Counted(False, f"{number} releases left, and the ledger says they cost epsilon {said:.4g} only")
        try:
            let_out(house, claim, "audit, beyond the budget")
        except Refusal as refusal:
            if refusal.code == "budget":
                return Counted(True, f"{releases} were entered before they left, the one after was refused")
        return Counted(False, f"a release beyond the budget of epsilon {allowed:.4g} was not refused")


def together(claim: Claim, releases: int) -> float:
    """What so many releases cost at least, as one of the same kind with those parts added up that simply add up."""
    one = replace(
        claim,
        ratio=claim.ratio * math.sqrt(releases),
        epsilon_pure=claim.epsilon_pure * (1 if claim.delta else releases),
        steps=claim.steps * releases,
    )
    return compose([one], claim.delta)
