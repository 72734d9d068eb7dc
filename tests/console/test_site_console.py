"""The site's console: only its reader decides, what they decide holds, and no text of strangers becomes code."""

from __future__ import annotations

import http.client
import json
import math
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from curious_helpers import Curious
from engine_helpers import experiment
from release_helpers import experiment as private
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.console import server
from holdfast.console.server import SiteConsole, serve_console, write_privacy
from holdfast.console.site_page import bar
from holdfast.console.site_state import Budget, page_name, read_budget
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import LOG as FAILURES
from holdfast.digests.origin import make_key
from holdfast.flower.deploy.approval import LOG, cases
from holdfast.flower.deploy.policy import draw_token, read_site_policy

ONE = "min_records = 0\napprovals = 1\n"
EVIL = "<img src=x onerror=alert(1)>"


class Reader:
    """Somebody with a browser, told the console's address."""

    def __init__(self, address: str) -> None:
        self.url = urlsplit(address)
        self.origin = f"http://{self.url.netloc}"

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str]:
        assert self.url.port is not None
        connection = http.client.HTTPConnection("127.0.0.1", self.url.port, timeout=20)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def page(self) -> str:
        status, text = self.ask("GET", self.url.path)
        assert status == 200
        return text

    def post(self, action: str, **fields: str) -> str:
        """Send a form, and give the page that follows."""
        status, _ = self.ask("POST", self.url.path + action, urlencode(fields), Origin=self.origin)
        assert status == 303
        return self.page()


class Bench:
    """A site that was asked once, and the reader of its console."""

    def __init__(self, folder: Path, reader: Reader, asking: Curious) -> None:
        self.policy, self.site, self.reader, self.asking = folder / "policy.toml", asking.site, reader, asking

    @property
    def waiting(self) -> dict[str, str]:
        [case] = cases(self.site, read_site_policy(self.policy))
        return {"experiment": case.proposal.experiment, "code": case.proposal.code, "policy": case.proposal.policy}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    asking = Curious(tmp_path, experiment(names=(EVIL, "b", "c", "d")), ONE)
    assert asking.train().error == "approval"
    with serve_console(asking.site, tmp_path / "policy.toml") as address:
        yield Bench(tmp_path, Reader(address), asking)


def test_only_its_reader_gets_in(bench: Bench) -> None:
    reader, form = bench.reader, urlencode({**bench.waiting, "by": "Mallory"})
    path, port = reader.url.path, reader.url.port
    assert len(path) > 40
    for wrong in ("/", "/mark", path[:-1], f"/{'x' * 43}/", "/%2e%2e/", "//"):
        assert reader.ask("GET", wrong)[0] == 403
        assert reader.ask("POST", wrong + "approve", form, Origin=reader.origin)[0] == 403
    assert reader.ask("GET", path, Host=f"evil.example:{port}")[0] == 403  # a rebound name
    assert reader.ask("POST", path + "approve", form, Host=f"evil.example:{port}", Origin=reader.origin)[0] == 403
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", f"https://127.0.0.1:{port}"):
        assert reader.ask("POST", path + "approve", form, Origin=origin)[0] == 403  # another page's form
    assert reader.ask("POST", path + "approve", form)[0] == 403
    assert reader.ask("POST", path + "approve", "x" * 9000, Origin=reader.origin)[0] == 413
    assert reader.ask("POST", path + "approve", "&".join(["a=b"] * 30), Origin=reader.origin)[0] == 400
    for nothing in ("elsewhere", "page/..%2fidentity.json", "page/../identity.json", "identity.json"):
        assert reader.ask("GET", path + nothing)[0] == 404
    assert reader.ask("POST", path + "elsewhere", form, Origin=reader.origin)[0] == 404
    assert len((bench.site / LOG).read_text().splitlines()) == 1  # nobody was heard
    assert bench.asking.train().error == "approval"


def test_what_is_decided_holds(bench: Bench) -> None:
    reader, asking = bench.reader, bench.asking
    page = reader.page()
    assert "One experiment waits for your approval." in page
    assert "Nothing has left; the ledger is empty." in page
    assert EVIL not in page
    assert EVIL.replace("<", "&lt;").replace(">", "&gt;") in page
    assert "Expected the name of a person" in reader.post("approve", **bench.waiting, by=" ")
    assert "look at the page again" in reader.post("approve", **{**bench.waiting, "code": "0" * 64}, by="A. Sommer")
    assert asking.train().error == "approval"
    assert "A. Sommer has approved it. It may be played." in reader.post("approve", **bench.waiting, by="A. Sommer")
    assert not asking.train().error
    assert not asking.ask("evaluate", asking.model).error
    page = reader.page()
    assert "takes part: approved by A. Sommer" in page
    assert "After round 1: accuracy" in page
    assert "1 update of the model, without noise; no epsilon bounds what they tell of a record." in page
    assert "Nothing has left with noise; the ledger is empty." in page
    assert "This site is paused." in reader.post("pause", by="A. Sommer")
    assert asking.train(round=1).error == "paused"
    assert "This site goes on." in reader.post("resume")
    assert asking.train(round=1, client=2).error == "identity"
    assert "is asked as client 2" in reader.page()  # the error in full
    assert "has refused" in reader.post("refuse", **bench.waiting, by="Dr. Meier")
    assert asking.train(round=1).error == "declined"
    mark = bench.waiting["experiment"][:16]
    assert "for good" in reader.post("withdraw", mark=mark, by="A. Sommer")
    assert "No such experiment" in reader.post("withdraw", mark="../" + mark, sure="yes", by="A. Sommer")
    assert "has withdrawn" in reader.post("withdraw", mark=mark, sure="yes", by="A. Sommer")
    assert asking.train(round=1).error == "withdrawn"


def test_only_signed_words_where_the_policy_says_so(tmp_path: Path) -> None:
    make_key(tmp_path / "approvers", "meier")
    asking = Curious(tmp_path, experiment(), ONE + 'approvers = "approvers"\n')
    asking.train()
    policy, key = tmp_path / "policy.toml", tmp_path / "approvers" / "meier.key"
    with serve_console(asking.site, policy) as address:
        assert "start the console with --by NAME and --key FILE" in Reader(address).page()
    with serve_console(asking.site, policy, "meier", key) as address:
        bench = Bench(tmp_path, Reader(address), asking)
        assert "meier has approved it" in bench.reader.post("approve", **bench.waiting, by="somebody else")
    assert not asking.train().error


def test_the_privacy_page_is_of_this_house_and_what_was_read_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TRIALS", 20)
    spent = (
        '[privacy]\nmax_epsilon = 4\ndelta = 1e-5\nmodes = ["moments"]\nprotect_updates = false\ncontact = "the DPO"\n'
    )
    asking = Curious(tmp_path, private(), ONE + spent)
    asking.train()
    policy = tmp_path / "policy.toml"
    [case] = cases(asking.site, read_site_policy(policy))
    memory = asking.site / case.proposal.experiment[:16]
    text = write_privacy(asking.site, policy, memory)
    for told in ("the DPO", "with noise, counted in the ledger", "epsilon of one release"):
        assert told in text
    (memory / page_name(case.proposal)).write_text(text)
    with serve_console(asking.site, policy, "Dr. Meier") as address:
        bench = Bench(tmp_path, Reader(address), asking)
        assert f"page/{page_name(case.proposal)}" in bench.reader.page()
        assert bench.reader.ask("GET", f"{bench.reader.url.path}page/{page_name(case.proposal)}") == (200, text)
        bench.reader.post("approve", **bench.waiting)
        assert len(json.loads((asking.site / LOG).read_text().splitlines()[-1])["page"]) == 64
        assert not asking.train(scalars={"digest": True}).error
        page = bench.reader.page()
        assert "epsilon 3 of 4 is spent, 1 is left" in page
        assert 'width="75.0"' in page


def test_damaged_files_are_said_not_hidden(tmp_path: Path) -> None:
    asking = Curious(tmp_path, experiment(), ONE)
    asking.train()
    console = SiteConsole(asking.site, tmp_path / "policy.toml")
    [memory] = [path.parent for path in asking.site.glob("*/asked.json")]
    (memory / "asked.json").write_text('{"experiment": {"rounds": "many"}}')
    (memory / "book.jsonl").write_text('{"refused": ["x"], "round": {}}\n[1]\nx')
    (memory / FAILURES).write_bytes(b"\xff</pre><script>alert(1)</script>")
    (asking.site / "paused.json").write_text("[")
    (asking.site / "privacy-ledger.json").write_text("{}")
    (tmp_path / "policy.toml").write_text("aprovals = 1")
    page = console.page()
    for told in ("Paused by somebody", "it is damaged; nothing is released", "did you mean"):
        assert told in page
    assert page.count("<script>") == 1


def test_the_commands_say_what_is_wrong(tmp_path: Path) -> None:
    def site(*words: str) -> str:
        done = CliRunner().invoke(app, ["site", *words])
        return done.output + str(done.exception or "")

    assert "is no site's folder" in site("console", "--folder", str(tmp_path))
    draw_token(tmp_path / "site-0")  # as a site does when it is started
    assert "No experiment has asked" in SiteConsole(tmp_path / "site-0", None).page()
    with pytest.raises(HoldfastError, match="name of a person"):
        SiteConsole(tmp_path / "site-0", None, "\n")
    assert "is paused" in site("pause", "--folder", str(tmp_path / "site-0"), "--by", "Dr. Meier")
    assert "goes on" in site("resume", "--folder", str(tmp_path / "site-0"))


def test_the_budget_is_what_the_policy_file_says_now(tmp_path: Path) -> None:
    assert read_budget(tmp_path, {"max_epsilon": 3.0, "delta": 1e-5}).allowed == 3.0  # not carried to the site yet
    assert math.isinf(read_budget(tmp_path, {}).allowed)
    unbounded = bar(Budget(math.inf, 3.0, 1e-5))
    assert "left without noise, so no epsilon bounds" in str(unbounded)
    assert "epsilon 3 lets nothing more leave" in str(unbounded)
