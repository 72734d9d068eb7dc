"""A site's request to be forgotten by a run that has ended, signed with its key, and the receipt for it.

While a run lives the moderator hears of a withdrawal with its next question. Afterwards nobody asks any more, so the
site sends a file: a line of JSON with the experiment's fingerprint, the site, who said so and when, and below it the
signature. It counts only if the key of that very site signed it, and only for runs of that experiment.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from holdfast.core.errors import HoldfastError, brief, plain
from holdfast.core.files import write_file
from holdfast.core.signatures import BEGIN, RECEIPT, WITHDRAWAL, beside, public_key, sign, signer
from holdfast.flower.deploy.policy import fingerprint_of
from holdfast.flower.engine.sites import is_name
from holdfast.runs.experiment import Experiment
from holdfast.runs.withdrawal import Forgotten

SCHEMA = "holdfast-withdrawal/1"
LONGEST = 16_384  # bytes of a request
PERSON = 200  # characters of a name


@dataclass(frozen=True)
class Request:
    """What a site asks for."""

    schema: str
    experiment: str  # fingerprint
    site: str
    by: str
    when: str


def request_of(experiment: Experiment, site: str, by: str, key: Path) -> bytes:
    """A site's request, signed."""
    if not is_name(site):
        raise HoldfastError(f"--site: {brief(site)} is no site's name; say it as the moderator knows this site.")
    if not by.strip() or plain(by, PERSON) != by:
        raise HoldfastError(f"--by: expected the name of a person, at most {PERSON} printable characters.")
    when = datetime.now(UTC).isoformat(timespec="seconds")
    line = json.dumps(asdict(Request(SCHEMA, fingerprint_of(experiment), site, by, when))) + "\n"
    return (line + sign(key, WITHDRAWAL, line.encode())).encode()


def read_request(file: Path, keys: Path, experiment: Experiment) -> Request:
    """A request for a run of this experiment; one that its site did not sign is refused, and nothing is done."""
    try:
        content = file.read_bytes()
    except OSError:
        raise HoldfastError(f"--request: {file} cannot be read.") from None
    line, found, rest = content[:LONGEST].decode(errors="replace").partition(BEGIN)
    try:
        said = json.loads(line)
        wanted = Request(**said)
        fine = all(isinstance(getattr(wanted, field.name), str) for field in fields(Request)) and is_name(wanted.site)
    except (ValueError, TypeError, RecursionError):
        fine = False
    if not found or len(content) > LONGEST or not fine or wanted.schema != SCHEMA:
        raise HoldfastError(f"--request: {file} is no request of `holdfast site withdraw`; nothing was done.")
    try:
        by = signer(found + rest, WITHDRAWAL, line.encode())
    except HoldfastError as error:
        raise HoldfastError(f"--request: {file}: {error}; nothing was done.") from None
    if by != public_key(keys / f"{wanted.site}.pub"):
        raise HoldfastError(f"--request: {file} was not signed with the key of {wanted.site}; nothing was done.")
    if wanted.experiment != fingerprint_of(experiment):
        raise HoldfastError(f"--request: {file} is about another experiment than this run's; nothing was done.")
    return wanted


def write_receipt(folder: Path, request: Path, wanted: Request, done: Forgotten, key: Path | None) -> Path:
    """What was done for a request, for the site to keep; signed where the moderator has a key."""
    model = folder / "model.safetensors"
    told = {
        "schema": "holdfast-receipt/1",
        **{name: getattr(wanted, name) for name in ("experiment", "site", "by")},
        "request_sha256": hashlib.sha256(request.read_bytes()).hexdigest(),
        "when": done.when,
        "deleted": list(done.deleted),
        "model": done.model,
        "model_sha256": hashlib.sha256(model.read_bytes()).hexdigest() if model.is_file() else None,
    }
    path = folder / f"receipt-{done.client:04d}.json"
    content = (json.dumps(told, indent=1) + "\n").encode()
    beside(path).unlink(missing_ok=True)
    write_file(path, content)
    if key is not None:
        write_file(beside(path), sign(key, RECEIPT, content).encode())
    return path
