"""The client's own word: a policy of what may leave the house, and a ledger of what has.

The ledger is written and on the disk *before* a release leaves, so a crash can only overstate what was spent. Beside it
stands a small file that counts its entries: with it, a ledger that was deleted, or put back from an older copy, is told
from one that never was. The lock says once and for all that a release was entered, should both be gone. Whatever is
wrong with either file, nothing is released.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from holdfast.core.errors import HoldfastError, brief, nearest
from holdfast.core.failures import Refusal
from holdfast.core.files import write_file
from holdfast.core.tables import read_table
from holdfast.jobs import JOBS
from holdfast.privacy.accounting import compose
from holdfast.privacy.chain import check_head, links, read_witness, write_witness
from holdfast.privacy.channels import OFF, OPEN, Rule, read_rules, usual_rule
from holdfast.privacy.claim import Claim
from holdfast.privacy.counts import COUNTS
from holdfast.privacy.filters import filtered_epsilon
from holdfast.privacy.noise import SEEDED

SCHEMA = 1
USED = "A release was entered in the ledger beside this file.\n"
DP_SGD = "dp-sgd"  # of updates; the other modes are of digests
OPENED = {  # what `open` names: jobs, for short
    "test": ("reports", "backdoors"), "evaluate": ("metrics",), "panel": ("panel",), "replay": ("panel",),
    "confirm": ("panel",), "scale": ("scaling",),
}  # fmt: skip
SECURE_SUM = "secure-sum"  # of digests, of which only the members' total leaves
MODES = ("moments", "dp-full", "dp-label-public", "sums", "paper", DP_SGD, SECURE_SUM)
GAUSSIAN = frozenset(("moments", "sums", SECURE_SUM))  # modes that have no other noise
MORE = ("min_spd", "protect_updates", "contact", "adaptive")  # keys of a policy that are taken as they are


@dataclass(frozen=True)
class Policy:
    """What a client allows; max_epsilon holds for all its releases together, at this delta."""

    max_epsilon: float
    delta: float
    modes: tuple[str, ...]
    min_spd: int = 1
    protect_updates: bool | None = None  # whether updates may leave only with noise; none: where epsilon is limited
    open: tuple[str, ...] = ()  # jobs that answer exactly although epsilon is limited
    contact: str = ""  # whom to ask at this house
    adaptive: bool = False  # whether later budgets may be chosen after seeing earlier answers (filters.py)
    witness: Path | None = None  # a file elsewhere that holds the ledger's head, too (chain.py)
    channels: Mapping[str, Rule] = field(default_factory=dict)  # what it says of single channels (channels.py)

    def __post_init__(self) -> None:
        if not self.max_epsilon > 0:
            raise Refusal("policy", f"policy: max_epsilon must be positive (inf allows all), got {self.max_epsilon!r}.")
        if not 0 <= self.delta < 1:
            raise Refusal("policy", f"policy: delta must lie between 0 and 1, got {self.delta!r}.")
        if self.min_spd < 1:
            raise Refusal("policy", f"policy: min_spd must be at least 1, got {self.min_spd!r}.")
        for mode in self.modes:
            if mode not in MODES:
                raise Refusal("policy", f"policy: mode {mode!r} is not known; {nearest(mode, MODES)}")
        for job in self.open:
            known = sorted({*OPENED, *(name for name, one in JOBS.items() if one.exact)})
            if job not in known:
                raise Refusal("policy", f"policy: open: {job!r} is no job that can be opened; {nearest(job, known)}")
        if self.protect_updates is None:
            object.__setattr__(self, "protect_updates", self.limited)

    @property
    def limited(self) -> bool:
        """Whether there is a bound on epsilon."""
        return self.max_epsilon < math.inf

    def total(self, claims: Sequence[Claim]) -> float:
        """Epsilon at the policy's delta of releases together."""
        if self.adaptive and self.limited:
            return filtered_epsilon(claims, self.max_epsilon, self.delta, GAUSSIAN.issuperset(self.modes))
        return compose(claims, self.delta)

    def rule(self, channel: str) -> Rule:
        """What holds for a channel."""
        if channel in self.channels:
            return self.channels[channel]
        if any(channel in OPENED.get(job, ()) for job in self.open):
            return Rule(OPEN)
        return usual_rule(channel, self.limited)

    def refuses(self, job: str) -> bool:
        """Whether a job is refused: the channel of its answer is off, or it has none and its answer is exact."""
        if job in OPENED:
            return self.rule(OPENED[job][0]).state == OFF
        return self.limited and job not in self.open


@dataclass(frozen=True)
class Entry:
    """One release: what, when, and what it promised; those of one series share what was promised for all of them."""

    what: str
    when: str
    claim: Claim
    series: str = ""


@dataclass(frozen=True)
class Ledger:
    """All releases made from one client's data."""

    entries: tuple[Entry, ...] = ()
    lines: tuple[dict[str, Any], ...] = field(default=(), compare=False)  # the entries as they were written

    @property
    def links(self) -> list[str]:
        """Of the hash chain (chain.py); the last one is its head."""
        return links(self.lines)

    @property
    def claims(self) -> list[Claim]:
        return [entry.claim for entry in self.entries]

    def epsilon(self, delta: float) -> float:
        return compose(self.claims, delta)


def read_policy(path: Path) -> Policy:
    """A policy from its TOML file; an unknown or missing key is an error."""
    try:
        table = read_table(path)
    except HoldfastError as error:
        raise Refusal("policy", f"policy {path}: it cannot be read ({error}); nothing is released.") from None
    kinds: dict[str, type[Any] | tuple[type[Any], ...]]
    kinds = {"max_epsilon": (int, float), "delta": (int, float), "modes": list, "min_spd": int, "protect_updates": bool}
    kinds |= {"open": list, "channels": dict, "contact": str, "witness": str, "adaptive": bool}
    for key, value in table.items():
        if key not in kinds:
            raise Refusal("policy", f"policy {path}: {key!r} is not known; {nearest(key, kinds)}")
        if not isinstance(value, kinds[key]) or isinstance(value, bool) != (kinds[key] is bool):
            raise Refusal("policy", f"policy {path}: {key} has the wrong type: {brief(value)}.")
    for key in ("max_epsilon", "delta", "modes"):
        if key not in table:
            raise Refusal("policy", f"policy {path}: {key} is missing; say what may leave the house.")
    for key in ("modes", "open"):
        if not all(isinstance(name, str) for name in table.get(key, [])):
            raise Refusal("policy", f"policy {path}: {key} must be a list of names.")
    try:
        numbers: dict[str, Any] = {key: float(table[key]) for key in ("max_epsilon", "delta")}
    except OverflowError:
        raise Refusal("policy", f"policy {path}: max_epsilon or delta is too large for a number.") from None
    more: dict[str, Any] = {key: table[key] for key in MORE if key in table}
    if "witness" in table:
        more["witness"] = Path(table["witness"]).expanduser()
        if not more["witness"].is_absolute():
            raise Refusal("policy", f"policy {path}: witness must be a whole path, to a place other than the ledger's.")
    rules = read_rules(table.get("channels", {}), f"policy {path}")
    return Policy(modes=tuple(table["modes"]), open=tuple(table.get("open", ())), channels=rules, **numbers, **more)


def check(policy: Policy, ledger: Ledger, claim: Claim, series: str = "") -> float:
    """The total epsilon after this release, or a refusal before anything leaves."""
    if claim.mode not in (*policy.modes, COUNTS):  # counts are noised where a channel says so
        allowed = ", ".join(policy.modes) or "none"
        text = f"policy: mode {claim.mode!r} is not allowed (allowed: {allowed}); nothing was released."
        raise Refusal("mode", text)
    if claim.entropy == SEEDED:
        raise Refusal(
            "mode", "policy: noise from a seed protects nobody; nothing was released, use the system's entropy."
        )
    if 0 < claim.spd < policy.min_spd:
        raise Refusal(
            "mixing",
            f"policy: some digest mixes {claim.spd} record{'s' if claim.spd > 1 else ''}, fewer than min_spd = "
            f"{policy.min_spd}; nothing was released.",
        )
    if series:
        before = [entry.claim for entry in ledger.entries if entry.series == series]
        if compose([*before, claim], claim.delta) > claim.epsilon_nominal:
            raise Refusal(
                "budget",
                f"ledger: {len(before)} releases have used up epsilon {claim.epsilon_nominal:g} at delta "
                f"{claim.delta:g}, which was promised for all of them; nothing was released.",
            )
    after = policy.total([*ledger.claims, claim])
    if not ledger.entries and claim.delta <= policy.delta:
        after = min(after, claim.epsilon_total)  # it holds as it stands, without the accountant's margin for rounding
    if after > policy.max_epsilon:
        raise Refusal(
            "budget",
            f"policy: this release would bring the total to epsilon {after:.4g} at delta {policy.delta:g}, above "
            f"max_epsilon = {policy.max_epsilon:g} ({policy.total(ledger.claims):.4g} is spent already); "
            "nothing was released.",
        )
    return after


def spend(policy: Policy, path: Path, claim: Claim, what: str, series: str = "") -> Ledger:
    """Check a release and enter it in the ledger on disk; only after this returns may the release leave."""
    with _locked(path) as lock:
        ledger = read_ledger(path)
        if policy.witness is not None:
            check_head(ledger.links, read_witness(policy.witness), f"the witness {policy.witness}")
        check(policy, ledger, claim, series)
        entry = Entry(what, datetime.now(UTC).isoformat(timespec="seconds"), claim, series)
        ledger = Ledger((*ledger.entries, entry), (*ledger.lines, _line(entry)))
        _write(path, ledger)
        if not _used(path):
            lock.write(USED)
            lock.flush()
            os.fsync(lock.fileno())
        if policy.witness is not None:
            write_witness(policy.witness, ledger.links[-1])
    return ledger


def read_ledger(path: Path) -> Ledger:
    """The ledger of a client; empty only if there never was one."""
    counted = _counted(path)
    if not path.exists():
        if counted or (counted is None and _used(path)):
            entered = f"{counted} releases were" if counted else "its count is gone with it and a release was"
            raise Refusal(
                "ledger",
                f"ledger {path}: it is missing although {entered} entered; nothing is released until it is put back.",
            )
        return Ledger()  # also after a crash before the first entry: a release leaves only once it is counted
    try:
        content = json.loads(path.read_bytes())
        body = {"schema": content["schema"], "entries": content["entries"]}
        whole = set(content) == {*body, "sha256"} and content["sha256"] == _digest(body)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        whole = False
    damaged = f"ledger {path}: it is damaged; nothing is released until a whole copy is put back."
    if not whole or body["schema"] != SCHEMA or not isinstance(body["entries"], list):
        raise Refusal("ledger", damaged)
    try:
        entries = tuple(map(_entry, body["entries"]))
    except (HoldfastError, KeyError, TypeError, AttributeError):
        raise Refusal("ledger", damaged) from None
    if counted is None or len(entries) < counted:
        raise Refusal(
            "ledger",
            f"ledger {path}: it has {len(entries)} entries but {_beside(path).name} counts {counted}; nothing is "
            "released until the newest copy of both is put back.",
        )
    return Ledger(entries, tuple(body["entries"]))


def _entry(line: dict[str, Any]) -> Entry:
    words = (line["what"], line["when"], line.get("series", ""))
    if not all(isinstance(word, str) for word in words):
        raise TypeError
    return Entry(words[0], words[1], Claim.from_json(line["claim"]), words[2])


def _write(path: Path, ledger: Ledger) -> None:
    if _counted(path) is None:
        write_file(_beside(path), b"0\n")  # before the first entry: from now on a missing ledger is noticed
    body = {"schema": SCHEMA, "entries": list(ledger.lines)}
    write_file(path, json.dumps({**body, "sha256": _digest(body)}, indent=1, allow_nan=False).encode())
    write_file(_beside(path), f"{len(ledger.lines)}\n".encode())


def _line(entry: Entry) -> dict[str, Any]:
    line = {"what": entry.what, "when": entry.when, "claim": entry.claim.as_json()}
    return {**line, "series": entry.series} if entry.series else line


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".count")


def _counted(path: Path) -> int | None:
    """Entries the ledger must have; None if there never was a ledger."""
    try:
        with open(_beside(path), encoding="ascii") as file:
            return int(file.read(20))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise Refusal("ledger", f"ledger {path}: {_beside(path).name} is damaged; nothing is released.") from None


def _lock(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _used(path: Path) -> bool:
    """Whether the lock says that a release was entered."""
    try:
        return _lock(path).stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Refusal(
            "ledger", f"ledger {path}: {_lock(path).name} cannot be read ({error.strerror}); nothing is released."
        ) from None


@contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    """One release at a time, whichever process makes it."""
    try:
        file = open(_lock(path), "a", encoding="ascii")  # noqa: SIM115 - closed below, which also unlocks
    except OSError as error:
        raise Refusal(
            "ledger", f"ledger {path}: it cannot be locked ({error.strerror}); nothing was released."
        ) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
