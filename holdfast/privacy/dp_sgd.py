"""Updates protected by DP-SGD (Abadi et al. 2016): what all of a client's updates together may tell of one record.

A round takes ceil(n / batch_size) steps an epoch, each with the records that chance q = batch_size / n puts into its
batch (dp_steps.py). The noise multiplier is the smallest with which all planned rounds together cost epsilon at delta,
one record replaced (accounting.py).

What follows a noised gradient is post-processing and costs nothing: clip_norm, every optimiser's steps and what it
keeps (momentum, Adam's moments), weight decay, and every algorithm's correction, which is a function of the model that
was sent, the moderator's memory and the client's own earlier updates (SCAFFOLD's c_i, FedDyn's g_i), all of them noised
and paid for. By its signature it never sees a record.

A round is entered in the client's ledger before its training begins, and its reply is kept: a client that is asked the
very same again (a run that was killed, a lost reply) answers with the same bytes, which costs nothing. Anything else
is a new release, with new noise, and costs again; when what was promised for the experiment is used up, the client
sends no more updates.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from holdfast.context import Owner
from holdfast.core.files import Damaged, Store, load_tensors, read_metadata, save_tensors
from holdfast.core.tensors import bytes_of
from holdfast.core.types import Message, Reply
from holdfast.learning.settings import Learning
from holdfast.privacy import claim as claims
from holdfast.privacy.accounting import steps_epsilon
from holdfast.privacy.claim import Claim
from holdfast.privacy.dp_steps import GRID, Noisy
from holdfast.privacy.gate import check_delta, house_of, let_out
from holdfast.privacy.ledger import DP_SGD, SECURE_SUM
from holdfast.privacy.noise import Source, system
from holdfast.privacy.patients import for_patients
from holdfast.secure_sum.options import SecureSum

NEAR = 5e-3  # how near to epsilon the calibration must come
LARGEST = 50.0  # an epsilon beyond it protects nobody


@dataclass(frozen=True)
class Unprotected:
    """Updates leave as they are."""


@dataclass(frozen=True)
class DpSgd:
    """All of a client's updates together are (epsilon, delta)-private."""

    epsilon: float = 3.0  # over all planned rounds
    delta: float = 1e-5
    large_delta: bool = False  # insist on a delta above 1e-3 or 1 / records
    clip: float = 1.0  # the most that one record's gradient counts
    policy: str | None = None  # a policy file for clients that have none of their own

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= LARGEST:
            raise ValueError(f"epsilon must be positive and at most {LARGEST:g}, got {self.epsilon}.")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie between 0 and 1, got {self.delta}.")
        if not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be positive, got {self.clip}.")


PROTECTIONS: dict[str, type[Any]] = {"none": Unprotected, DP_SGD: DpSgd, SECURE_SUM: SecureSum}


@dataclass(frozen=True)
class Guard:
    """What stands between a client's training and the door."""

    options: DpSgd
    rounds: int  # planned
    series: str  # the experiment: what was promised holds for all of its updates
    keep: int = 4  # replies

    def claim(self, records: int, learning: Learning, source: Source) -> Claim:
        """What one round's update of so many records promises."""
        rate, steps = plan_steps(records, learning)
        multiplier = noise_multiplier(self.options.epsilon, self.options.delta, rate, steps * self.rounds)
        return claim_of(self.options, multiplier, rate, steps, source)

    def admit(
        self,
        owner: Owner,
        records: int,
        learning: Learning,
        round: int,
        source: Source | None = None,
        whose: Tensor | None = None,
    ) -> Noisy:
        """Enter one more update in the client's ledger, or refuse it; only then may it be made, with this noise.

        whose: the patient of each record; `records` are then patients (privacy/patients.py).
        """
        source = source or system()
        if not self.options.large_delta:
            check_delta(self.options.delta, records, "protect.delta", "large_delta = true")
        claim = self.claim(records, learning, source)
        claim = claim if whose is None else for_patients(claim)
        what = f"update of {owner.about.task or 'the model'}, client {owner.id}, round {round + 1}"
        let_out(house_of(owner.memory.folder, self.options.policy), claim, what, f"{self.series}/{owner.id}")
        return Noisy(claim.clip, claim.multiplier, claim.rate, learning.batch_size, source, whose)


def plan_steps(records: int, learning: Learning) -> tuple[float, int]:
    """The chance of a record to be in a batch, and the steps of a round.

    >>> plan_steps(100, Learning(epochs=2, batch_size=40)), plan_steps(10, Learning(batch_size=40))
    ((0.4, 6), (1.0, 1))
    """
    return min(1.0, learning.batch_size / records), learning.steps(records, poisson=True)


def claim_of(options: DpSgd, multiplier: float, rate: float, steps: int, source: Source) -> Claim:
    """The claim of so many steps; its nominal epsilon is what was promised for all planned rounds."""
    cost = steps_epsilon(multiplier, rate, steps, options.delta)
    return Claim(
        mode=DP_SGD,
        adjacency=claims.REPLACE_ONE,
        epsilon_nominal=options.epsilon,
        epsilon_features=cost,
        epsilon_labels=cost,
        epsilon_total=cost,
        delta=options.delta,
        noise="gaussian (floating point)",
        scale=multiplier * options.clip,
        sensitivity=2 * options.clip,
        grid=f"2^{math.log2(GRID):.0f} of the noise's scale",
        clip=options.clip,
        entropy=source.guarantee,
        multiplier=multiplier,
        rate=rate,
        steps=steps,
        notes=(
            f"Each of a round's {steps} steps takes a record with chance {rate:.4g}; clip, scale and sensitivity are "
            "those of a step's sum of gradients.",
            "The noise of updates is floating point, rounded to a grid, not the exact discrete noise of digests.",
        ),
    )


@lru_cache(maxsize=1024)
def noise_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The smallest noise, in units of the clip bound, with which so many steps cost at most epsilon at delta."""
    low, high, middle = 0.0, math.inf, max(1.0, 4 * rate * math.sqrt(steps) / epsilon)
    while True:
        cost = steps_epsilon(middle, rate, steps, delta)
        if epsilon * (1 - NEAR) <= cost <= epsilon:
            return middle
        low, high = (middle, high) if cost > epsilon else (low, middle)
        guess = middle * min(4.0, max(0.25, cost / (epsilon * (1 - NEAR / 2))))  # epsilon falls about as 1 / s
        middle = guess if low < guess < high else (low + high) / 2


class Kept:
    """The replies of its last rounds that a client keeps on disk, each for the very message it answers."""

    def __init__(self, folder: Path | None, keep: int) -> None:
        self._folder, self._keep = folder and folder / "updates", keep

    def read(self, message: Message) -> Reply | None:
        """The reply to this message, if it was given before and is whole."""
        if self._folder is None or not (self._folder / _name(message)).is_file():
            return None
        try:
            data = Store(self._folder).read(_name(message))
            about, tensors = read_metadata(data), load_tensors(data)
        except Damaged:
            return None
        if about.get("asked") != hash_of(message):
            return None
        return Reply(message.client, tensors, json.loads(about["scalars"]))

    def write(self, message: Message, reply: Reply) -> Reply:
        if self._folder is not None:
            about = {"asked": hash_of(message), "scalars": json.dumps(reply.scalars)}
            Store(self._folder).write(_name(message), save_tensors(reply.tensors, about))
            for path in self._folder.glob("*.safetensors"):  # too old, or answers to what this reply makes void
                if not message.round - self._keep < int(path.stem) <= message.round:
                    path.unlink(missing_ok=True)
        return reply


def _name(message: Message) -> str:
    return f"{message.round:06d}.safetensors"


def hash_of(message: Message) -> str:
    """SHA-256 of all that a message says."""
    found = hashlib.sha256(json.dumps([message.client, message.round, message.job, message.scalars]).encode())
    for name, tensor in sorted(message.tensors.items()):
        found.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        found.update(bytes_of(tensor.contiguous()))
    return found.hexdigest()
