"""An experiment is played at a site only once its people have approved it, with its code and policy."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from curious_helpers import Curious
from engine_helpers import experiment
from flower_helpers import nodes, play
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.core.types import not_there
from holdfast.digests.origin import make_key
from holdfast.flower.deploy import approval
from holdfast.flower.deploy.site import client_app
from holdfast.flower.engine import federation
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.runs.presence import read_presence

TWO = "min_records = 0\napprovals = 2\n"


def site(folder: Path, *words: str) -> tuple[int, str]:
    """A command of `holdfast site`, for the site of Curious."""
    done = CliRunner().invoke(
        app, ["site", *words, "--folder", str(folder / "site-0"), "--policy", str(folder / "policy.toml")]
    )
    return done.exit_code, " ".join((done.output + (str(done.exception) if done.exception else "")).split())


def test_two_people_approve_before_the_first_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = Curious(tmp_path, experiment(), TWO)
    assert [asking.train().error, asking.ask("evaluate", asking.model).error] == ["approval"] * 2
    assert len((tmp_path / "site-0" / approval.LOG).read_text().splitlines()) == 1  # waiting, once
    mark = f"{asking.experiment[:8]}/{approval.code_of(experiment(), None)[:8]}"
    assert "0 of 2" in site(tmp_path, "pending")[1]
    assert "1 more must approve it" in site(tmp_path, "approve", mark, "--by", "Dr. Meier")[1]
    assert "1 more must approve it" in site(tmp_path, "approve", mark, "--by", "Dr. Meier")[1]  # one person, one voice
    assert asking.train().error == "approval"
    assert "1 of 2, approved by Dr. Meier" in site(tmp_path, "pending")[1]
    assert "It may be played" in site(tmp_path, "approve", mark, "--by", "A. Sommer")[1]
    assert "Nothing waits" in site(tmp_path, "pending")[1]
    assert not asking.train().error
    with monkeypatch.context() as changed:  # other code
        changed.setattr(approval, "_own_code", lambda: "other")
        assert asking.train().error == "approval"
    assert not asking.train().error
    (tmp_path / "policy.toml").write_text(TWO + "max_rounds = 99\n")  # another policy
    assert asking.train().error == "approval"
    (tmp_path / "policy.toml").write_text(TWO)
    assert "has refused" in site(tmp_path, "refuse", mark, "--by", "Dr. Meier")[1]
    assert asking.train().error == "declined"
    site(tmp_path, "approve", mark, "--by", "A. Sommer")
    assert asking.train().error == "approval"  # what was approved before the refusal no longer counts
    other = Curious(tmp_path, experiment(rounds=5), TWO)
    assert other.train().error == "approval"


def test_only_the_words_of_known_keys_count(tmp_path: Path) -> None:
    for name in ("meier", "sommer", "stranger"):
        make_key(tmp_path / "approvers", name)
    (tmp_path / "approvers" / "stranger.pub").unlink()
    asking = Curious(tmp_path, experiment(), TWO + 'approvers = "approvers"\n')
    assert asking.train().error == "approval"
    mark, key = asking.experiment[:8], lambda name: str(tmp_path / "approvers" / f"{name}.key")
    assert site(tmp_path, "approve", mark, "--by", "meier")[0] != 0
    assert site(tmp_path, "approve", mark, "--by", "stranger", "--key", key("stranger"))[0] != 0
    code, said = site(tmp_path, "approve", mark, "--by", "sommer", "--key", key("meier"))
    assert code != 0
    assert "does not count" in said
    assert site(tmp_path, "approve", mark, "--by", "meier", "--key", key("meier"))[0] == 0
    log = tmp_path / "site-0" / approval.LOG
    forged = {**json.loads(log.read_text().splitlines()[-1]), "by": "sommer"}
    with open(log, "a") as file:
        file.write(json.dumps(forged) + "\n")
    assert asking.train().error == "approval"
    page = tmp_path / "page.html"
    page.write_text("what leaves")
    assert site(tmp_path, "approve", mark, "--by", "sommer", "--key", key("sommer"), "--page", str(page))[0] == 0
    assert not asking.train().error
    assert len(json.loads(log.read_text().splitlines()[-1])["page"]) == 64


@pytest.mark.parametrize("policy", ["approvals = -1", 'approvers = "x"', "approvals = true"])
def test_a_policy_that_says_nothing_sensible_of_approval_is_refused(tmp_path: Path, policy: str) -> None:
    assert Curious(tmp_path, experiment(), policy).train().error == "policy"


def test_the_moderator_sees_who_waits_and_may_wait_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = experiment(rounds=1)
    (tmp_path / "policy.toml").write_text("min_records = 0\napprovals = 1\n")
    sites = nodes(tmp_path, wanted.clients)
    sites[102]["policy"] = str(tmp_path / "policy.toml")
    grid = InProcessGrid(client_app(wanted), sites)
    [record] = play(tmp_path, wanted, grid, gather=0.5).records
    assert record.absent == {2: "waits for approval at site-2"}
    assert not_there(record.absent[2])
    assert "Waiting for approval at site-2." in caplog.text
    told = read_presence(tmp_path / "run")
    assert told["approval"] == ["site-2"]
    assert all(site["connected"] for site in told["sites"].values())
    monkeypatch.setattr(federation, "ASK_AGAIN", 0.1)
    threading.Timer(0.5, approve, (tmp_path / "site-2", tmp_path / "policy.toml")).start()
    [record] = play(tmp_path / "again", wanted, grid, gather=0.5, approval=60.0).records
    assert not record.absent
    assert read_presence(tmp_path / "again" / "run")["approval"] == []


def approve(folder: Path, policy: Path) -> None:
    [line] = [json.loads(line) for line in (folder / approval.LOG).read_text().splitlines()]
    words = [line["experiment"], "--by", "A. Sommer", "--folder", str(folder), "--policy", str(policy)]
    assert CliRunner().invoke(app, ["site", "approve", *words]).exit_code == 0
