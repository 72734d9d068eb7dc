"""Real SuperLink, SuperNodes and moderator on loopback, killed, paused and woken: with TLS and keys, as by default."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_helpers import GENEROUS, marked, read, same_bits, wait_until
from flower_helpers import Gate

from holdfast.core import types
from holdfast.core.config import Choice
from holdfast.core.failures import SENTENCES
from holdfast.digests.origin import make_key
from holdfast.flower.deploy.app import write_app
from holdfast.flower.deploy.joining import News
from holdfast.flower.deploy.keys import make_keys
from holdfast.flower.deploy.local import Local, listens, local
from holdfast.flower.engine.sites import usual_names
from holdfast.play import resume, run
from holdfast.record import Record
from holdfast.runs.experiment import Experiment, from_table
from holdfast.runs.store import Run

SITES = usual_names(3)
FOURTH = "site-3"  # joins for one test
HOSTILE_SITE = """
from pathlib import Path
from flower_helpers import Spoilt, hostile
from holdfast.flower import client_app

app = Spoilt(client_app(Path(__file__).parent / "experiment.toml"), hostile)
"""
NOSY_MODERATOR = """
from pathlib import Path
from flower_helpers import nosy

app = nosy(Path(__file__).parent / "experiment.toml")
"""
LARGE_MODERATOR = """
from pathlib import Path
from holdfast.core import types
from holdfast.flower import server_app

types.LARGE = 1
app = server_app(Path(__file__).parent / "experiment.toml")
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """One federation for the whole module; whoever breaks a part of it mends it."""
    folder = tmp_path_factory.mktemp("flower")
    marker = f"test-{uuid.uuid4()}"
    patch = pytest.MonkeyPatch()
    patch.setenv(
        "PYTHONPATH",
        os.pathsep.join(
            [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
        ),
    )
    patch.setenv("HOLDFAST_TEST", marker)
    patch.setenv("HOLDFAST_TRAINING", str(folder))
    torch.set_num_threads(1)
    try:
        make_keys(folder.resolve() / "flower" / "keys", [*SITES, FOURTH])
        for site in (*SITES, FOURTH):
            make_key(folder.resolve() / "flower" / "members", site)
        with local(folder, SITES, durable=True) as federation:
            for site in SITES:
                policy_of(federation, site).write_text("min_records = 0\n")  # so far they know of no members
            yield federation
        wait_until(lambda: not marked(marker), "all processes are gone", GENEROUS)
        assert not listens(federation.port)
    finally:
        for pid in marked(marker):
            os.kill(pid, signal.SIGKILL)
        patch.undo()


# All sites must count in every round: a round that closed after the usual 10 s would leave out, on a loaded machine, a
# site that has only just found its SuperLink again.
PATIENT = {"deadline-least": GENEROUS}


def experiment(**changes: object) -> Experiment:
    usual = {"task": "engine_helpers:pictures", "clients": 3, "partition": "iid", "batch_size": 8, "workers": 0}
    return from_table({**usual, **changes})


def records(folder: Path) -> list[Record]:
    return Run.open(folder).records() if (folder / "rounds.jsonl").exists() else []


def finish(here: Local, folder: Path) -> None:
    wait_until(lambda: here.processes["moderator"].poll() is not None, "the run ends", GENEROUS)
    assert (folder / "model.safetensors").exists(), here.log("moderator").read_text()[-3000:]


def training(here: Local, site: str) -> Path:
    return here.folder / f"training-{here.processes[site].pid}"


def policy_of(here: Local, site: str) -> Path:
    return here.folder / "sites" / site / "rehearsal.toml"


def wait_for_training(here: Local, site: str) -> None:
    training(here, site).unlink(missing_ok=True)
    wait_until(lambda: training(here, site).exists(), f"{site} trains")


def joined(here: Local, site: str) -> bool:
    """Whether its SuperNode is let in; one that ended with its SuperLink first waits until Flower has missed it."""
    log = here.log(site).read_text(errors="replace")
    return log.rfind("SuperNode ID") > log.rfind("started again")


def moderators() -> list[int]:
    return [pid for pid in marked(os.environ["HOLDFAST_TEST"]) if b"flwr-serverapp" in read(pid, "cmdline")]


def kill_moderator(here: Local) -> None:
    """Kill the ServerApp's process, and the one that follows its log."""
    assert moderators()
    for pid in moderators():
        os.kill(pid, signal.SIGKILL)
    here.kill("moderator")


def test_a_real_federation_gives_the_bits_of_the_embedded_engine(here: Local, tmp_path: Path) -> None:
    wanted = experiment(algorithm="scaffold", absence="feddig", trust="fedtest:2", rounds=2, evaluate_every=2)
    app = write_app(tmp_path / "parity", wanted)
    here.begin(app, **{"out": str(tmp_path / "run"), **PATIENT})
    finish(here, tmp_path / "run")
    history, reference = resume(tmp_path / "run"), run(wanted)
    assert same_bits(history, reference)
    assert history.accuracy == reference.accuracy
    assert not list((tmp_path / "run").glob("clients"))  # memories stay at the sites
    assert list((here.folder / "sites" / "site-1").glob("*/clients/0001/*.safetensors"))


def test_updates_of_a_large_model_are_summed_up_one_by_one(
    here: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = experiment(rounds=2, evaluate_every=2)
    app = write_app(tmp_path / "large", wanted)
    (app / "app_large" / "server_app.py").write_text(LARGE_MODERATOR)
    here.begin(app, **{"out": str(tmp_path / "run"), **PATIENT})
    finish(here, tmp_path / "run")
    monkeypatch.setattr(types, "LARGE", 1)
    assert same_bits(resume(tmp_path / "run"), run(wanted))


def test_a_secure_sum_of_updates_outlives_a_member_that_is_killed(here: Local, tmp_path: Path) -> None:
    """Four sites with keys of their own; with round 2 one is killed, and the mean is that of the other three."""
    wanted = experiment(
        task="flower_helpers:unhurried", model="mlp:8", clients=4, protect="secure-sum", rounds=2, evaluate_every=2
    )
    here.register(FOURTH)
    here.start_node(FOURTH)
    for site in SITES:
        policy_of(here, site).write_text(policy_of(here, FOURTH).read_text())
    app, out = write_app(tmp_path / "sums", wanted), tmp_path / "run"
    settings = {"members": str(here.members), "gather": GENEROUS, "deadline-least": 10.0}
    here.begin(app, **{"out": str(out), **settings})
    wait_until(lambda: records(out), "the first round", 2 * GENEROUS)  # seven questions
    wait_for_training(here, FOURTH)
    here.kill(FOURTH)
    wait_until(lambda: len(records(out)) == 2, "the second round", 2 * GENEROUS)  # twelve questions, with the test
    finish(here, out)
    first, second = records(out)
    assert (sorted(first.weights), sorted(second.weights)) == ([0, 1, 2, 3], [0, 1, 2]), (first, second)
    assert "did not answer" in second.absent[3]
    for site in SITES:
        policy_of(here, site).write_text("min_records = 0\n")
    away = replace(wanted, scenario=Choice.parse("intervals:away=[[3,2,3]]", "scenario"))
    assert same_bits(resume(out), run(away))


def test_a_node_with_an_unregistered_key_gets_in_nowhere(here: Local, tmp_path: Path) -> None:
    make_keys(tmp_path / "others", ["stranger"])
    news = News(here.log("stranger"), "stranger", "the moderator's")
    here.start_node("stranger", key=tmp_path / "others" / "stranger.key")
    log = here.log("stranger")
    wait_until(lambda: "started again" in log.read_text(), "it is refused and tries again")
    assert "SuperNode ID" not in log.read_text()
    assert "Its key is not registered" in news.read()[-1]
    assert "stranger" not in here.flwr(["supernode", "list", "up", "--format", "json"])
    here.kill("stranger")


def test_a_moderator_that_is_killed_resumes_and_so_does_a_superlink(here: Local, tmp_path: Path) -> None:
    wanted = experiment(
        task="flower_helpers:unhurried", absence="feddig", scenario="forever", rounds=2, evaluate_every=2
    )
    app, out = write_app(tmp_path / "killed", wanted), tmp_path / "run"
    here.begin(app, **{"out": str(out), **PATIENT})
    wait_until(lambda: len(records(out)) == 1, "the first round is written down")
    wait_for_training(here, "site-1")
    kill_moderator(here)
    here.begin(app, **{"out": str(out), **PATIENT})  # the sites are still there
    wait_for_training(here, "site-1")
    here.kill("superlink")
    here.kill("moderator")
    wait_until(lambda: not moderators(), "the moderator has ended with its SuperLink")
    here.start_link()  # the sites find it again by themselves
    wait_until(lambda: all(joined(here, site) for site in SITES), "all sites are there again")
    here.begin(app, **{"out": str(out), **PATIENT})
    finish(here, out)
    assert [(record.round, sorted(record.absent)) for record in records(out)] == [(1, []), (2, [0])]
    assert records(out)[1].stand_ins == [0]
    assert same_bits(resume(out), run(wanted))


def test_sites_that_are_killed_or_paused_are_absent_and_come_back(here: Local, tmp_path: Path) -> None:
    wanted = experiment(
        task="flower_helpers:unhurried", absence="feddig", model="features", rounds=60, evaluate_every=60
    )
    app, out = write_app(tmp_path / "absent", wanted), tmp_path / "run"
    here.begin(app, **{"out": str(out), "deadline-least": 6.0})
    wait_until(lambda: records(out), "the first round, with all digests")
    wait_for_training(here, "site-1")
    here.kill("site-1")
    gone = wait_until(lambda: [r for r in records(out) if 1 in r.absent], "site-1 is missed")[0]
    assert "did not answer" in gone.absent[1]  # missed by the round's deadline, not by Flower's heartbeat
    assert gone.stand_ins == [1]
    here.start_node("site-1")  # Flower lets it in when it has missed the old one: while that takes its time ...

    wait_for_training(here, "site-2")
    here.kill("site-2", signal.SIGSTOP)
    asleep = wait_until(lambda: [r for r in records(out) if 2 in r.absent], "site-2 is missed")[0]
    assert 2 in asleep.stand_ins
    here.kill("site-2", signal.SIGCONT)
    awake = wait_until(
        lambda: [r for r in records(out) if r.round > asleep.round and 2 in r.weights and 2 not in r.absent],
        "site-2 is back",
    )[0]
    assert 2 not in awake.stand_ins

    back = wait_until(
        lambda: [r for r in records(out) if r.round > gone.round and 1 in r.weights and 1 not in r.absent],
        "site-1 is back",
    )[0]
    assert 1 not in back.stand_ins
    kill_moderator(here)


def test_what_hostile_sites_send_and_what_nobody_knows_is_refused_and_named(here: Local, tmp_path: Path) -> None:
    wanted, out = experiment(model="mlp:8", rounds=1), tmp_path / "run"
    app = write_app(tmp_path / "hostile", wanted)
    (app / "app_hostile" / "client_app.py").write_text(HOSTILE_SITE)
    (app / "app_hostile" / "server_app.py").write_text(NOSY_MODERATOR)
    here.begin(app, **{"out": str(out), "max-bytes": 100_000})
    finish(here, out)
    [record] = records(out)
    assert "is not finite" in record.refused[0]
    assert "expected float32" in record.refused[1]
    assert "above the bound of 100000" in record.absent[2]
    assert record.weights == {}
    heard = json.loads((out / "heard.json").read_text())
    assert len(heard) == 3
    assert all(SENTENCES["job"] in reason for reason in heard)


def test_a_site_that_is_killed_while_it_uploads_leaves_nothing_of_its_update(here: Local, tmp_path: Path) -> None:
    here.kill("site-1", signal.SIGTERM)  # it takes its leave, so it is let in again at once, through the gate
    here.processes["site-1"].wait(GENEROUS)
    gate = Gate(here.port)
    policy = policy_of(here, "site-1")  # as before: its records are few
    here.start_node("site-1", gate.address, config={"policy": str(policy.resolve())})
    gate.shut.set()
    wanted, out = experiment(model="mlp:512", rounds=2, evaluate_every=2), tmp_path / "run"
    here.begin(write_app(tmp_path / "upload", wanted), out=str(out))
    wait_until(gate.held.is_set, "site-1 is in the middle of its upload")
    here.kill("site-1")
    finish(here, out)
    assert "did not answer" in records(out)[0].absent[1]
    assert [sorted(record.weights) for record in records(out)] == [[0, 2], [0, 2]]
    without = experiment(
        model="mlp:512", rounds=2, evaluate_every=2, scenario={"name": "intervals", "away": [[1, 1, 3]]}
    )
    assert same_bits(resume(out), run(without))
