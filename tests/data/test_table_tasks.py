"""Tables as tasks: four hospitals inside the package, one file with a column of sites, one file for each site."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import holdfast
from holdfast.cli import app
from holdfast.core.errors import HoldfastError
from holdfast.core.files import Store
from holdfast.data.named import HEART_FILE, load_task
from holdfast.data.tables.check import check_table
from holdfast.data.tables.schema import read_schema
from holdfast.data.tables.source import own_samples, table_task
from holdfast.encoders import make_encoder
from holdfast.play import resume, run
from holdfast.record import Record
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment, from_table, load
from holdfast.runs.export import load_model

HEART = read_schema(HEART_FILE.with_suffix(".toml"))
SCHEMA = """
name = "ward"
version = "1"
patient = "id"
{site}
[target]
kind = "classes"
column = "ill"
values = ["no", "yes"]
[columns.age]
kind = "number"
range = [0, 100]
missing = "indicator"
"""


@pytest.fixture
def ward(tmp_path: Path) -> Callable[..., Path]:
    """A schema, and tables written beside it."""

    def write(site: str = "", **tables: list[str]) -> Path:
        (tmp_path / "ward.toml").write_text(SCHEMA.format(site=f'site = "{site}"' if site else ""))
        for name, rows in tables.items():
            header = f"age,ill,id{',' + site if site else ''}"
            path = tmp_path / name.replace("__", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join([header, *rows]) + "\n")
        return tmp_path

    return write


def rows(count: int, more: str = "") -> list[str]:
    return [f"{20 + i % 60},{'yes' if i % 3 else 'no'},p{i}{more}" for i in range(count)]


def test_heart_has_all_records_of_four_named_hospitals() -> None:
    task = load_task("heart")
    assert task.fact_values["hospital"] == ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
    assert len(task.train) + len(task.test) == 920
    both = torch.cat([task.train.facts["hospital"], task.test.facts["hospital"]])
    assert torch.bincount(both).tolist() == [303, 294, 123, 200]
    labels = torch.cat([task.train.labels, task.test.labels])
    ill = torch.bincount(both, labels.double())
    assert ill.tolist() == [139, 106, 115, 149]  # heart-disease.names: 303 - 164, 294 - 188, 123 - 8, 200 - 51
    assert check_table(HEART, HEART_FILE).fits


def test_hearts_test_part_is_stratified_in_each_hospital() -> None:
    task = load_task("heart")
    for hospital, count in enumerate([303, 294, 123, 200]):
        test = task.test.labels[task.test.facts["hospital"] == hospital]
        train = task.train.labels[task.train.facts["hospital"] == hospital]
        assert abs(len(test) - count / 5) <= 1
        assert abs(float(test.float().mean()) - float(train.float().mean())) < 0.03


def test_cholesterol_0_means_not_measured() -> None:
    task = load_task("heart")
    swiss = task.train.inputs[0][task.train.facts["hospital"] == 2]
    assert swiss[:, HEART.encoded.index("chol missing")].all()
    assert not swiss[:, HEART.encoded.index("chol")].any()


def test_an_experiment_on_heart_has_four_named_clients() -> None:
    plan = make_plan(Experiment(task="heart", workers=0))
    assert plan.experiment.clients == 4
    assert plan.experiment.names == ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")


def test_another_seed_holds_out_other_records() -> None:
    first, again, other = (table_task(HEART, HEART_FILE, seed) for seed in (0, 0, 1))
    assert torch.equal(first.test.inputs[0], again.test.inputs[0])
    assert not torch.equal(first.test.inputs[0], other.test.inputs[0])


def test_one_file_with_a_column_of_sites(ward: Callable[..., Path]) -> None:
    folder = ward("hall", ward__csv=[*rows(30, ",south"), *rows(20, ",north")])
    (folder / "study.toml").write_text('task = "ward.toml"\ndata = "ward.csv"\nrounds = 2\nworkers = 0\n')
    plan = make_plan(load(folder / "study.toml"))
    assert plan.experiment.names == ("south", "north")
    assert plan.task.person == "id"
    history = holdfast.run(plan.experiment)
    assert history.final_accuracy > 0.4


def test_a_folder_with_one_file_for_each_site(ward: Callable[..., Path]) -> None:
    folder = ward("", **{"sites/north__csv": rows(20), "sites/south__csv": rows(30)})
    plan = make_plan(Experiment(task=str(folder / "ward.toml"), data=str(folder / "sites"), workers=0))
    assert plan.experiment.names == ("north", "south")
    assert len(torch.unique(plan.task.train.facts["id"])) == len(plan.task.train)  # p1 here is not p1 there
    (folder / "sites" / "north.tsv").write_text("age\till\tid\n")
    with pytest.raises(HoldfastError, match="two files are of the site 'north'"):
        make_plan(plan.experiment)


def test_a_sites_file_whose_column_says_another(ward: Callable[..., Path]) -> None:
    folder = ward("hall", **{"sites/north__csv": rows(20, ",north"), "sites/south__csv": rows(30, ",north")})
    with pytest.raises(HoldfastError, match=r"it is the file of site 'south', and its column 'hall' says otherwise"):
        load_task(str(folder / "ward.toml"), folder / "sites")


def test_a_run_goes_on_by_the_schema_it_was_begun_with(ward: Callable[..., Path]) -> None:
    folder = ward("hall", ward__csv=[*rows(20, ",south"), *rows(20, ",north")])
    (folder / "study.toml").write_text('task = "ward.toml"\ndata = "ward.csv"\nrounds = 2\nworkers = 0\n')

    def stop(record: Record) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(load(folder / "study.toml"), folder / "run", watch=stop)
    agreed = (folder / "ward.toml").read_text()
    (folder / "ward.toml").write_text(agreed.replace('version = "1"', 'version = "2"').replace("100]", "120]"))
    with pytest.raises(HoldfastError, match=r"was begun with ward, version 1, and .*ward.toml is ward, version 2"):
        resume(folder / "run")
    (folder / "ward.toml").write_text(agreed)
    assert len(resume(folder / "run").records) == 2


def test_nobody_is_in_two_parts(ward: Callable[..., Path]) -> None:
    twice = [f"{30 + i % 40},{'yes' if i % 2 else 'no'},p{i // 2}" for i in range(100)]
    task = load_task(str(ward("", ward__csv=twice) / "ward.toml"), ward("", ward__csv=twice) / "ward.csv")
    assert not {*task.train.facts["id"].tolist()} & {*task.test.facts["id"].tolist()}


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (["30,yes,p1", "40,yes,p2"], "all records are of one class"),
        (["?,yes,p1", ",no,p2"], "no column that the schema names has a value in any record"),
        (["30,yes,p1", "40,,p2"], r"ward.csv, row 3, column 'ill': the target has no value"),
        (["30,yes,", "40,no,p2"], r"row 2, column 'id': has no value, and it says the patient"),
    ],
)
def test_data_without_hope_is_a_sentence(ward: Callable[..., Path], table: list[str], sentence: str) -> None:
    folder = ward("", ward__csv=table)
    with pytest.raises(HoldfastError, match=sentence):
        load_task(str(folder / "ward.toml"), folder / "ward.csv")


def test_a_site_without_any_value_is_a_sentence_at_each_door(ward: Callable[..., Path]) -> None:
    """Its records would teach the others that whoever has no values is ill."""
    silent = [f"?,{'yes' if i % 3 else 'no'},p{i}" for i in range(20)]
    sentence = "no column that the schema names has a value in any record"
    folder = ward("", **{"sites/north__csv": rows(20), "sites/south__csv": silent})
    with pytest.raises(HoldfastError, match=rf"south.csv: {sentence};"):
        load_task(str(folder / "ward.toml"), folder / "sites")
    schema = read_schema(folder / "ward.toml")
    with pytest.raises(HoldfastError, match=sentence):
        own_samples(schema, folder / "sites" / "south.csv")
    assert sentence in check_table(schema, folder / "sites" / "south.csv").problems[0]
    folder = ward("hall", ward__csv=[*rows(20, ",north"), *(f"{row},south" for row in silent)])
    with pytest.raises(HoldfastError, match=rf"{sentence} of 'south'"):
        load_task(str(folder / "ward.toml"), folder / "ward.csv")
    middle = [row.replace(row.split(",")[0], "50", 1) for row in rows(20)]  # encoded as zeros, and values all the same
    assert len(own_samples(read_schema(ward("", ward__csv=middle) / "ward.toml"), folder / "ward.csv")) == 20


def test_two_sites_with_nearly_one_name_are_refused(ward: Callable[..., Path]) -> None:
    folder = ward("hall", ward__csv=[*rows(20, ",north"), *rows(20, ",North ")])
    sentence = "two sites are called 'north' and 'North'; give both one name"
    with pytest.raises(HoldfastError, match=f"ward.csv: {sentence}"):
        load_task(str(folder / "ward.toml"), folder / "ward.csv")
    assert sentence in check_table(read_schema(folder / "ward.toml"), folder / "ward.csv").problems[0]
    folder = ward("", **{"sites/north__csv": rows(20), "sites/North__csv": rows(20)})
    with pytest.raises(HoldfastError, match="sites: two sites are called 'North' and 'north'"):
        load_task(str(folder / "ward.toml"), folder / "sites")
    with pytest.raises(HoldfastError, match="names must be 2 different texts"):
        Experiment(task=str(folder / "ward.toml"), names=("north", "north"))


def test_a_site_of_one_class_learns_with_the_others_and_is_named(ward: Callable[..., Path]) -> None:
    ill = [f"{20 + i},yes,p{i},south" for i in range(20)]
    folder = ward("hall", ward__csv=[*rows(30, ",north"), *ill])
    (folder / "study.toml").write_text('task = "ward.toml"\ndata = "ward.csv"\nrounds = 1\nworkers = 0\n')
    said = CliRunner().invoke(app, ["check", str(folder / "study.toml")]).output
    assert "all records of south are of one class: no AUROC there" in said
    last = holdfast.run(load(folder / "study.toml", ["absence=feddig"])).records[-1]
    assert set(last.client_metrics["auroc"]) == {0}
    assert set(last.client_metrics["balanced-accuracy"]) == {0, 1}
    assert not last.absent
    assert not last.notes


def test_a_given_split_is_respected(ward: Callable[..., Path]) -> None:
    folder = ward("", ward__csv=[])
    (folder / "ward.toml").write_text(SCHEMA.format(site='site = "hall"\nsplit = "part"'))
    parts = ["train"] * 6 + ["validation"] * 2 + ["test"] * 2
    lines = [f"{20 + i},{'yes' if i % 3 else 'no'},p{i},{'ab'[i % 2]},{parts[i // 2 % 10]}" for i in range(80)]
    (folder / "ward.csv").write_text("\n".join(["age,ill,id,hall,part", *lines]))
    data = str(folder / "ward.csv")
    plan = make_plan(Experiment(task=str(folder / "ward.toml"), data=data, split="column:part", workers=0))
    assert len(plan.task.test) == 16
    assert [[len(part) for part in parts] for parts in plan.parts] == [[24, 8, 0]] * 2


def test_without_a_table_a_schema_is_no_task(ward: Callable[..., Path]) -> None:
    with pytest.raises(HoldfastError, match="is a schema; say in `data` which file or folder follows it"):
        load_task(str(ward() / "ward.toml"))


def test_the_table_encoder_is_linear_and_at_most_1_long() -> None:
    task = load_task("heart")
    encoder = make_encoder("table", task.shape, schema=task.schema)
    z = encoder.encode(task.train.inputs[0])
    assert encoder.norm_bound == 1
    assert float(z.norm(dim=1).max()) <= 1
    torch.testing.assert_close(z, task.train.inputs[0] / 13**0.5)
    most = torch.zeros(1, len(HEART.encoded))  # the longest record there can be: an edge or a 1 in each column
    for column in HEART.columns:
        most[0, HEART.encoded.index(column.encoded[0])] = 1
    assert 0.999 < float(encoder.encode(most).norm()) <= 1


def test_fourier_features_have_length_1_and_approximate_the_kernel() -> None:
    task = load_task("heart")
    encoder = make_encoder("table:fourier=4096,width=0.7", task.shape, schema=task.schema)
    features = encoder.encode(task.train.inputs[0][:50])
    assert float(features.norm(dim=1).max()) <= 1
    z = task.train.inputs[0][:50] / 13**0.5
    kernel = torch.exp(-(torch.cdist(z, z) ** 2) / (2 * 0.7**2))
    assert float((features @ features.T - kernel).abs().max()) < 0.1
    again = make_encoder("table:fourier=4096,width=0.7", task.shape, schema=task.schema)
    other = make_encoder("table:fourier=4096,width=0.7,seed=1", task.shape, schema=task.schema)
    assert encoder.fingerprint == again.fingerprint != other.fingerprint


def test_the_table_encoder_wants_a_schema() -> None:
    with pytest.raises(HoldfastError, match="reads tables that a schema describes"):
        make_encoder("table", (7,))


@pytest.mark.parametrize("mode", ["paper", "moments"])
def test_feddig_on_heart(mode: str) -> None:
    absence = {"name": "feddig", "mode": mode}
    changes = {"scenario": "sequential", "rounds": 8, "workers": 0}
    history = holdfast.run(Experiment(task="heart", absence=absence, **changes))  # type: ignore[arg-type]
    assert history.final_accuracy > 0.7


def test_tcga_brca_is_read_from_its_three_files(tmp_path: Path) -> None:
    folder = tmp_path / "tcga-brca"
    folder.mkdir()
    people = [(f"TCGA-{site}-{i:04}", 40 + i, i % 2) for i, site in enumerate(["AA", "BB", "CC", "AA"] * 10)]
    lines = [f"{pid},{age},{bit},{i % 3 == 0:d}.0,{100 + i}.0" for i, (pid, age, bit) in enumerate(people)]
    (folder / "brca.csv").write_text("\n".join(["pid,age_at_index,stage,E,T", *lines]))
    (folder / "centers.csv").write_text("TSS Code,Region\nAA,West\nBB,Canada\nCC,Other\n")
    folds = [f"{pid},{'test' if i % 5 == 0 else 'train'},x" for i, (pid, _, _) in enumerate(people)]
    (folder / "train_test_split.csv").write_text("\n".join(["pid,fold,fold2", *folds]))
    task = load_task("tcga-brca", tmp_path)
    assert task.fact_values["region"] == ("West", "Canada")
    assert len(task.train) + len(task.test) == 30  # who is elsewhere takes no part
    assert len(task.test) == 6
    assert task.kind.name == "survival"
    plan = make_plan(Experiment(task="tcga-brca", data=str(tmp_path), workers=0, batch_size=64))
    assert plan.experiment.names == ("West", "Canada")
    with pytest.raises(HoldfastError, match=r"found no brca\.csv, centers\.csv"):
        load_task("tcga-brca", folder / "nowhere")


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ('kind = "labels"\ncolumns = ["pain", "fever"]', "labels"),
        ('kind = "survival"\nevent = "fever"\ntime = "days"\ncuts = [3, 6]', "hazards"),
        ('kind = "survival"\nevent = "fever"\ntime = "days"', "survival"),
        ('kind = "regression"\ncolumn = "days"\nrange = [0, 10]', "regression"),
        ('kind = "count"\ncolumn = "days"', "count"),
    ],
)
def test_other_kinds_of_targets_run(tmp_path: Path, target: str, kind: str) -> None:
    head = 'name = "ward"\nversion = "1"\nsite = "hall"\n[columns.age]\nkind = "number"\nrange = [0, 100]\n'
    (tmp_path / "ward.toml").write_text(f"{head}[target]\n{target}\n")
    lines = [f"{20 + i % 60},{'ab'[i % 2]},{i // 2 % 2},{i // 3 % 2},{1 + i % 9}" for i in range(80)]
    (tmp_path / "ward.csv").write_text("\n".join(["age,hall,pain,fever,days", *lines]))
    task = str(tmp_path / "ward.toml")
    changes = {"data": str(tmp_path / "ward.csv"), "rounds": 2, "workers": 0, "lr": 0.001}
    history = holdfast.run(Experiment(task=task, **changes))  # type: ignore[arg-type]
    assert load_task(task, tmp_path / "ward.csv").kind.name == kind
    assert history.final is not None
    bare = load_task(task, members=("a", "b"))
    assert bare.bare
    assert bare.shape == (1,)


def test_a_target_may_be_in_any_unit(tmp_path: Path) -> None:
    """A network learns a number as its public range has it: the error in grams is a thousand times that in kilograms,
    and digests of numbers far from 0 stand in for all who left."""
    random = np.random.default_rng(0)
    age = random.uniform(20, 80, 240)
    weight = 40 + age + random.normal(0, 3, 240)
    found = {}
    for unit, factor in (("kg", 1), ("g", 1000)):
        folder = tmp_path / unit
        folder.mkdir()
        lines = [f"{a:.4f},{'ab'[i % 2]},{w * factor:.4f}" for i, (a, w) in enumerate(zip(age, weight, strict=True))]
        (folder / "ward.csv").write_text("\n".join(["age,hall,weight", *lines]))
        (folder / "ward.toml").write_text(
            'name = "ward"\nversion = "1"\nsite = "hall"\n[columns.age]\nkind = "number"\nrange = [0, 100]\n'
            f'[target]\nkind = "regression"\ncolumn = "weight"\nrange = [0, {200 * factor}]\n'
        )
        changes = {"absence": {"name": "feddig", "mode": "sums"}, "scenario": "sequential", "rounds": 6, "lr": 0.05}
        table = {"task": str(folder / "ward.toml"), "data": str(folder / "ward.csv"), "workers": 0, **changes}
        history = holdfast.run(from_table(table), folder / "run")
        found[unit] = history.final
        assert history.failures == []
        assert load_model(folder / "run").predict(folder / "ward.csv").mean() == pytest.approx(90 * factor, rel=0.1)
    assert found["g"] == pytest.approx(1000 * found["kg"], rel=0.01)
    assert found["kg"] < 8  # the deviation of weights is 17
    run_of_before = Store(tmp_path / "kg" / "run")
    table_of_before = {**json.loads(run_of_before.read("experiment.json")), "schema": 2, "rounds": 7}
    run_of_before.write("experiment.json", json.dumps(table_of_before).encode())
    with pytest.raises(HoldfastError, match="begun before numbers were learnt in their public range"):
        resume(tmp_path / "kg" / "run")
