"""Epsilon for a patient with all records: each enters as one record, in digests, gradients and noised answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.absence import FedDig
from holdfast.audit.findings import as_json, examine
from holdfast.audit.target import subject_of
from holdfast.context import About
from holdfast.core.errors import HoldfastError
from holdfast.data.contract import Kind
from holdfast.data.kinds import Classes, Hazards, Regression
from holdfast.data.natural import given_parts
from holdfast.data.task import Samples, Task
from holdfast.digests.moments import MomentDigest
from holdfast.digests.release import claim_of, make_release
from holdfast.digests.sums import bounds_of, targets_of
from holdfast.engines.inline import Inline
from holdfast.learning.objective import TaskLoss
from holdfast.one_total import learn_total
from holdfast.play import run
from holdfast.privacy import moment_noise
from holdfast.privacy.dp_steps import Noisy
from holdfast.privacy.grid import quantise
from holdfast.privacy.ledger import read_ledger
from holdfast.privacy.noise import seeded, system
from holdfast.privacy.patients import first_each, first_of, for_patients, one_each, whose_of
from holdfast.privacy.sum_noise import exact_whole
from holdfast.report.privacy_page import as_text
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment
from holdfast.secure_exchange import Exchange

K, CLASSES = 3, 3


def records(draw: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Records anywhere in the ball, many of them on its border."""
    z = draw.normal(size=(count, K))
    z *= np.minimum(1.0, draw.uniform(0.5, 2.0, (count, 1))) / np.linalg.norm(z, axis=1, keepdims=True)
    return torch.from_numpy(z).float(), torch.from_numpy(draw.integers(0, CLASSES, count))


def neighbours(draw: np.random.Generator) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Two sites that differ in one patient, who has 1 to 6 records at either."""
    (z, y), whose = records(draw, 8), torch.tensor([0, 0, 1, 1, 1, 2, 3, 3])
    found = []
    for k in draw.integers(1, 7, 2):
        more, labels = records(draw, int(k))
        found.append((torch.cat([z, more]), torch.cat([y, labels]), torch.cat([whose, torch.full((int(k),), 4)])))
    return found


def test_replacing_a_patient_moves_both_stages_no_further_than_their_sensitivity() -> None:
    draw, far = np.random.default_rng(0), [0.0, 0.0]
    centres = moment_noise.Centres(np.full((CLASSES, K), 0.2), np.full(CLASSES, 0.5))
    w, s = moment_noise.WEIGHT, moment_noise.CLASSWISE
    for _ in range(300):
        stages = []
        for z, y, whose in neighbours(draw):
            values, labels = one_each(z, y, whose, Classes())
            v = quantise(values.double().numpy(), moment_noise.GRID).values
            first = moment_noise.exact_first(v, labels.numpy(), CLASSES)
            second = moment_noise.exact_second(
                moment_noise.residuals(v, labels.numpy(), centres), labels.numpy(), CLASSES
            )
            twice = (
                moment_noise.square(np.concatenate([second.classwise, second.shared[None]]), K) / moment_noise.STEPS**2
            )
            one = np.concatenate([first.counts, first.sums.ravel()]) / moment_noise.STEPS
            parts = [second.counts / moment_noise.STEPS * w / 2, second.sums.ravel() / moment_noise.STEPS * w**0.5]
            parts += [twice[:-1].ravel() * s**0.5, twice[-1].ravel() * (1 - s) ** 0.5]
            stages.append((one, np.concatenate(parts)))
        for stage in (0, 1):
            far[stage] = max(far[stage], float(np.linalg.norm(stages[0][stage] - stages[1][stage])))
    assert far[0] <= moment_noise.D1
    assert far[1] <= moment_noise.D2
    assert far[0] > 0.8 * moment_noise.D1  # the search comes near


@pytest.mark.parametrize("kind", [Regression(), Hazards((1.0, 2.0, 3.0))], ids=["regression", "hazards"])
def test_replacing_a_patient_moves_sums_no_further_than_their_sensitivity(kind: Kind) -> None:
    draw, far = np.random.default_rng(1), 0.0
    bounds = bounds_of(kind, 0)
    for _ in range(300):
        sums = []
        for z, _, whose in neighbours(draw):
            times = torch.from_numpy(draw.uniform(0, 4, (len(z), 1))).float()
            events = torch.from_numpy(draw.integers(0, 2, (len(z), 1))).float()
            target = times if kind.name == "regression" else torch.cat([times, events], dim=1)
            kept = torch.arange(8)
            target[kept] = torch.ones_like(target[kept])  # the others are the same at both
            x, t = one_each(z, target, whose, kind)
            cells, second, squares = exact_whole(x.double().numpy(), targets_of(kind, t, 0, (0.0, 4.0)), bounds)
            whole = moment_noise.square(second, K)
            sums.append(np.concatenate([cells.ravel(), whole.ravel(), squares]) / moment_noise.STEPS**2)
        far = max(far, float(np.linalg.norm(sums[0] - sums[1])))
    assert 0.3 * bounds.sensitivity < far <= bounds.sensitivity


def test_a_patients_gradient_is_the_mean_of_its_records_and_no_longer_than_the_clip() -> None:
    """w = 0, loss -x . w: the gradient of a record is -x; patient 0 has (3, 0) and (0, 4), patient 1 has (0, 1)."""
    model = nn.Linear(2, 1, bias=False)
    samples = Samples((torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, 4.0]]),), torch.zeros(3))
    whose = torch.tensor([0, 1, 0])
    objective = TaskLoss(lambda output, labels: -output.mean())
    for at_once in (1, 100):
        noisy = Noisy(1.0, 0.0, 1.0, 1, system(), whose)
        parts = list(noisy.pieces(torch.arange(3), at_once))
        assert [sorted(whose[part].tolist()) for part in parts] == ([[0, 0], [1]] if at_once == 1 else [[0, 0, 1]])
        noisy.fill_gradients(model, samples, torch.arange(3), objective)
        # Patient 0: -(1.5, 2), length 2.5, shortened to -(0.6, 0.8); patient 1: -(0, 1).
        assert model.weight.grad[0].tolist() == pytest.approx([-0.6, -1.8], abs=1e-3)
    batches = list(Noisy(1.0, 1.0, 0.5, 1, seeded(0), whose).batches(3))
    assert len(batches) == 2  # of two patients, one at a time on average
    assert all(set(batch.tolist()) in (set(), {0, 2}, {1}, {0, 1, 2}) for batch in batches)


def test_one_record_of_each_patient() -> None:
    samples = Samples((torch.arange(5.0)[:, None],), torch.zeros(5).long(), {"id": torch.tensor([9, 3, 9, 3, 7])})
    assert whose_of(samples, "id").tolist() == [2, 0, 2, 0, 1]
    assert first_of(whose_of(samples, "id")).tolist() == [0, 1, 4]
    assert first_each(samples, "id").facts["id"].tolist() == [9, 3, 7]
    assert whose_of(samples, None) is None
    assert first_each(samples, "nobody") is samples


def test_a_release_says_for_whom_its_promise_is() -> None:
    draw = np.random.default_rng(2)
    z, y = records(draw, 400)
    whose = torch.arange(400) // 4
    for options in (FedDig(mode="moments", epsilon=8.0), FedDig(mode="dp-full"), FedDig(mode="dp-label-public")):
        sealed, claim = make_release(
            options, About("t", CLASSES, "e", (K,)), z, y, torch.Generator(), system(), None, whose
        )
        assert claim.for_patients
        assert "one patient" in claim.guarantee
        text = b"".join(bytes(t.numpy()) for n, t in sealed.items() if n in ("manifest", "claim"))
        assert b"one patient" in text
        again = claim_of(options, (K,), CLASSES)
        assert replace(for_patients(again), spd=claim.spd) == claim  # the noise is the same
    published = make_release(FedDig(), About("t", CLASSES, "e", (K,)), z, y, torch.Generator(), system(), None, whose)[
        1
    ]
    assert not published.for_patients


# The whole ------------------------------------------------------------------------------------------------------


def patients_task() -> Task:
    """Two classes of 240 records, of 60 patients with four each, at two sites."""
    draw = np.random.default_rng(3)
    labels = torch.arange(240) // 4 % 2
    values = torch.from_numpy(draw.normal(size=(240, 4))).float() + labels[:, None]
    facts = {"patient": torch.arange(240) // 4, "site": torch.arange(240) // 120}
    data = Samples((values,), labels, facts)
    return Task("visits", data, Samples((values,), labels), ("no", "yes"), person="patient", site="site")


def test_a_run_counts_patients(tmp_path: Path) -> None:
    policy = tmp_path / "privacy.toml"
    policy.write_text('max_epsilon = 9\ndelta = 1e-5\nmodes = ["dp-sgd"]\n[channels]\nmetrics = "noised:2"\n')
    experiment = Experiment(
        task=patients_task(), partition="column:site", rounds=2, batch_size=8, workers=0,
        protect={"name": "dp-sgd", "epsilon": 4, "policy": str(policy)},
    )  # fmt: skip
    history = run(experiment, tmp_path / "run")
    assert history.records[-1].metrics
    for client in (0, 1):
        entries = read_ledger(tmp_path / "run" / "clients" / f"{client:04d}" / "privacy-ledger.json").entries
        assert {entry.claim.mode for entry in entries} == {"dp-sgd", "counts"}
        assert all(entry.claim.for_patients for entry in entries)
        steps = next(entry.claim for entry in entries if entry.claim.mode == "dp-sgd")
        assert steps.rate == pytest.approx(8 / 24)  # 24 of 30 patients train, 96 of 120 records


def test_a_secure_sum_counts_patients(tmp_path: Path) -> None:
    """300 patients of four visits each, dealt out to three sites: of each patient of a site one record counts."""
    rows = [f"{i // 4},{i % 7 + 3 * (i // 4 % 2)},{i // 4 % 2}" for i in range(1200)]
    (tmp_path / "visits.csv").write_text("id,age,ill\n" + "\n".join(rows) + "\n")
    (tmp_path / "visits.toml").write_text(
        'name = "visits"\nversion = "1"\npatient = "id"\n[target]\ncolumn = "ill"\nkind = "classes"\n'
        'values = {0 = "no", 1 = "yes"}\n[columns.age]\nkind = "number"\nrange = [0, 10]\n'
    )
    experiment = Experiment(
        task=str(tmp_path / "visits.toml"), data=str(tmp_path / "visits.csv"), clients=3, partition="iid", workers=0,
        algorithm="oneshot", rounds=1, protect="secure-sum",
        absence={"name": "feddig", "mode": "moments", "epsilon": 20.0, "large_delta": True},
    )  # fmt: skip
    plan = make_plan(experiment)
    clients = {id: plan.client(id, plan.model(), tmp_path) for id in range(3)}
    total = learn_total(Exchange(Inline(clients), plan.method, 0), plan.method.absence, range(3))
    assert isinstance(total, MomentDigest)
    patients = sum(len(set(client.train.facts["id"].tolist())) for client in clients.values())
    assert patients < 0.7 * sum(len(client.train) for client in clients.values())
    assert total.counts.sum() == pytest.approx(patients, abs=15)
    [entry] = read_ledger(tmp_path / "clients" / "0000" / "privacy-ledger.json").entries
    assert entry.claim.for_patients
    assert total.claim.for_patients


def test_a_split_that_divides_a_patient_is_refused() -> None:
    task = patients_task()
    part = torch.arange(240) % 2
    facts = {**task.train.facts, "part": part}
    task = replace(task, train=replace(task.train, facts=facts), fact_values={"part": ("train", "test")})
    with pytest.raises(HoldfastError, match="some person's samples into two parts"):
        given_parts("part", task, torch.arange(240))


@pytest.mark.parametrize("column", [False, True])
def test_the_page_says_for_whom_epsilon_counts(column: bool, tmp_path: Path) -> None:
    rows = [f"{i // 4},{i % 7},{i // 4 % 2}" for i in range(400)]
    (tmp_path / "visits.csv").write_text("id,age,ill\n" + "\n".join(rows) + "\n")
    schema = 'name = "visits"\nversion = "1"\n' + ('patient = "id"\n' if column else "")
    schema += '[target]\ncolumn = "ill"\nkind = "classes"\nvalues = {0 = "no", 1 = "yes"}\n'
    schema += '[columns.age]\nkind = "number"\nrange = [0, 10]\n'
    (tmp_path / "visits.toml").write_text(schema)
    said = {"task": str(tmp_path / "visits.toml"), "data": str(tmp_path / "visits.csv"), "clients": 2}
    said |= {"partition": "iid", "absence": {"name": "feddig", "mode": "moments"}, "workers": 0}
    (tmp_path / "e.json").write_text(json.dumps(said))
    findings = examine(subject_of(tmp_path / "e.json"), system(), trials=40, see=False)
    text, told = as_text(findings), as_json(findings)
    if column:
        assert "per patient with all records, at this site" in text
        assert "have records at other clients too: nobody is covered twice" in text
        assert told["epsilon_person_with_5_records"] == pytest.approx(3.0, abs=1e-3)
    else:
        assert "per record; for a person with 5 records this is about 21" in text
        assert told["epsilon_person_with_5_records"] == pytest.approx(21.1, abs=0.1)
