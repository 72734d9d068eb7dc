"""A moderator that asks for more than the experiment has: what comes back, and what the site writes down of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from curious_helpers import Curious
from curious_letters import STRICTEST, write_letters
from engine_helpers import experiment
from flower_helpers import in_process, play
from flwr.app import Message as Packet
from release_helpers import experiment as private

from holdfast.core.failures import SENTENCES
from holdfast.core.types import pack
from holdfast.data.task import Samples
from holdfast.flower.deploy.policy import fingerprint_of
from holdfast.flower.deploy.site import client_app
from holdfast.flower.engine.codec import Letter, decode, encode
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.privacy.ledger import read_ledger

PATIENT = "Anna Muster, born 1961"


def test_the_strictest_policy_lets_nothing_go(tmp_path: Path) -> None:
    asking = Curious(tmp_path, experiment(trust="fedtest"), STRICTEST)
    generator = torch.Generator().manual_seed(0)
    answers = []
    for trap in range(35):
        noise = {name: torch.randn(w.shape, generator=generator) for name, w in asking.state.model.items()}
        answers.append(asking.test({1: noise}, round=trap % 4, client=trap % 4))
        answers.append(asking.ask("evaluate", pack(model=noise), round=trap % 4))
        scalars = {"accepted": -1, "lr": 0.05, "digest": trap % 2 == 0}
        answers.append(asking.ask("train", pack(model=noise), scalars, round=trap % 4, client=trap % 3))
    assert len(answers) == 105
    assert not any(answer.tensors or answer.scalars for answer in answers)
    assert {answer.error for answer in answers} <= set(SENTENCES)
    assert {answer.error for answer in answers} == {"closed", "identity", "unprotected", "rounds"}
    assert not (asking.site / "privacy-ledger.json").exists()
    refused = [line["refused"] for line in asking.book() if "refused" in line]
    assert len(refused) == 105


def test_two_sites_that_differ_in_one_record_answer_every_letter_alike(tmp_path: Path) -> None:
    """The small version of `make evidence`, which writes 10,000."""
    codes = write_letters(tmp_path, 120)
    assert codes.total() == 120
    assert {"closed", "unprotected", "question", "job", "identity"} <= set(codes)


def test_what_an_experiment_does_not_ask_nobody_may_ask(tmp_path: Path) -> None:
    asking = Curious(tmp_path, experiment(evaluate_every=2))
    assert asking.test({1: asking.state.model}).error == "job"  # no rule of this experiment tests
    assert asking.ask("evaluate", asking.model, round=0).error == "job"
    assert asking.ask("tell me everything", asking.model).error == "job"
    assert asking.train(round=4).error == "job"
    assert not asking.ask("evaluate", asking.model, round=1).error


@pytest.mark.parametrize(
    ("job", "scalars"),
    [
        ("test", {"most": 1}),
        ("test", {"measure": "help"}),
        ("evaluate", {"most": 1}),
        ("train", {"lr": 100.0}),
        ("train", {"accepted": 3}),
        ("train", {"epochs": 100}),
        ("train", {"digest": 1}),
    ],
)
def test_how_a_site_answers_follows_from_the_experiment(tmp_path: Path, job: str, scalars: dict[str, Any]) -> None:
    asking = Curious(tmp_path, experiment(trust="fedtest"))
    usual = {"accepted": -1, "lr": 0.05, "digest": False} if job == "train" else {}
    tensors = asking.model | (pack(**{"delta/1": asking.state.model}) if job == "test" else {})
    assert asking.ask(job, tensors, {**usual, **scalars}).error == "question"
    assert not asking.ask(job, tensors, usual).error


def test_a_site_tests_no_more_models_than_there_are_members_and_once_a_round(tmp_path: Path) -> None:
    asking = Curious(tmp_path, experiment(trust="fedtest"))
    zero = {name: torch.zeros_like(weight) for name, weight in asking.state.model.items()}
    assert asking.test(dict.fromkeys(range(1, 40), zero)).error == "question"
    first = asking.test({1: zero, 2: zero, 3: zero})
    assert sorted(first.scalars["accuracies"]) == ["1", "2", "3"]
    assert asking.test({1: asking.state.model}).error == "twice"
    again = asking.test({1: zero, 2: zero, 3: zero})  # a lost reply: the same question, the same answer
    assert again.scalars == first.scalars
    assert [line.get("refused") for line in asking.book()] == ["question", None, "twice"]
    assert {line["round"] for line in asking.book()} == {1}  # as people count


def test_a_witness_of_the_jury_answers_with_cosines_only(tmp_path: Path) -> None:
    asking = Curious(tmp_path, experiment(trust="jury"))
    units = {name: torch.zeros(2, *weight.shape) for name, weight in asking.state.model.items()}
    name = next(iter(units))
    units[name][:, 0] = 1e6
    question = asking.model | pack(units=units) | {"order": torch.tensor([1, 2])}
    assert asking.ask("test", question).error == "question"
    assert asking.ask("test", question | {"order": torch.tensor([1])}).error == "question"
    units[name].zero_()[:, 0, 0] = 1.0
    assert sorted(asking.ask("test", question).scalars["accuracies"]) == ["1", "2"]


def test_a_site_is_one_client_for_good(tmp_path: Path) -> None:
    wanted = private(absence="feddig", scenario="none", rounds=3)
    asking = Curious(tmp_path, wanted)
    answers = [asking.train(client=client, scalars={"digest": True}) for client in (1, 0, 2, 1, 7)]
    assert [answer.error for answer in answers] == ["", "identity", "identity", "", "identity"]
    assert len(read_ledger(asking.site / "privacy-ledger.json").entries) == 1
    again = Curious(tmp_path, wanted)  # the site was started anew
    assert again.train(client=0).error == "identity"


def test_a_site_mixes_its_records_once(tmp_path: Path) -> None:
    asking = Curious(tmp_path, private(absence="feddig", scenario="none", rounds=3))
    digests = []
    for round in range(3):
        tensors = asking.train(round=round, scalars={"digest": True}).tensors
        digests.append({name: tensor for name, tensor in tensors.items() if name.startswith("digest/")})
    assert all(torch.equal(digests[0][name], again[name]) for again in digests for name in digests[0])
    assert len(read_ledger(asking.site / "privacy-ledger.json").entries) == 1


def test_few_records_speak_of_single_ones(tmp_path: Path) -> None:
    asking = Curious(tmp_path, experiment(trust="fedtest"), "")  # 32 records to train on, 4 held out
    assert asking.train().error == "few"
    assert asking.ask("evaluate", asking.model).error == "few"
    assert asking.test({1: asking.state.model}).error == "few"
    some = Curious(tmp_path / "some", experiment(trust="fedtest"), "min_records = 32")
    assert not some.train().error
    assert some.ask("evaluate", some.model).error == "few"


def test_exact_answers_leave_only_if_the_policy_opens_them(tmp_path: Path) -> None:
    policy = STRICTEST.replace("protect_updates = true", 'open = ["evaluate"]')
    asking = Curious(tmp_path, experiment(trust="fedtest"), policy)
    assert not asking.ask("evaluate", asking.model).error
    assert asking.test({1: asking.state.model}).error == "closed"
    assert asking.train().error == "unprotected"  # a limit on epsilon means protected updates
    said = Curious(tmp_path / "said", experiment(), STRICTEST.replace("updates = true", "updates = false"))
    answer = said.train()
    assert answer.tensors
    assert "loss" not in answer.scalars
    wrong = Curious(tmp_path / "wrong", experiment(), STRICTEST + 'open = ["train"]')
    assert wrong.train().error == "policy"


def test_the_loss_stays_where_a_digest_is_protected(tmp_path: Path) -> None:
    assert "loss" not in Curious(tmp_path / "moments", private(rounds=1)).train().scalars
    assert "loss" in Curious(tmp_path / "paper", private(rounds=1, absence="feddig")).train().scalars


def test_an_old_book_still_counts(tmp_path: Path) -> None:
    wanted = experiment()
    asking = Curious(tmp_path, wanted, "min_records = 0\nmax_rounds = 2")
    book = asking.site / fingerprint_of(wanted)[:16] / "trainings.jsonl"
    book.parent.mkdir(parents=True)
    book.write_text('{"round": 0}\n')
    assert not asking.train(round=1).error
    assert not asking.train(round=1).error  # the same question
    assert asking.train(round=2).error == "rounds"


def broken(config: Mapping[str, Any]) -> Samples:
    raise ValueError(f"could not convert string to float: {PATIENT!r}")


def test_no_word_of_an_error_leaves_a_site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = experiment(rounds=1)
    grid = InProcessGrid(client_app(wanted, broken), in_process(tmp_path, wanted).nodes)
    history = play(tmp_path, wanted, grid)
    assert history.records[0].absent[0] == f"failed in job 'train' of round 1: {SENTENCES['data']}"
    told = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(PATIENT.encode() in path.read_bytes() for path in told)
    assert PATIENT in caplog.text  # the site's terminal and log have it


def test_a_site_that_cannot_say_who_it_is_says_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    identity = tmp_path / "site-0" / "identity.json"
    identity.parent.mkdir()
    identity.write_text(PATIENT)
    asking = Curious(tmp_path, experiment())
    packet = Packet(encode(Letter(-1, -1, "hello")), dst_node_id=100, message_type="query.hello")
    [reply] = asking.grid.send_and_receive([packet])
    assert decode(reply.content).error == "internal"
    assert asking.train().error == "internal"
