"""A member withdraws: nothing of its digest is left in a run, and the model is made again without it, or says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from flower_helpers import in_process, play
from release_helpers import experiment
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.core.errors import HoldfastError
from holdfast.core.signatures import PAGE, fault_of, public_key, sign
from holdfast.core.tensors import bytes_of
from holdfast.core.types import WITHDREW, Absent, Message, Reply, State
from holdfast.digests.origin import make_key
from holdfast.flower.deploy.keys import make_keys
from holdfast.flower.deploy.policy import fingerprint_of, withdraw
from holdfast.flower.deploy.withdrawal_request import read_request, request_of
from holdfast.flower.engine.moderator import play_over
from holdfast.play import client_called, forget, resume, run
from holdfast.runs.store import Run
from holdfast.runs.withdrawal import STILL_KNOWS, Without, forgotten_in

NOBODY_AWAY = {"scenario": "none", "clients": 3, "workers": 0}
ONE_MESSAGE = {**NOBODY_AWAY, "absence": "feddig:mode=sums", "algorithm": "oneshot", "rounds": 1, "model": "auto"}
ROUNDS = {**NOBODY_AWAY, "absence": "feddig", "rounds": 3}


def traces(folder: Path, state: State, client: int) -> list[str]:
    """The files of a folder in which a part of a client's digest can be found."""
    parts = [bytes_of(tensor) for tensor in state.digests[client].values()]
    others = b"".join(bytes_of(t) for c, sealed in state.digests.items() if c != client for t in sealed.values())
    pieces = [part[start : start + 64] for part in parts for start in range(0, len(part) - 63, 64)]
    marks = [piece for piece in pieces if piece not in others and any(piece)][:50]
    assert marks
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path.relative_to(folder).as_posix() for path in files if any(m in path.read_bytes() for m in marks))


def test_a_model_of_digests_is_as_if_the_member_had_never_been_asked(tmp_path: Path) -> None:
    history = run(experiment(**ONE_MESSAGE), tmp_path / "run")
    assert history.state is not None
    assert traces(tmp_path / "run", history.state, 1)
    done = CliRunner().invoke(app, ["forget", str(tmp_path / "run"), "--site", "site-1"])
    assert done.exit_code == 0, done.output
    assert "trained again without it" in " ".join(done.output.split())
    assert traces(tmp_path / "run", history.state, 1) == []
    ours = Run.open(tmp_path / "run")
    state = ours.last_state()
    never = run(experiment(**{**ONE_MESSAGE, "scenario": "intervals:away=[[1,1,2]]"}), tmp_path / "never").state
    assert state is not None
    assert never is not None
    assert all(torch.equal(weight, never.model[name]) for name, weight in state.model.items())
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (tmp_path / "never/model.safetensors").read_bytes()
    assert not all(torch.equal(weight, history.state.model[name]) for name, weight in state.model.items())
    assert sorted(state.digests) == [0, 2]
    [record] = ours.records()
    assert record.absent == {1: "has withdrawn"}
    assert sorted(record.weights) == [0, 2]
    assert any("trained again without it" in note for note in record.notes)
    assert resume(tmp_path / "run").records == [record]


def test_a_model_of_rounds_still_knows_unless_it_is_played_again(tmp_path: Path) -> None:
    wanted = experiment(**ROUNDS)
    history = run(wanted, tmp_path / "run")
    assert history.state is not None
    assert traces(tmp_path / "run", history.state, 1)
    assert forget(tmp_path / "run", "client 1").model == STILL_KNOWS
    assert traces(tmp_path / "run", history.state, 1) == []
    [told] = forgotten_in(tmp_path / "run")
    assert told.model == STILL_KNOWS
    assert told.sentence in Run.open(tmp_path / "run").records()[-1].notes
    assert "digests/0001-000001.safetensors" in told.deleted
    assert forget(tmp_path / "run", "client 1", replay=True).model == "played again without it, from round 1"
    again = Run.open(tmp_path / "run")
    assert [record.absent for record in again.records()] == [{1: "has withdrawn"}] * 3
    state = again.last_state()
    never = run(experiment(**{**ROUNDS, "scenario": "intervals:away=[[1,1,4]]"}), tmp_path / "never").state
    assert state is not None
    assert never is not None
    assert all(torch.equal(weight, never.model[name]) for name, weight in state.model.items())
    assert traces(tmp_path / "run", history.state, 1) == []


def test_a_run_is_played_again_from_where_the_member_joined(tmp_path: Path) -> None:
    joins = experiment(**{**ROUNDS, "scenario": "intervals:away=[[1,1,3]]"})  # it comes in round 3
    run(joins, tmp_path / "run")
    assert forget(tmp_path / "run", "client 1").model == "played again without it, from round 3"
    assert Run.open(tmp_path / "run").records()[2].absent == {1: "has withdrawn"}
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_site_withdraws_over_flower(tmp_path: Path) -> None:
    wanted = experiment(**{**ROUNDS, "absence": "feddig"})
    grid = in_process(tmp_path, wanted)
    seen: list[State] = []

    def after_round(record: Any) -> None:
        state = Run.open(tmp_path / "run").states()[-1]
        if record.round == 1:
            seen.append(state)
            withdraw(tmp_path / "site-1" / fingerprint_of(wanted)[:16], "Dr. Meier")

    history = play_over(grid, wanted, {"out": str(tmp_path / "run"), "gather": 0.5}, watch=after_round)
    second, third = history.records[1:]
    assert second.absent == {1: "has withdrawn: its digest is deleted, and it is not asked again"}
    assert third.absent.keys() == {1}
    assert second.stand_ins == third.stand_ins == []  # its digest does not stand in, not even once
    assert any("still knows" in note for note in second.notes)
    assert traces(tmp_path / "run", seen[0], 1) == []
    assert play(tmp_path, wanted, grid).records == history.records


def test_a_site_asks_after_the_run_has_ended(tmp_path: Path) -> None:
    """By a signed request; the moderator's receipt says what was done, and no file holds a part of its digest."""
    wanted = experiment(**ONE_MESSAGE)
    history = play(tmp_path, wanted, in_process(tmp_path, wanted))
    folder, state = history.folder, history.state
    assert folder is not None
    assert state is not None
    (folder / "page.html").write_text("<title>What leaves the house</title>")
    (folder / "page.html.sig").write_text("signed")
    (tmp_path / "e.json").write_text(json.dumps({"schema": 1, **wanted.as_json()}))
    make_keys(tmp_path / "keys", ["site-0", "site-1"])
    make_key(tmp_path / "keys", "moderator")
    request = tmp_path / "request"
    withdraw_by(tmp_path, "site-1", request, key="site-0")
    assert forget_by(folder, request, tmp_path / "keys").exit_code == 1  # another member's key
    assert traces(folder, state, 1)
    said = withdraw_by(tmp_path, "site-1", request)
    assert said.exit_code == 0, said.output
    done = forget_by(folder, request, tmp_path / "keys", "--key", str(tmp_path / "keys" / "moderator.key"))
    assert done.exit_code == 0, done.output
    assert "trained again without it" in " ".join(done.output.split())
    assert traces(folder, state, 1) == []
    assert not list(folder.glob("page.html*"))
    receipt = json.loads((folder / "receipt-0001.json").read_text())
    assert receipt["request_sha256"] == sha256(request.read_bytes()).hexdigest()
    assert receipt["model_sha256"] == sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert (receipt["site"], receipt["by"], receipt["model"]) == ("site-1", "Dr. Meier", "trained again without it")
    assert "digests/0001-000001.safetensors" in receipt["deleted"]
    known = public_key(tmp_path / "keys" / "moderator.pub")
    assert fault_of(folder / "receipt-0001.json", known) == ""
    (folder / "receipt-0001.json").write_text(json.dumps(receipt).replace("trained", "trainee"))
    assert "changed" in fault_of(folder / "receipt-0001.json", known)
    again = in_process(tmp_path, wanted)
    assert play(tmp_path, wanted, again).records == Run.open(folder).records()  # nobody asks it again


def test_a_request_counts_only_if_its_site_signed_it(tmp_path: Path) -> None:
    wanted = experiment(**ONE_MESSAGE)
    make_keys(tmp_path, ["site-0", "site-1"])
    own, others = tmp_path / "site-1.key", tmp_path / "site-0.key"
    right = request_of(wanted, "site-1", "Dr. Meier", own)
    (tmp_path / "request").write_bytes(right)
    assert read_request(tmp_path / "request", tmp_path, wanted).by == "Dr. Meier"
    line = right.partition(b"-----")[0]
    for odd, why in (
        (request_of(wanted, "site-1", "Dr. Meier", others), "not signed with the key of site-1"),
        (request_of(replace(wanted, seed=77), "site-1", "Dr. Meier", own), "another experiment"),
        (right.replace(b"Meier", b"Meyer"), "one of them was changed"),
        (right.replace(b'"site-1"', b'"../site-1"'), "is no request"),
        (right.replace(b'"site-1"', b'["site-1"]'), "is no request"),
        (line, "is no request"),
        (right[:-60], "damaged"),
        (b"[" * 9000 + right, "is no request"),
        (line + sign(own, PAGE, line).encode(), "another purpose"),
    ):
        (tmp_path / "request").write_bytes(odd)
        with pytest.raises(HoldfastError, match=why):
            read_request(tmp_path / "request", tmp_path, wanted)


def withdraw_by(folder: Path, site: str, request: Path, key: str | None = None) -> Result:
    own = ["--folder", str(folder / "elsewhere"), "--by", "Dr. Meier", "--request", str(request)]
    signed = ["--site", site, "--key", str(folder / "keys" / f"{key or site}.key")]
    return CliRunner().invoke(app, ["site", "withdraw", str(folder / "e.json"), *own, *signed])


def forget_by(folder: Path, request: Path, keys: Path, *more: str) -> Result:
    return CliRunner().invoke(app, ["forget", str(folder), "--request", str(request), "--keys", str(keys), *more])


def test_a_name_that_means_two_members_is_refused() -> None:
    swapped = experiment(**{**NOBODY_AWAY, "clients": 2}, names=("site-1", "site-0"))
    with pytest.raises(HoldfastError, match="another over Flower"):
        client_called(swapped, "site-0")


def test_who_is_not_there_cannot_be_forgotten(tmp_path: Path) -> None:
    run(experiment(**{**ROUNDS, "rounds": 1, "scenario": "intervals:away=[[1,1,2]]"}), tmp_path / "run")
    with pytest.raises(HoldfastError, match=r"there is no 'nobody'"):
        forget(tmp_path / "run", "nobody")
    assert forget(tmp_path / "run", "client 1").model == "never knew it"


class Echo:
    clients = range(3)

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        return [Reply(message.client, scalars={"round": message.round}) for message in messages]

    def close(self) -> None: ...


def test_answers_belong_to_questions_not_to_clients() -> None:
    asked = [Message(client, round, "train") for round in (0, 1) for client in range(3)]
    answers = Without(Echo(), [1]).ask(asked)
    said = [a.reason if isinstance(a, Absent) else (a.client, a.scalars["round"]) for a in answers]
    assert said == [(0, 0), WITHDREW, (2, 0), (0, 1), WITHDREW, (2, 1)]
