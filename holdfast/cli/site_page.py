"""The privacy page of a real site: from its own records, policy and ledger; written as HTML or PDF, and signed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.audit.findings import Findings
from holdfast.audit.target import Subject, subject_at
from holdfast.core.errors import HoldfastError
from holdfast.core.files import write_file
from holdfast.core.signatures import PAGE, beside, fingerprint, public_half, sign
from holdfast.privacy.gate import LEDGER, POLICY, House
from holdfast.report.privacy_page import as_html, as_pdf
from holdfast.runs.experiment import load

WRITERS: dict[str, Callable[[Findings], bytes]] = {".html": lambda found: as_html(found).encode(), ".pdf": as_pdf}


def page_files(paths: Sequence[Path], key: Path | None) -> Callable[[Findings], list[Path]]:
    """What writes the pages once the findings are there; what is wrong with a path or key is said before."""
    for path in paths:
        if path.suffix not in WRITERS:
            raise HoldfastError(f"--out {path}: a page is written as .html or .pdf; name such a file.")
        if not path.parent.is_dir():
            raise HoldfastError(f"{path.parent} does not exist; make that folder first, or name another file.")
    if key is not None and not paths:
        raise HoldfastError("--key signs a page; say --out PAGE.html or PAGE.pdf.")
    known = "" if key is None else fingerprint(public_half(key))

    def write(findings: Findings) -> list[Path]:
        written = []
        for path in paths:
            content = WRITERS[path.suffix](replace(findings, signed=known))
            write_file(path, content)
            written.append(path)
            signature = beside(path)
            signature.unlink(missing_ok=True)  # of an earlier page
            if key is not None:
                write_file(signature, sign(key, PAGE, content).encode())
                written.append(signature)
        return written

    return write


def subject_at_site(
    file: Path,
    name: str,
    folder: Path | None,
    table: Path | None,
    records: Path | None,
    policy: Path | None,
    changes: Sequence[str],
) -> tuple[Subject, int]:
    """An experiment as a real site has it, and which client the site is in it; nothing is written at the site."""
    from holdfast.flower.deploy.policy import carry_privacy, read_site_policy
    from holdfast.flower.deploy.rehearsal import Wish
    from holdfast.flower.deploy.site import Site

    for path in (table, records, policy, folder):
        if path is not None and not path.exists():
            raise HoldfastError(f"{path} does not exist.")
    wish = Wish(name, load(file, changes), table, None, records, policy)
    with tempfile.TemporaryDirectory() as aside:
        site = Site(wish.experiment, {**wish.config, "folder": aside})
        plan, _ = site.plan(wish.client)
        own = None if folder is None else folder / POLICY
        if policy is not None:
            carry_privacy(read_site_policy(policy), Path(aside))
            own = Path(aside) / POLICY
        house = House(own if own is not None and own.exists() else None, None if folder is None else folder / LEDGER)
        said = table or records
        return subject_at(name, str(file), "" if said is None else said.name, plan, wish.client, house), wish.client
