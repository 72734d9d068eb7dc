"""The page for a data-protection officer: on paper too, signed, and of no worth once a byte of it was changed."""

from __future__ import annotations

import csv
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.audit.findings import Findings, examine
from holdfast.cli import app
from holdfast.core import signatures
from holdfast.core.errors import HoldfastError
from holdfast.data.named import HEART_FILE
from holdfast.digests.origin import make_key
from holdfast.flower.deploy.keys import make_keys
from holdfast.report.pdf import HEIGHT, MARGIN, WIDTH, width_of
from holdfast.report.privacy_page import on_paper
from holdfast.report.privacy_rows import sections

STUDY = """
task = "heart.toml"
clients = 2
names = ["Cleveland", "Hungary"]
algorithm = "oneshot"
model = "auto"
rounds = 1
absence = {name = "feddig", mode = "moments", epsilon = 3}
"""
POLICY = """
[privacy]
max_epsilon = 5.0
delta = 1e-5
modes = ["moments"]
contact = "data protection, ext. 4711 $x^{$"
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a site's table, schema, policy, experiment, and both kinds of keys."""
    folder = tmp_path_factory.mktemp("site")
    rows = list(csv.DictReader(HEART_FILE.read_text().splitlines()))
    with open(folder / "mine.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(row for row in rows if row["hospital"] == "Cleveland")
    (folder / "heart.toml").write_text(HEART_FILE.with_suffix(".toml").read_text())
    (folder / "study.toml").write_text(STUDY)
    (folder / "policy.toml").write_text(POLICY)
    make_key(folder / "ed25519", "Cleveland")
    make_keys(folder / "ecdsa", ["Cleveland"])
    return folder


@dataclass(frozen=True)
class Pages:
    """page.html and page.pdf, signed: what the command printed, and found."""

    printed: str
    found: Findings


@pytest.fixture(scope="module")
def pages(site: Path) -> Pages:
    found: list[Findings] = []

    def seen(*arguments: Any) -> Findings:
        found.append(examine(*arguments))
        return found[0]

    names = ["--site", "Cleveland", "--table", str(site / "mine.csv"), "--policy", str(site / "policy.toml")]
    out = ["--out", str(site / "page.html"), "--out", str(site / "page.pdf"), "--trials", "20"]
    key = ["--key", str(site / "ed25519" / "Cleveland.key")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.audit.findings.examine", seen)
        done = CliRunner().invoke(app, ["privacy", "report", str(site / "study.toml"), *names, *out, *key])
    assert done.exit_code == 0, done.output
    return Pages(done.output, found[0])


def verify(page: Path, key: Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["privacy", "verify", str(page), "--key", str(key)])
    return done.exit_code, " ".join(done.output.split())


def test_the_first_screen_has_all_that_an_officer_asks(site: Path, pages: Pages) -> None:
    first = pages.printed.partition("What a digest promises")[0]
    rows = dict(line.split("  ", 1) for line in first.splitlines() if "  " in line)
    assert rows["who"].strip() == "Cleveland"
    assert rows["which data"].strip() == "heart, from mine.csv"
    assert rows["records"].strip() == "303"
    assert "left of the budget" in rows
    assert "epsilon 5 of 5, after 0 releases; with all that this experiment plans, 3 would be used" in pages.printed
    assert "ext. 4711" in rows["whom to ask"]
    assert {"patients", "date", "what it can show", "what it cannot show", "stays at home"} <= rows.keys()
    public = signatures.public_key(site / "ed25519" / "Cleveland.pub")
    assert signatures.fingerprint(public) in (site / "page.html").read_text()
    assert not (site / "identity.json").exists()  # nothing is written at the site
    assert (site / "page.pdf").read_bytes().startswith(b"%PDF-")


def test_a_page_is_verified_and_a_changed_one_is_not(site: Path, pages: Pages, tmp_path: Path) -> None:
    key = site / "ed25519" / "Cleveland.pub"
    for name in ("page.html", "page.pdf"):
        code, said = verify(site / name, key)
        assert (code, said.startswith("VERIFIED")) == (0, True), said
        for part in (name, f"{name}.sig"):
            shutil.copy(site / part, tmp_path / part)
        page, signature = tmp_path / name, tmp_path / f"{name}.sig"
        whole = page.read_bytes()
        page.write_bytes(whole[:-2] + b" " + whole[-1:])
        assert verify(page, key) == (
            3,
            refused(page, "the signature does not fit the content: one of them was changed"),
        )
        page.write_bytes(whole)
        known = signatures.public_key(key)
        assert "another key" in signatures.fault_of(page, signatures.public_key(site / "ecdsa" / "Cleveland.pub"))
        text = signature.read_text()
        for odd in ("", text[:-40], text.replace("\n", "\n-", 2), "x" * 9000):
            signature.write_text(odd)
            assert signatures.fault_of(page, known) == "the signature is damaged"
        signature.unlink()
        assert signatures.fault_of(page, known) == f"there is no signature {signature.name} beside it"


def refused(page: Path, why: str) -> str:
    return f"NOT VERIFIED {page}: {why}. Do not rely on it."


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_signatures_are_those_of_openssh(site: Path, tmp_path: Path, kind: str) -> None:
    key, content = site / kind / "Cleveland.key", b"what leaves the house"
    public = signatures.public_key(site / kind / "Cleveland.pub")
    made = signatures.sign(key, signatures.PAGE, content)
    assert signatures.signer(made, signatures.PAGE, content) == public == signatures.public_half(key)
    with pytest.raises(HoldfastError, match="another purpose"):
        signatures.signer(made, signatures.WITHDRAWAL, content)
    if shutil.which("ssh-keygen") is None:
        return
    (tmp_path / "page").write_bytes(content)
    (tmp_path / "allowed").write_text(f"site {public}\n")
    (tmp_path / "ours.sig").write_text(made)
    check = ["-Y", "verify", "-f", "allowed", "-I", "site", "-n", signatures.PAGE, "-s", "ours.sig"]
    subprocess.run(["ssh-keygen", *check], input=content, cwd=tmp_path, check=True, capture_output=True)
    theirs = ["-Y", "sign", "-f", str(key), "-n", signatures.PAGE, "page"]
    subprocess.run(["ssh-keygen", *theirs], cwd=tmp_path, check=True, capture_output=True)
    assert signatures.signer((tmp_path / "page.sig").read_text(), signatures.PAGE, content) == public


def test_the_paper_says_what_the_page_says(pages: Pages) -> None:
    """Every row is there, and nothing runs over the edge, however long a word is or how many pages it takes."""
    findings = replace(pages.found, signed="SHA256:" + "x" * 200)
    paper = on_paper(findings)
    assert len(paper.pages) > 1
    placed = [text for page in paper.pages for text in page.texts]
    said = "".join(text.get_text() for text in placed).replace(" ", "")
    for heading, rows, sentence in sections(findings):
        assert heading.replace(" ", "") in said
        assert sentence.replace(" ", "") in said
        for row in rows:
            assert all(word in said for cell in row for word in cell.split() if len(word) < 40)
    for text in placed:
        (x, y), family, weight = text.get_position(), text.get_fontfamily()[0], text.get_fontweight()
        name = family if weight == "normal" else f"{family}:{weight}"
        assert x * WIDTH + width_of(text.get_text(), text.get_fontsize(), name) <= WIDTH - MARGIN + 1
        assert MARGIN - 1 <= y * HEIGHT <= HEIGHT - MARGIN


def test_what_is_wrong_is_said_before_anything_is_attacked(site: Path) -> None:
    report = ["privacy", "report", str(site / "study.toml")]
    for more, said in (
        (["--out", "page.txt"], ".html or .pdf"),
        (["--key", str(site / "ed25519" / "Cleveland.key")], "--key signs a page"),
        (["--out", str(site / "p.pdf"), "--key", str(site / "policy.toml")], "is no OpenSSH key"),
        (["--table", str(site / "mine.csv")], "name it, as in --site"),
    ):
        done = CliRunner().invoke(app, [*report, *more])
        assert done.exit_code == 1
        assert said in str(done.exception)
    assert not (site / "p.pdf").exists()
