"""Approval at a site: an experiment is played only once people there have agreed to it.

An approval is for one experiment (its fingerprint), one code (SHA-256 of Holdfast's own files and of those beside the
experiment) and one policy file, which decides what leaves; another of any of these needs a new approval. The log,
`approvals.jsonl` in the site's folder, has a line for each event: who was waiting, who approved, who refused. A refusal
undoes the approvals before it. Where the policy names `approvers`, a folder of public keys NAME.pub, only a word signed
by one of these keys counts; without it a name is what whoever can write into the site's folder says it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import holdfast
from holdfast.core.errors import HoldfastError, plain
from holdfast.core.failures import Refusal
from holdfast.core.files import append_line, make_folder, read_lines
from holdfast.digests.origin import known_keys, load_key, verified
from holdfast.flower.deploy.app import own_files
from holdfast.flower.deploy.policy import SitePolicy, fingerprint_of, read_site_policy
from holdfast.runs.experiment import Experiment

LOG = "approvals.jsonl"
ASKED, APPROVED, REFUSED = "asked", "approved", "refused"
LONGEST = 200  # characters of a name


@dataclass(frozen=True)
class Proposal:
    """What people agree to."""

    experiment: str  # fingerprint
    code: str  # SHA-256
    policy: str  # SHA-256 of its file; empty: there is none


@dataclass(frozen=True)
class Case:
    """A proposal, and what was said of it since the last refusal."""

    proposal: Proposal
    about: str  # the experiment in a few words
    since: str
    approved: tuple[str, ...]  # by whom
    refused: str  # by whom last; empty: by nobody


def proposal_of(experiment: Experiment, beside: Path | None, policy: Path | None) -> Proposal:
    """The proposal of an experiment under a policy; `beside` is the folder of the app that it came with."""
    read = "" if policy is None else sha256_of_file(policy)
    return Proposal(fingerprint_of(experiment), code_of(experiment, beside), read)


def sha256_of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def code_of(experiment: Experiment, beside: Path | None) -> str:
    """SHA-256 of all Python files that run: Holdfast's own, those beside the experiment, and its own modules."""
    found = hashlib.sha256(_own_code().encode())
    files = {} if beside is None else {path.relative_to(beside).as_posix(): path for path in beside.rglob("*.py")}
    for name, path in sorted({**files, **own_files(experiment)}.items()):
        found.update(f"|{name}|{sha256_of_file(path)}".encode())
    return found.hexdigest()


@lru_cache(maxsize=1)
def _own_code() -> str:
    """Of Holdfast as it was when this process began to use it."""
    house = Path(holdfast.__file__).parent
    found = hashlib.sha256()
    for path in sorted(house.rglob("*.py")):
        found.update(f"|{path.relative_to(house).as_posix()}|".encode() + path.read_bytes())
    return found.hexdigest()


def check_approved(folder: Path, policy: SitePolicy, proposal: Proposal, about: str) -> None:
    """Refuse an experiment that too few people have approved; it is entered in the log as waiting, once."""
    if not policy.approvals:
        return
    case = case_of(folder, policy, proposal)
    if case is None:
        _write(folder, ASKED, proposal, about=about)
    elif case.refused and not case.approved:
        raise Refusal("declined", f"experiment {proposal.experiment[:12]}... was refused by {case.refused}.")
    elif len(case.approved) >= policy.approvals:
        return
    missing = policy.approvals - (0 if case is None else len(case.approved))
    people = "one person" if missing == 1 else f"{missing} people"
    raise Refusal(
        "approval",
        f"experiment {proposal.experiment[:12]}... waits for approval by {people}: see `holdfast site pending` and "
        "`holdfast site approve`.",
    )


def case_of(folder: Path, policy: SitePolicy, proposal: Proposal) -> Case | None:
    return next((case for case in cases(folder, policy) if case.proposal == proposal), None)


def cases(folder: Path, policy: SitePolicy) -> list[Case]:
    """All proposals of a site's log, each with who has approved it."""
    keys = None if policy.approvers is None else _keys(policy.approvers)
    found: dict[Proposal, Case] = {}
    for line in read_lines(folder / LOG):
        proposal = _proposal(line)
        by, event, when = str(line.get("by", "")), line.get("event"), str(line.get("when", ""))
        case = found.setdefault(proposal, Case(proposal, str(line.get("about", "")), when, (), ""))
        about = case.about or str(line.get("about", ""))
        if event in (APPROVED, REFUSED) and not _counts(line, proposal, keys):
            continue
        if event == APPROVED and by not in case.approved:
            found[proposal] = Case(proposal, about, case.since, (*case.approved, by), case.refused)
        elif event == REFUSED:
            found[proposal] = Case(proposal, about, case.since, (), by)
        else:
            found[proposal] = Case(proposal, about, case.since, case.approved, case.refused)
    return list(found.values())


def check_person(by: str) -> None:
    """Refuse what is no name of somebody."""
    if not by.strip() or len(by) > LONGEST or plain(by, LONGEST) != by:
        raise HoldfastError(f"--by: expected the name of a person, at most {LONGEST} printable characters.")


def decide(folder: Path, proposal: Proposal, event: str, by: str, key: Path | None, page: Path | None) -> None:
    """Enter somebody's word: approved or refused; `page` is what was read before, and its SHA-256 is kept."""
    check_person(by)
    read = "" if page is None else sha256_of_file(page)
    signature = "" if key is None else load_key(key).sign(_statement(proposal, event, by, read)).hex()
    _write(folder, event, proposal, by=by, page=read, signature=signature)


def speak(
    folder: Path, policy: Path, proposal: Proposal, event: str, by: str, key: Path | None, page: Path | None
) -> Case:
    """Enter somebody's word and give what holds now; a word that does not count is an error."""
    wanted = read_site_policy(policy)
    if not wanted.approvals:
        raise HoldfastError(f"{policy} asks for no approval; write approvals = 1 (or more) into it.")
    if wanted.approvers is not None and (key is None or by not in known_keys(wanted.approvers)):
        raise HoldfastError(f"--by and --key: {policy} counts only what a key of {wanted.approvers} signed; name both.")
    if page is not None and not page.is_file():
        raise HoldfastError(f"--page: {page} does not exist.")
    decide(folder, proposal, event, by, key, page)
    case = case_of(folder, wanted, proposal)
    if case is None or (by not in case.approved if event == APPROVED else case.refused != by):
        raise HoldfastError(f"The word of {by} does not count: {key} is not the key of {by} in {wanted.approvers}.")
    return case


def _write(folder: Path, event: str, proposal: Proposal, **more: str) -> None:
    make_folder(folder)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    append_line(
        folder / LOG, {"when": when, "event": event, **asdict(proposal), **{k: v for k, v in more.items() if v}}
    )


def _statement(proposal: Proposal, event: str, by: str, page: str) -> bytes:
    said = {"schema": "holdfast-approval/1", "event": event, "by": by, "page": page, **asdict(proposal)}
    return json.dumps(said, sort_keys=True).encode()


def _counts(line: dict[str, Any], proposal: Proposal, keys: dict[str, str] | None) -> bool:
    """Whether a line is the word of an approver: signed with the key of its name, where keys are known."""
    if keys is None:
        return True
    by = str(line.get("by", ""))
    said = _statement(proposal, str(line["event"]), by, str(line.get("page", "")))
    return by in keys and verified(keys[by], str(line.get("signature", "")), said)


def _proposal(line: dict[str, object]) -> Proposal:
    return Proposal(*(str(line.get(name, "")) for name in ("experiment", "code", "policy")))


def _keys(folder: Path) -> dict[str, str]:
    try:
        return known_keys(folder)
    except HoldfastError as error:
        raise Refusal("policy", f"policy: approvers: {error}") from None


def pending(found: Sequence[Case], needed: int) -> list[Case]:
    """Those that still wait: neither approved by enough people nor refused."""
    return [case for case in found if len(case.approved) < needed and not (case.refused and not case.approved)]
