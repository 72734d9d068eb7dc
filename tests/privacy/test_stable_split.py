"""Replacing one record moves no other one between training and validation: else epsilon would be that of many.

With a split that is stratified by class, a single label moved every tenth of the records after it to another part, so
two sites that differ in one record trained on sets that differ in dozens.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from release_helpers import experiment

from holdfast.data.kinds import Classes
from holdfast.data.task import Samples, Task
from holdfast.runs.deal import deal
from holdfast.runs.experiment import Experiment

PROMISES = {
    "moments": {"absence": "feddig:mode=moments,epsilon=3"},
    "updates": {"protect": "dp-sgd:epsilon=3", "absence": "none"},
}


def task_of(labels: torch.Tensor, patients: torch.Tensor | None = None) -> Task:
    """One site's records; each holds its own number."""
    count = len(labels)
    facts = {"site": torch.zeros(count, dtype=torch.long)} | ({} if patients is None else {"patient": patients})
    train = Samples(torch.arange(count).float()[:, None], labels, facts)
    person = None if patients is None else "patient"
    about = {"fact_values": {"site": ("north",)}, "site": "site", "person": person, "kind": Classes()}
    return Task("study", train, train.take(torch.arange(2)), ("healthy", "ill"), **about)


def parts_of(wanted: Experiment, task: Task) -> list[set[int]]:
    [parts] = deal(replace(wanted, clients=1, partition="column:site", names=("north",)), task)
    return [set(part.tolist()) for part in parts]


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("how", ["80/10/10", "90/10/0"])
def test_one_record_with_another_label_moves_no_other_record(promise: str, how: str) -> None:
    wanted = experiment(**PROMISES[promise], split=how)
    labels = (torch.arange(300) % 3 == 0).long()
    before = parts_of(wanted, task_of(labels))
    for row in (0, 17, 150, 299):
        other = labels.clone()
        other[row] = 1 - other[row]
        assert parts_of(wanted, task_of(other)) == before
    assert sum(map(len, before)) == 300


@pytest.mark.parametrize("promise", PROMISES)
def test_one_patient_with_other_records_moves_no_other_patient(promise: str) -> None:
    """The replaced patient has another number, other labels and more records; the rest stay where they are."""
    wanted = experiment(**PROMISES[promise])
    patients = torch.arange(100).repeat_interleave(3)
    labels = (patients % 3 == 0).long()
    before = whose(parts_of(wanted, task_of(labels, patients)), patients)
    for one, other in ((0, 500), (40, 500), (99, -1)):
        first = int((patients == one).nonzero()[0])
        rows = torch.cat([patients[:first], torch.full((8,), other), patients[first + 3 :]])
        after = whose(parts_of(wanted, task_of((rows % 2).abs(), rows)), rows)
        assert [{one if p == other else p for p in part} for part in after] == before


def whose(parts: list[set[int]], patients: torch.Tensor) -> list[set[int]]:
    found = [{int(patients[row]) for row in part} for part in parts]
    assert sum(map(len, found)) == 100  # nobody is in two parts
    return found


def test_without_a_promise_parts_are_stratified_as_before() -> None:
    labels = torch.zeros(300, dtype=torch.long)
    labels[:30] = 1
    task = task_of(labels)
    _, validation, _ = parts_of(experiment(absence="none", split="80/10/10"), task)
    assert sum(int(labels[row]) for row in validation) == 3
