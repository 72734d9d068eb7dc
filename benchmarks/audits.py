"""Bugs planted in the code that protects records, and how many audits find each; right code must raise few alarms.

python benchmarks/audits.py [AUDITS [TRIALS [NAME]]]  60 audits a bug, 200 of right code, 500 trials, claim epsilon 3

NAME: the table is kept as docs/results/NAME.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from saved import save

from holdfast.absence import FedDig
from holdfast.audit.canary_digests import audit_digest
from holdfast.audit.canary_ledger import audit_ledger
from holdfast.audit.canary_updates import attack_updates
from holdfast.audit.target import Updates
from holdfast.digests import moments as summary
from holdfast.digests.release import claim_of
from holdfast.privacy import dp_sgd, dp_steps, ledger, mechanisms, moment_noise
from holdfast.privacy.grid import quantise
from holdfast.privacy.noise import gaussian, scale_at_least, system

EPSILON, DELTA = 3.0, 1e-5
RATE, STEPS, ROUNDS = 0.2, 2, 3  # of DP-SGD


# The bugs -------------------------------------------------------------------------------------------------------


@contextmanager
def noise_at(share: float) -> Iterator[None]:
    """All noise is smaller than it should be."""
    normals = dp_steps.normals
    with ExitStack() as bugs:
        for module in (moment_noise, mechanisms):
            less = lambda count, scale, source: gaussian(count, scale_at_least(scale * share), source)  # noqa: E731
            bugs.enter_context(patch.object(module, "gaussian", less))
        bugs.enter_context(patch.object(dp_steps, "normals", lambda count, source: share * normals(count, source)))
        yield


def exact_centres() -> Any:
    """The second stage of moments measures from the exact sums, not from what the first stage let out."""

    def stages(features: Any, labels: Any, classes: int, scales: Any, source: Any) -> Any:
        z = quantise(features, moment_noise.GRID)
        first = moment_noise.stage_one(z.values, labels, classes, scales, source)
        centres = moment_noise.centres_of(moment_noise.exact_first(z.values, labels, classes), scales)
        return first, centres, moment_noise.stage_two(z.values, labels, centres, scales, source), z.clipped

    return patch.object(summary, "stages", stages)


def no_clipping() -> Any:
    """DP-SGD adds its noise to gradients as long as they are."""
    return patch.object(dp_steps, "shorten", lambda each, clip: torch.ones(len(each[0])))


def true_labels() -> Any:
    """Mixed digests say the labels as they are."""
    return patch.object(mechanisms, "randomised_response", lambda labels, *_: labels.astype(np.int64))


def ledger_forgets() -> Any:
    """Nothing is entered."""
    return patch.object(ledger, "_write", lambda *_: None)


# The audits -----------------------------------------------------------------------------------------------------


def digest_audit(mode: Any, trials: int) -> bool:
    """Whether audits of a digest find anything wrong."""
    options = FedDig(mode=mode, epsilon=EPSILON, delta=DELTA)
    found = audit_digest(options, claim_of(options, (8,), 10), 8, trials, system())
    return any(not one.passed for one in found.values())


def updates_audit(_: str, trials: int) -> bool:
    claim = updates_claim()
    return not attack_updates(Updates(claim, ROUNDS), trials, system())[1].passed


def updates_claim() -> Any:
    multiplier = dp_sgd.noise_multiplier(EPSILON, DELTA, RATE, STEPS * ROUNDS)
    return dp_sgd.claim_of(dp_sgd.DpSgd(EPSILON, DELTA), multiplier, RATE, STEPS, system())


def ledger_audit(_: str, trials: int) -> bool:
    return not audit_ledger(claim_of(FedDig(mode="moments", epsilon=EPSILON, delta=DELTA), (8,), 10)).passed


Audit = Callable[[Any, int], bool]
BUGS: dict[str, tuple[Callable[[], Any], Audit, str]] = {
    "noise halved, moments": (lambda: noise_at(1 / 2), digest_audit, "moments"),
    "noise halved, mixed": (lambda: noise_at(1 / 2), digest_audit, "dp-label-public"),
    "noise halved, updates": (lambda: noise_at(1 / 2), updates_audit, ""),
    "noise at a third, moments": (lambda: noise_at(1 / 3), digest_audit, "moments"),
    "second stage around exact sums": (exact_centres, digest_audit, "moments"),
    "DP-SGD without clipping": (no_clipping, updates_audit, ""),
    "labels without randomisation": (true_labels, digest_audit, "dp-full"),
    "a ledger that does not count": (ledger_forgets, ledger_audit, ""),
}
RIGHT: dict[str, tuple[Audit, str]] = {
    "moments": (digest_audit, "moments"),
    "mixed": (digest_audit, "dp-label-public"),
    "mixed, labels hidden": (digest_audit, "dp-full"),
    "updates": (updates_audit, ""),
}


def main(audits: int, trials: int) -> dict[tuple[str, str], str]:
    cells: dict[tuple[str, str], str] = {}
    for name, (bug, audit, mode) in BUGS.items():
        with bug():
            found = sum(audit(mode, trials) for _ in range(audits))
        cells[name, "found"] = f"{found} of {audits}"
        print(f"{name:34} found in {found} of {audits} audits of {trials} trials", flush=True)
    total = 200 * audits // 60
    for name, (audit, mode) in RIGHT.items():
        alarms = sum(audit(mode, trials) for _ in range(total))
        cells[f"right code, {name}: false alarms", "found"] = f"{alarms} of {total}"
        print(f"right code, {name:22} {alarms} alarms in {total} audits", flush=True)
    return cells


if __name__ == "__main__":
    torch.set_num_threads(1)
    numbers = [int(word) for word in sys.argv[1:3]]
    found = main(*(numbers + [60, 500][len(numbers) :]))
    if len(sys.argv) == 4:
        print(save(sys.argv[3], found, [], corner="bug"))
