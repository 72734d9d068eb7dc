"""TCGA-BRCA as FLamby has it: survival with breast cancer in six regions, from the three files of its data folder.

A patient's tissue source site is the second part of its code (TCGA-A2-...); its region is the federation's member.

Ogier du Terrail et al., FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning, 2022.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.data.tables.encode import encode
from holdfast.data.tables.reader import column_names, read_cells
from holdfast.data.tables.schema import Column, Schema, Target
from holdfast.data.tables.source import task_of
from holdfast.data.task import Task

NAME = "tcga-brca"
FILES = ("brca.csv", "centers.csv", "train_test_split.csv")
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")  # in FLamby's order


def tcga_task(data: Path | None) -> Task:
    """The task with FLamby's split: 866 patients to learn from, 222 to test on."""
    import pyarrow as pa

    places = [] if data is None else [data / NAME, data]
    folder = next((place for place in places if all((place / file).is_file() for file in FILES)), None)
    if folder is None:
        raise HoldfastError(f"task {NAME!r}: found no {', '.join(FILES)} in the data folder ({data}); put them there.")
    schema = tcga_schema(column_names(folder / FILES[0]))
    cells = read_cells(folder / FILES[0], ("pid", *(column.name for column in schema.columns), "E", "T"))
    centers, split = (read_cells(folder / file, names) for file, names in zip(
        FILES[1:], (("TSS Code", "Region"), ("pid", "fold")), strict=True))  # fmt: skip
    region_of = dict(zip(centers["TSS Code"].to_pylist(), centers["Region"].to_pylist(), strict=True))
    fold_of = dict(zip(split["pid"].to_pylist(), split["fold"].to_pylist(), strict=True))
    people = cells.pop("pid").to_pylist()
    regions = [region_of.get(pid.split("-")[1] if pid.count("-") > 1 else "") for pid in people]
    kept = [row for row, pid in enumerate(people) if regions[row] in REGIONS and pid in fold_of]
    kept.sort(key=lambda row: REGIONS.index(str(regions[row])))
    cells = {name: column.take(pa.array(kept, pa.int64())) for name, column in cells.items()}
    cells["region"] = pa.array([regions[row] for row in kept], pa.string())
    cells["fold"] = pa.array([fold_of[people[row]] for row in kept], pa.string())
    encoded = encode(schema, cells, ".")
    if encoded.problems:
        raise HoldfastError(encoded.problems[0].sentence(folder / FILES[0]))
    return task_of(schema, [encoded], folder)


def tcga_schema(names: list[str]) -> Schema:
    """Age, and 38 columns of 0 and 1; days until death, or until the patient was last seen."""
    inputs = [name for name in names if name not in ("pid", "E", "T")]
    columns = tuple(
        Column(name, "number", 20, 90, "years") if name == "age_at_index" else Column(name, "number", 0, 1)
        for name in inputs
    )
    target = Target("survival", ("E", "T"), low=0.0, high=10_000.0, unit="days")
    return Schema(NAME, "1", columns, target, site="region", split="fold", where=NAME)
