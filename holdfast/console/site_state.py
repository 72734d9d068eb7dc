"""What a site's folder tells its own people: who asks for what, what was decided, and what has left."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.core.failures import LOG as FAILURES
from holdfast.core.failures import sentence_of
from holdfast.core.files import read_lines
from holdfast.flower.deploy.approval import LOG, Case, Proposal, cases, sha256_of_file
from holdfast.flower.deploy.home import ASKED, METRICS, PAUSED, PEOPLE
from holdfast.flower.deploy.policy import WITHDRAWN, SitePolicy, read_site_policy
from holdfast.flower.deploy.questions import BOOK
from holdfast.privacy.gate import LEDGER, SITE, house_of
from holdfast.privacy.ledger import Entry
from holdfast.runs.experiment import Experiment, from_table

MOST = 64_000  # bytes of a log that are shown, its end
FOLDER = 16  # letters of a fingerprint that name a site's folder of an experiment


@dataclass(frozen=True)
class Budget:
    """What the ledger says, against what the policy allows for all experiments together."""

    spent: float = 0.0
    allowed: float = math.inf
    delta: float = 0.0
    entries: tuple[Entry, ...] = ()
    trouble: str = ""


@dataclass(frozen=True)
class Asked:
    """One experiment, as it was asked for here."""

    mark: str  # the beginning of its fingerprint
    about: str
    since: str
    experiment: Experiment | None
    node: Mapping[str, str] | None  # where the site's own records are; none: the app's own code reads them
    cases: tuple[Case, ...]
    withdrawn: Mapping[str, str] | None
    trained: int
    refusals: Sequence[tuple[str, str, int, int]]  # job, why, how often, last round
    metrics: Sequence[Mapping[str, Any]]
    errors: str
    trouble: str = ""


@dataclass(frozen=True)
class SiteView:
    """All that the console shows."""

    name: str
    paused: Mapping[str, str] | None
    policy: SitePolicy
    policy_sha256: str
    trouble: str  # with the policy
    budget: Budget
    asked: Sequence[Asked] = field(default_factory=tuple)


def check_site(folder: Path) -> None:
    """Refuse a folder that is no site's."""
    if not (folder / SITE).is_file():
        raise HoldfastError(
            f"{folder} is no site's folder: it has no {SITE}. A site that runs by `holdfast flower site NAME "
            "--folder DIR` keeps its things in DIR/sites/NAME."
        )


def read_site(folder: Path, policy_file: Path | None) -> SiteView:
    policy, sha256, trouble = SitePolicy(), "", ""
    found: list[Case] = []
    try:
        if policy_file is not None:
            sha256 = sha256_of_file(policy_file)
            policy = read_site_policy(policy_file)
        found = cases(folder, policy)
    except (HoldfastError, OSError) as error:
        trouble = str(error)
    marks = {case.proposal.experiment[:FOLDER] for case in found}
    marks |= {path.parent.name for name in (ASKED, BOOK, WITHDRAWN) for path in folder.glob(f"*/{name}")}
    asked = [read_asked(folder / mark, [c for c in found if c.proposal.experiment[:FOLDER] == mark]) for mark in marks]
    return SiteView(
        folder.name,
        read_note(folder / PAUSED),
        policy,
        sha256,
        trouble,
        read_budget(folder, policy.privacy or {}),
        sorted(asked, key=lambda one: one.since, reverse=True),
    )


def read_budget(folder: Path, said: Mapping[str, Any]) -> Budget:
    """What is spent of what the site's policy file says now; the site carries that over when it is next asked."""
    try:
        house = house_of(folder)
        ledger = house.read_ledger()
        widest = max((entry.claim.delta for entry in ledger.entries), default=0.0)
        policy = house.read_policy(widest)
        delta, allowed = said.get("delta", policy.delta), said.get("max_epsilon", policy.max_epsilon)
        return Budget(ledger.epsilon(delta), allowed, delta, ledger.entries)
    except HoldfastError as error:
        return Budget(trouble=str(error))


def read_asked(folder: Path, found: Sequence[Case]) -> Asked:
    """What one experiment has left in its folder here."""
    told, trouble, experiment = read_note(folder / ASKED) or {}, "", None
    try:
        if isinstance(told.get("experiment"), dict):
            experiment = from_table(told["experiment"], str(folder / ASKED))
    except HoldfastError as error:
        trouble = str(error)
    book = read_lines(folder / BOOK)
    since = found[0].since if found else str(told.get("when", ""))
    node = told.get("node")
    return Asked(
        folder.name,
        next((case.about for case in found if case.about), ""),
        since,
        experiment,
        {str(k): str(v) for k, v in node.items()} if isinstance(node, dict) else None,
        tuple(found),
        read_note(folder / WITHDRAWN),
        sum(line.get("job") == "train" and "refused" not in line for line in book),
        refusals(book),
        list(
            {str(line.get("round")): line for line in read_lines(folder / METRICS)}.values()
        ),  # asked twice, told once
        end_of(folder / FAILURES),
        trouble,
    )


def refusals(book: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, int, int]]:
    """Each job and reason once, the most recent first; what people here decided is not one."""
    count: Counter[tuple[str, str]] = Counter()
    last: dict[tuple[str, str], int] = {}
    for line in book:
        if "refused" in line and line["refused"] not in PEOPLE:
            key = str(line.get("job")), str(line["refused"])
            count[key] += 1
            last.pop(key, None)
            last[key] = line["round"] if isinstance(line.get("round"), int) else 0
    return [(job, sentence_of(code), count[job, code], round) for (job, code), round in reversed(last.items())]


def read_note(path: Path) -> dict[str, Any] | None:
    """A small JSON object; an empty one where it is damaged, none where it is not there."""
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def end_of(path: Path) -> str:
    """The end of a log, as much as is shown."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MOST))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def page_name(proposal: Proposal) -> str:
    """The file of the privacy page of a proposal: of another code or policy it is another page."""
    sha256 = hashlib.sha256(f"{proposal.experiment}|{proposal.code}|{proposal.policy}".encode()).hexdigest()
    return f"privacy-{sha256[:FOLDER]}.html"


def news_mark(folder: Path, policy_file: Path | None) -> str:
    """Changes when there is something new to show."""
    names = (ASKED, BOOK, METRICS, FAILURES, WITHDRAWN, "privacy-*.html")
    paths = [folder / name for name in (LOG, LEDGER, PAUSED)] + ([policy_file] if policy_file else [])
    seen = []
    for path in [*paths, *(path for name in names for path in sorted(folder.glob(f"*/{name}")))]:
        if path.exists():
            stat = path.stat()
            seen.append((path.parent.name, path.name, stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:FOLDER]
