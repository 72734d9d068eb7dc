"""Mean and deviation of columns over all members: from sums, exactly, with noise, embedded and over Flower."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.client.scale import ScaleReply, sums_of
from holdfast.core.errors import HoldfastError
from holdfast.data.named import HEART_FILE, load_task
from holdfast.data.tables.schema import read_schema
from holdfast.data.tables.source import site_tables
from holdfast.data.task import Samples
from holdfast.flower import client_app
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.flower.engine.moderator import play_over
from holdfast.models.scaling import Columns, Scaling
from holdfast.play import run
from holdfast.privacy.gate import LEDGER
from holdfast.privacy.ledger import read_ledger
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment
from holdfast.runs.export import load_model
from holdfast.runs.scaling import scale_of

SCHEMA = read_schema(HEART_FILE.with_suffix(".toml"))
NUMBERS = [(column, start) for column, start in SCHEMA.places if column.kind == "number"]


def heart(**keys: object) -> Experiment:
    told = {"task": "heart", "scaling": "federated", "rounds": 1, "workers": 0, "lr": 0.1, **keys}
    return Experiment(**told)  # type: ignore[arg-type]


def pooled(experiment: Experiment) -> dict[str, tuple[float, float]]:
    """Mean and deviation of each column over all members' training records, by NumPy, without the missing cells."""
    plan = make_plan(experiment)
    records = plan.task.train.inputs[0][torch.cat([train for train, _, _ in plan.parts])].numpy().astype(np.float64)
    found = {}
    for column, start in NUMBERS:
        there = records[:, start + 1] == 0 if column.missing == "indicator" else np.full(len(records), True)
        found[column.name] = (records[there, start].mean(), records[there, start].std())
    return found


@pytest.mark.parametrize(("absence", "unit"), [("none", 1.0), ("feddig", SCHEMA.longest)])
def test_the_members_sums_make_the_pooled_mean_and_deviation(absence: str, unit: float, tmp_path: Path) -> None:
    experiment = heart(absence=absence, rounds=2)
    model = run(experiment, tmp_path / "run").state.model  # type: ignore[union-attr]
    for (column, start), (mean, deviation) in zip(NUMBERS, pooled(experiment).values(), strict=True):
        assert float(model["scaling.mean"][start]) * unit == pytest.approx(mean, abs=1e-6), column.name
        assert float(model["scaling.deviation"][start]) == pytest.approx(deviation, rel=1e-5), column.name
    untouched = [position for position in range(len(SCHEMA.encoded)) if position not in [at for _, at in NUMBERS]]
    assert model["scaling.mean"][untouched].eq(0).all()
    assert model["scaling.deviation"][untouched].eq(1).all()
    again = load_model(tmp_path / "run").network.model  # the file alone carries the numbers
    assert torch.equal(again.get_parameter("scaling.mean"), model["scaling.mean"])


def test_what_the_network_sees_is_standardised_and_a_missing_cell_is_0() -> None:
    columns = Columns(4, (0, 2), (1, None), unit=0.5)
    layer = Scaling(columns)
    layer.mean.copy_(torch.tensor([0.1, 0.0, 0.2, 0.0]))
    layer.deviation.copy_(torch.tensor([0.5, 1.0, 2.0, 1.0]))
    seen = layer(torch.tensor([[0.3, 0.0, 0.4, 1.0], [0.0, 0.5, 0.2, 0.0]]))
    assert seen[0].tolist() == pytest.approx([0.4, 0.0, 0.1, 1.0])
    assert seen[1].tolist() == pytest.approx([0.0, 0.5, 0.0, 0.0])


def test_no_record_moves_the_sums_further_than_the_noise_covers() -> None:
    columns, generator = Columns(3, (0, 1), (2, None)), torch.Generator().manual_seed(0)
    drawn = (torch.rand(400, 3, generator=generator) * 2 - 1).clamp(-1, 1)
    drawn[::2, :2] = drawn[::2, :2].sign()
    drawn[:, 2] = (drawn[:, 2] > 0.5).float()
    drawn[:, 0] *= 1 - drawn[:, 2]
    labels = torch.zeros(1, dtype=torch.long)
    sums = torch.tensor([sums_of(Samples((row[None],), labels), columns) for row in drawn])
    moved = torch.cdist(sums, sums)
    assert columns.most_moved == pytest.approx(2 * math.sqrt(2))
    assert 0.99 * columns.most_moved < float(moved.max()) <= columns.most_moved + 1e-6


def test_sums_that_no_records_have_move_the_scale_within_the_range_only() -> None:
    columns = Columns(2, (0,), (1,))
    odd = [ScaleReply([-9.0, 1e30, -1e30], 10), ScaleReply([3.0, 3.5, 2.0], 10)]
    scale = scale_of([(one, 10) for one in odd], columns)
    assert float(scale["scaling.mean"].abs().max()) <= 1
    assert float(scale["scaling.deviation"].max()) <= 1
    assert scale_of([(ScaleReply([10.0, 0.0, 0.0], 10), 10)], columns)["scaling.deviation"].tolist() == [1, 1]


def test_noised_sums_are_counted_before_they_leave_and_kept_where_nothing_allows_them(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    said = {0: 'scaling = "noised:0.7"\nmetrics = "open"\nloss = "open"\nnotes = "open"\n', 1: ""}
    for client, channels in said.items():
        home = folder / "clients" / f"{client:04d}"
        home.mkdir(parents=True)
        (home / "privacy.toml").write_text(
            f'max_epsilon = 1.0\ndelta = 1e-5\nmodes = ["moments"]\nprotect_updates = false\n[channels]\n{channels}'
        )
    experiment = heart()
    history = run(experiment, folder)
    (entry,) = read_ledger(folder / "clients" / "0000" / LEDGER).entries
    assert (entry.claim.mode, entry.claim.epsilon_nominal) == ("counts", 0.7)
    assert entry.claim.clip == 2 * math.sqrt(len(NUMBERS))
    assert "'scale'" in entry.what
    assert any("mean and deviation are without Hungary" in note for note in history.records[0].notes)
    model, exact = history.state.model, run(experiment).state.model  # type: ignore[union-attr]
    far = (model["scaling.mean"] - exact["scaling.mean"]).abs().max()
    assert 0 < float(far) < 0.5


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"task": "fashion-mini"}, "only a table has columns to scale"),
        ({"algorithm": "oneshot", "absence": "feddig:mode=sums"}, "the heads of 'oneshot'"),
        ({"absence": "feddig", "encoder": "table:fourier=64"}, "choose encoder = 'table', without fourier"),
    ],
)
def test_what_has_no_columns_is_refused(keys: dict[str, str], sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence):
        make_plan(heart(**keys))


def test_sites_over_flower_come_to_the_same_numbers(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(HEART_FILE.with_suffix(".toml").read_text())
    (tmp_path / "policy.toml").write_text("min_records = 5\n")
    tables = site_tables(SCHEMA, HEART_FILE, tmp_path / "tables")
    experiment = heart(task=str(tmp_path / "schema.toml"), names=tuple(tables), split="100/0/0")
    configs = {
        100 + number: {
            "site": name,
            "folder": str(tmp_path / f"site-{number}"),
            "table": str(table),
            "policy": str(tmp_path / "policy.toml"),
        }
        for number, (name, table) in enumerate(tables.items())
    }
    grid = InProcessGrid(client_app(experiment), configs)
    history = play_over(grid, experiment, {"out": str(tmp_path / "run"), "sites": ",".join(tables)})
    with open(HEART_FILE, newline="") as file:
        ages = np.array([float(row["age"]) for row in csv.DictReader(file)])
    (age, start) = NUMBERS[0]
    assert age.name == "age"
    scale = history.state.model  # type: ignore[union-attr]
    half, middle = (age.high - age.low) / 2, (age.high + age.low) / 2
    assert float(scale["scaling.mean"][start]) * half + middle == pytest.approx(ages.mean(), rel=1e-6)
    assert float(scale["scaling.deviation"][start]) * half == pytest.approx(ages.std(), rel=1e-6)
    assert len(load_task("heart").train) < len(ages)
