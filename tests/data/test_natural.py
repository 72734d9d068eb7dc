"""Natural federations: clients by a column of the data, splits by person, tasks and samples given as objects."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tests.support as support
from holdfast import Experiment, HoldfastError, Samples, Task, resume, run
from holdfast.cli.running import who_was_there
from holdfast.data.natural import Column, split_by
from holdfast.report.payload import run_payload
from holdfast.report.run_data import read_story
from holdfast.runs.build import make_plan
from holdfast.runs.store import Run

SITES = ("North", "South", "West")


def hospital_task(rows: int = 120, *, person: bool = False, site: bool = True) -> Task:
    random = np.random.default_rng(3)
    x = random.normal(size=(rows, 5))
    y = (x[:, 0] + 0.3 * random.normal(size=rows) > 0).astype(int)
    facts = {"hospital": random.integers(0, 3, rows), "patient": random.integers(0, rows // 3, rows)}
    return Task(
        "study",
        Samples(x, y, facts),
        Samples(x[:30], y[:30]),
        ("well", "ill"),
        fact_values={"hospital": SITES},
        site="hospital" if site else None,
        person="patient" if person else None,
    )


def test_numpy_arrays_and_frames_become_tensors():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    samples = Samples(frame, pandas.Series([0, 1]), {"site": [1, 0]})  # type: ignore[dict-item]
    assert samples.inputs[0].dtype == torch.float32
    assert samples.labels.dtype == torch.int64
    assert samples.take(torch.tensor([1])).facts["site"].tolist() == [0]
    assert Samples(np.zeros((2, 1, 3, 3), np.uint8), [0, 1]).inputs[0].dtype == torch.uint8
    assert Samples(np.array([[7, 300]]), [0]).inputs[0].dtype == torch.int64  # token ids stay whole


@pytest.mark.parametrize(("x", "y", "facts"), [(["a"], [0], {}), ([[1.0]], ["x"], {}), ([[1.0]], [0], {"site": [0.5]})])
def test_what_is_no_number_is_one_sentence(x, y, facts):
    with pytest.raises(HoldfastError, match="samples: ") as raised:
        Samples(x, y, facts)
    assert "\n" not in str(raised.value)


def test_a_task_object_runs_by_its_sites_and_resumes(tmp_path):
    task = hospital_task()
    experiment = Experiment(task=task, rounds=3, model="mlp")
    plain = run(experiment)
    assert plain.experiment.clients == 3
    assert plain.experiment.names == SITES
    history = run(Experiment(task=task, rounds=3, model="mlp"), tmp_path / "r")
    again = Run.open(tmp_path / "r").experiment
    assert again.names == SITES
    assert again.fingerprint == experiment.fingerprint == history.experiment.fingerprint
    assert all(torch.equal(history.state.model[name], tensor) for name, tensor in plain.state.model.items())


def test_resume_takes_the_same_task_again_and_no_other(tmp_path):
    task = hospital_task()
    whole = run(Experiment(task=task, rounds=4, model="mlp"), tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(record):
        raise Stop

    with pytest.raises(Stop):
        run(Experiment(task=task, rounds=4, model="mlp"), tmp_path / "cut", watch=stop)
    with pytest.raises(HoldfastError, match="give it again"):
        resume(tmp_path / "cut")
    with pytest.raises(HoldfastError, match="was begun with the task"):
        resume(tmp_path / "cut", task=hospital_task(90))
    history = resume(tmp_path / "cut", task=task)
    assert all(torch.equal(history.state.model[name], tensor) for name, tensor in whole.state.model.items())


def test_clients_come_from_the_column_and_a_wrong_number_is_refused():
    task = hospital_task()
    plan = make_plan(Experiment(task=task, partition="column:hospital", model="mlp"))
    for client, parts in enumerate(plan.parts):
        held = torch.cat(parts)
        assert set(task.train.facts["hospital"][held].tolist()) == {client}
    assert sorted(torch.cat([torch.cat(parts) for parts in plan.parts]).tolist()) == list(range(120))
    with pytest.raises(HoldfastError, match=r"clients: 5, but column gives 3 \('North, South, West'\)"):
        make_plan(Experiment(task=task, partition="column", clients=5, model="mlp"))
    with pytest.raises(HoldfastError, match="has no column 'hospitl'; did you mean 'hospital'"):
        make_plan(Experiment(task=task, partition="column:hospitl", model="mlp"))
    with pytest.raises(HoldfastError, match="names no column of sites"):
        make_plan(Experiment(partition="column"))


def test_a_column_without_names_is_called_by_its_number():
    task = hospital_task()
    assert list(Column("patient").sites(task))[:2] == ["patient 0", "patient 1"]


@pytest.mark.parametrize(
    ("deal", "says"),
    [
        (lambda labels, clients, generator: [[0, 1], np.array([2, 3])], None),
        (lambda labels, clients, generator: [[0, 1], [0, 1]], "two clients"),
        (lambda labels, clients, generator: [[0, 1], [2, 999]], "positions that are not 0 to 119"),
        (lambda labels, clients, generator: [[0.5], [1.5]], "whole numbers"),
        (lambda labels, clients, generator: 7, "a list with the positions"),
    ],
)
def test_partitions_of_lists_and_arrays(deal, says, monkeypatch):
    monkeypatch.setattr(support, "deal_out", deal, raising=False)
    experiment = Experiment(
        task=hospital_task(site=False), partition="tests.support:deal_out", clients=2, model="mlp", trust="uniform"
    )
    if says is None:
        assert [sorted(torch.cat(parts).tolist()) for parts in make_plan(experiment).parts] == [[0, 1], [2, 3]]
        return
    with pytest.raises(HoldfastError, match=says):
        make_plan(experiment)


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=1, max_size=80),
    st.sampled_from(["80/10/10", "60/20/20", "50/0/50"]),
    st.integers(0, 5),
)
def test_nobody_is_in_two_parts_and_nothing_is_lost(rows, how, seed):
    people, labels = (torch.tensor(column) for column in zip(*rows, strict=True))
    samples = Samples(torch.zeros(len(rows), 1), labels, {"patient": people})
    task = Task("t", samples, samples, ("a", "b", "c"), person="patient")
    parts = split_by(how, task, torch.arange(len(rows)), torch.Generator().manual_seed(seed))
    assert sorted(torch.cat(parts).tolist()) == list(range(len(rows)))
    assert len(parts[0])
    owners = [set(people[part].tolist()) for part in parts]
    assert len(owners[0] | owners[1] | owners[2]) == sum(map(len, owners))


def test_a_split_is_stratified():
    labels = torch.tensor([0] * 90 + [1] * 10)
    samples = Samples(torch.zeros(100, 1), labels, {"site": torch.zeros(100, dtype=torch.long)})
    task = Task("t", samples, samples, ("a", "b"), site="site")
    parts = split_by("80/10/10", task, torch.arange(100), torch.Generator().manual_seed(0))
    assert [len(part) for part in parts] == [80, 10, 10]
    assert [int(labels[part].sum()) for part in parts] == [8, 1, 1]


def test_a_given_split_is_respected():
    samples = Samples(torch.zeros(4, 1), torch.tensor([0, 1, 0, 1]), {"part": [0, 1, 2, 0]})  # type: ignore[dict-item]
    task = Task("t", samples, samples, ("a", "b"), fact_values={"part": ("train", "test", "validation")})
    train, validation, test = split_by("column:part", task, torch.arange(4), torch.Generator())
    assert (train.tolist(), validation.tolist(), test.tolist()) == ([0, 3], [2], [1])


@pytest.mark.parametrize("how", ["80/20", "0/50/50", "a/b/c", "", "80/10/-10"])
def test_a_split_that_is_none_is_one_sentence(how):
    with pytest.raises(HoldfastError, match="split: expected three shares"):
        make_plan(Experiment(split=how, samples=100))


def test_people_read_names_wherever_clients_are_named(tmp_path, capsys):
    experiment = Experiment(task=hospital_task(), rounds=2, model="mlp", scenario="sequential", trust="jury")
    history = run(experiment, tmp_path / "r")
    payload = run_payload(read_story(tmp_path / "r"), "r")
    assert payload["names"] == list(SITES)
    assert who_was_there(history.records[-1], history.experiment.names) == "away: North, South"
