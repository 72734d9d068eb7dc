"""Who is asked: drawn before anybody is away, the same after a resume; who is not asked is not absent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from engine_helpers import assert_same_run, interrupted
from engine_helpers import experiment as tiny
from feddig_helpers import experiment as with_digests
from report_helpers import judged, make_run
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.cli.running import happenings, who_was_there
from holdfast.core.errors import HoldfastError
from holdfast.core.types import State
from holdfast.play import resume, run
from holdfast.report.payload import run_payload
from holdfast.report.run_data import read_story
from holdfast.report.words import absence_in_words, headline
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment
from holdfast.runs.history import History
from holdfast.runs.records import record_from_json, record_to_json, scalars
from holdfast.runs.store import Run
from holdfast.selection import Uniform, select


@dataclass(frozen=True)
class Longest:
    """A user's own: those whose update has not counted for the longest time."""

    count: int = 2

    def __call__(self, clients, state, generator):  # type: ignore[no-untyped-def]
        return sorted(clients, key=lambda client: state.accepted.get(client, -1))[: self.count]


def strangers(clients, state, generator):  # type: ignore[no-untyped-def]
    return [99]


def nobody(clients, state, generator):  # type: ignore[no-untyped-def]
    return []


def fractions(clients, state, generator):  # type: ignore[no-untyped-def]
    return [0.5]


def state_of(round: int) -> State:
    return State(round, {}, {}, {}, {}, {})


def test_uniform_draws_each_client_as_often_as_any_other_and_each_round_anew() -> None:
    drawn = [list(select(Uniform(3), range(10), state_of(round), seed=0)) for round in range(400)]
    assert all(len(set(clients)) == 3 and clients == sorted(clients) for clients in drawn)
    counts = torch.bincount(torch.tensor(drawn).flatten(), minlength=10)
    assert counts.min() > 85  # 120 expected, with a deviation of 9
    assert counts.max() < 155
    assert drawn == [list(select(Uniform(3), range(10), state_of(round), seed=0)) for round in range(400)]
    assert drawn != [list(select(Uniform(3), range(10), state_of(round), seed=1)) for round in range(400)]


def test_who_is_not_asked_is_not_absent_and_sends_nothing() -> None:
    history = run(tiny(selection="uniform:2", scenario="dropout:0.4", rounds=8))
    for record in history.records:
        assert record.asked is not None
        assert len(record.asked) == 2
        assert {*record.absent, *record.weights} == set(record.asked)
        assert set(record.client_seconds) == set(record.asked) - set(record.absent)
        assert all(seconds > 0 for seconds in record.client_seconds.values())
    assert any(record.absent for record in history.records)
    assert history.state is not None
    assert set(history.state.absent) == set(history.records[-1].absent)


def test_everybody_is_asked_as_before_and_the_record_says_so() -> None:
    record = run(tiny(rounds=1)).records[0]
    assert record.asked is None
    assert set(record.client_seconds) == {0, 1, 2, 3}


def test_selection_draws_first_then_absence_so_the_unasked_have_no_stand_in() -> None:
    away = {"name": "intervals", "away": [[0, 4, 10], [1, 4, 10]]}
    history = run(with_digests(scenario=away, rounds=9, selection="uniform:2"))
    left_digests: set[int] = set()
    for record in history.records:
        asked = set(record.asked or ())
        assert set(record.absent) <= asked
        assert set(record.stand_ins) == asked & {0, 1} & left_digests if record.round > 3 else not record.stand_ins
        left_digests |= asked - set(record.absent)  # each leaves its digest when it is first asked
    assert any(record.stand_ins for record in history.records)
    assert any({0, 1} - set(record.asked or ()) for record in history.records[3:])
    assert history.state is not None
    assert set(history.state.digests) == left_digests


@pytest.mark.parametrize("trust", ["fedtest:testers=2", "jury", "krum:f=1"])
def test_trust_rules_work_among_those_asked(trust: str) -> None:
    history = run(tiny(partition="iid", clients=6, trust=trust, selection="uniform:4", rounds=3))
    assert all(set(record.weights) <= set(record.asked or ()) for record in history.records)
    assert all(sum(record.weights.values()) == pytest.approx(1) for record in history.records)


def test_hostile_clients_that_are_not_asked_do_nothing() -> None:
    keys = {"partition": "iid", "clients": 6, "attack": "signflip", "attackers": 1, "selection": "uniform:2"}
    assert len(run(tiny(**keys, rounds=5)).accuracy) == 5


@pytest.mark.parametrize("selection", ["uniform:2", "test_selection:Longest"])
@pytest.mark.parametrize("algorithm", ["scaffold", "adabest"])
def test_the_same_bits_with_workers_and_after_a_resume(selection: str, algorithm: str, tmp_path: Path) -> None:
    keys = {"selection": selection, "algorithm": algorithm, "scenario": "dropout:0.3", "rounds": 6, "lr": 0.01}
    reference = run(tiny(**keys))
    interrupted(tiny(**keys), tmp_path / "run", after=3)
    resumed = resume(tmp_path / "run")
    assert_same_run(resumed, reference)
    asked = [record.asked for record in reference.records]
    assert [record.asked for record in resumed.records] == asked
    assert [record.asked for record in Run.open(tmp_path / "run").records()] == asked
    if algorithm == "scaffold":
        assert_same_run(run(tiny(**keys, workers=2)), reference)


def test_all_of_it_together_with_workers_and_after_a_resume(tmp_path: Path) -> None:
    keys = {
        "selection": "uniform:3",
        "optimizer": {"name": "adam", "keep": True},
        "server_optimizer": "yogi",
        "clip_norm": 1.0,
        "schedule": "cosine:warmup=2",
        "algorithm": "feddyn:0.1",
        "scenario": "dropout:0.3",
        "rounds": 6,
    }
    reference = run(with_digests(**keys))
    assert_same_run(run(with_digests(**keys, workers=2)), reference)
    interrupted(with_digests(**keys), tmp_path / "run", after=4)
    assert_same_run(resume(tmp_path / "run"), reference)


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        ("unifrom:2", "selection: 'unifrom' is not known; did you mean 'uniform'?"),
        ("uniform", "'uniform' needs the option 'count'"),
        ("uniform:0", "count must be at least 1"),
        ("uniform:5", "selection: 5 of 4 clients cannot be asked; ask fewer."),
        ("test_selection:strangers", "selection: 99 is no client of this experiment"),
        ("test_selection:nobody", "selection: nobody is asked in round 1"),
        ("test_selection:fractions", "does not work here (TypeError"),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_round_1(selection: str, says: str) -> None:
    with pytest.raises(HoldfastError) as error:
        make_plan(tiny(selection=selection))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_reports_say_not_asked_and_never_away(tmp_path: Path) -> None:
    away = {1: "away (x)"}
    records = [judged(1, 0.5, asked=[0]), judged(2, 0.5, asked=[1], absent=away), judged(3, 0.5, asked=[0])]
    story = read_story(make_run(tmp_path / "run", records, clients=2, rounds=3))
    assert run_payload(story, "x")["presence"] == ["pnp", "nan"]
    assert absence_in_words([story]) == "when 1 of 2 clients left"  # it was away when it was last asked
    assert "away" not in " ".join(headline([story]))
    assert dict(scalars(records[0], []))["clients/asked"] == 1.0
    assert [who_was_there(record) for record in records] == ["asked: 0", "asked: 1; away: 1", "asked: 0"]
    assert happenings(History(Experiment(clients=2), records)) == []


def test_a_record_round_trips_and_one_of_old_means_everyone() -> None:
    record = judged(1, 0.5, asked=[1], client_seconds={1: 0.25})
    assert record_from_json(record_to_json(record), 10) == record
    line = {key: value for key, value in record_to_json(record).items() if key not in ("asked", "client_seconds")}
    assert record_from_json(line, 10).was_asked(7)


def test_check_shows_who_is_asked_and_methods_lists_the_choices(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text('model = "linear"\nsamples = 200\nclients = 4\nrounds = 6\nselection = "uniform:1"\n')
    told = CliRunner().invoke(app, ["check", str(file)]).output
    assert "uniform:1 of 4 clients are asked in each round" in told
    lines = [line.split()[2] for line in told.splitlines() if line.strip().startswith("client ")]
    assert [column.count("█") for column in zip(*lines, strict=True)] == [1] * 6
    listed = CliRunner().invoke(app, ["methods"]).output
    for name in ("adamw", "warmup=0", "yogi", "uniform", "tau=0.001"):
        assert name in listed
