"""Tables: the schema alone decides what numbers a record becomes; what does not fit is a sentence with its place."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from holdfast.core.errors import HoldfastError
from holdfast.data.named import HEART_FILE
from holdfast.data.tables.check import check_table
from holdfast.data.tables.draft import draft_schema
from holdfast.data.tables.encode import encode
from holdfast.data.tables.reader import read_cells
from holdfast.data.tables.schema import Schema, read_schema, schema_from
from holdfast.data.tables.source import read_file

SCHEMA: dict[str, Any] = {
    "name": "ward",
    "version": "1",
    "missing_values": ["", "?"],
    "target": {"kind": "classes", "column": "ill", "values": {"0": "no", "1": "yes", "2": "yes"}},
    "columns": {
        "age": {"kind": "number", "range": [20, 100], "unit": "years"},
        "chol": {"kind": "number", "range": [100, 500], "missing": "indicator", "missing_values": ["0"]},
        "sex": {"kind": "category", "values": ["f", "m"]},
        "pain": {"kind": "category", "values": [1, 2, 3], "missing": "indicator"},
        "seen": {"kind": "date", "range": ["2000-01-01", "2000-01-11"], "missing": "indicator"},
    },
}
HEADER = "age,chol,sex,pain,seen,ill"
ROWS = ["60,300,f,1,2000-01-06,0", "100,0,m,?,2000-01-01,1", "20.0,100.0,m,3.0,,2"]


def schema(**changes: Any) -> Schema:
    return schema_from({**SCHEMA, **changes}, "ward.toml")


def column(name: str, **changes: Any) -> Schema:
    columns = SCHEMA["columns"]
    return schema(columns={**columns, name: {**columns.get(name, {}), **changes}})


def table(folder: Path, *rows: str, header: str = HEADER, name: str = "ward.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_numbers_by_hand(tmp_path: Path) -> None:
    encoded = read_file(schema(), table(tmp_path, *ROWS))
    assert schema().encoded == (
        *("age", "chol", "chol missing", "sex=f", "sex=m"),
        *("pain=1", "pain=2", "pain=3", "pain missing", "seen", "seen missing"),
    )
    np.testing.assert_allclose(
        encoded.inputs,
        [
            [0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0],  # the middle of each range
            [1, 0, 1, 0, 1, 0, 0, 0, 1, -1, 0],  # the edge; 0 and ? are missing
            [-1, -1, 0, 0, 1, 0, 0, 1, 0, 0, 1],
        ],
    )
    assert encoded.targets.tolist() == [0, 1, 1]
    assert schema().longest == math.sqrt(5)
    assert np.linalg.norm(encoded.inputs, axis=1).max() <= schema().longest


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_dialects_are_read_alike(tmp_path: Path, delimiter: str) -> None:
    plain = read_file(schema(), table(tmp_path, *ROWS))
    text = "\r\n".join(line.replace(",", delimiter) for line in (HEADER, *ROWS))
    (tmp_path / "other.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())  # with a byte order mark, as spreadsheets do
    other = read_file(schema(), tmp_path / "other.csv")
    np.testing.assert_array_equal(plain.inputs, other.inputs)


def test_a_decimal_comma_is_declared(tmp_path: Path) -> None:
    path = table(tmp_path, "60;300,5;f;1;2000-01-06;0", header=HEADER.replace(",", ";"))
    with pytest.raises(HoldfastError, match=r"row 2, column 'chol': is no number; set decimal"):
        read_file(schema(), path)
    assert read_file(schema(decimal=","), path).inputs[0, 1] == np.float32(0.5 / 200)


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    import datetime

    days = [datetime.date(2000, 1, 6), datetime.date(2000, 1, 1), None]
    columns = {"age": [60.0, 100.0, 20.0], "chol": [300, 0, 100], "sex": ["f", "m", "m"], "pain": [1.0, None, 3.0]}
    arrow = pa.table({**columns, "seen": days, "ill": [0, 1, 2], "name": ["never read"] * 3})
    parquet.write_table(arrow, tmp_path / "ward.parquet")
    plain, other = (read_file(schema(), path) for path in (table(tmp_path, *ROWS), tmp_path / "ward.parquet"))
    np.testing.assert_array_equal(plain.inputs, other.inputs)
    np.testing.assert_array_equal(plain.targets, other.targets)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("60,300,f,1,2000-01-06,", r"row 3, column 'ill': the target has no value"),
        ("60,300,f,1,2000-01-06,nan", r"row 3, column 'ill': is none of the classes that the schema names"),
        ("60,300,x,1,2000-01-06,0", r"row 3, column 'sex': is none of the values that the schema names"),
        ("160,300,f,1,2000-01-06,0", r"row 3, column 'age': is outside of the agreed range, 20 to 100 years"),
        ("?,300,f,1,2000-01-06,0", r"row 3, column 'age': has no value, and its schema says missing = 'refuse'"),
        ("old,300,f,1,2000-01-06,0", r"row 3, column 'age': is no number"),
        ("inf,300,f,1,2000-01-06,0", r"row 3, column 'age': is no number"),
        ("1e999,300,f,1,2000-01-06,0", r"row 3, column 'age': is too large a number"),
        ("60,300,f,1,06.01.2000,0", r"row 3, column 'seen': is no date of the form %Y-%m-%d"),
        ("60,300,f,1,2001-01-06,0", r"row 3, column 'seen': is outside of the agreed range, 2000-01-01 to 2000-01-11"),
        ("60,300,f,1", r"row 3: has 4 cells, the header names 6 columns"),
    ],
)
def test_a_cell_that_does_not_fit_is_named_by_its_place(tmp_path: Path, row: str, sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence) as caught:
        read_file(schema(), table(tmp_path, ROWS[0], row))
    assert "ward.csv" in str(caught.value)
    for secret in ("160", "old", "06.01.2000", "2001-", "'x'"):
        assert secret not in str(caught.value)


def test_an_empty_cell_of_which_the_schema_does_not_speak(tmp_path: Path) -> None:
    head = HEART_FILE.read_text().partition("\n")[0]
    (tmp_path / "new.csv").write_text(f"{head}\nCleveland,41,0,2,,204,0,0,172,0,0.5,1,0,3,0\n")
    with pytest.raises(HoldfastError, match=r"row 2, column 'trestbps': is empty; if that means not known"):
        read_file(read_schema(HEART_FILE.with_suffix(".toml")), tmp_path / "new.csv")


def test_values_outside_may_be_clipped(tmp_path: Path) -> None:
    path = table(tmp_path, "160,300,f,1,2000-01-06,0")
    assert read_file(column("age", outside="clip"), path).inputs[0, 0] == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty; the first line must name the columns"),
        (HEADER.encode() + b"\n", "holds no record, only a header"),
        (HEADER.replace("sex", "gender").encode() + b"\n60,300,f,1,,0\n", "has no column 'sex'"),
        ((HEADER + ",age").encode() + b"\n60,300,f,1,,0,60\n", "two of its columns are called 'age'"),
        (HEADER.encode() + b"\n60,300,\xff,1,,0\n", "not text in UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "ward.csv").write_bytes(content)
    with pytest.raises(HoldfastError, match=sentence):
        read_cells(tmp_path / "ward.csv", schema().needed)


def test_a_parquet_column_of_lists_is_named_with_its_file(tmp_path: Path) -> None:
    others: dict[str, Any] = {key: ["1"] for key in ("chol", "sex", "pain", "seen", "ill")}
    parquet.write_table(pa.table({"age": [[1, 2]], **others}), tmp_path / "ward.parquet")
    with pytest.raises(HoldfastError, match=r"ward.parquet, column 'age': holds list"):
        read_file(schema(), tmp_path / "ward.parquet")


def test_a_damaged_parquet_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "ward.parquet").write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(HoldfastError, match="no Parquet file that can be read"):
        read_file(schema(), tmp_path / "ward.parquet")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"colour": 1}, "there is no key 'colour'"),
        ({"columns": {"age": {"kind": "number", "rnge": [0, 1]}}}, r"\[columns.age\]: there is no key 'rnge'; did you"),
        ({"columns": {"age": {"kind": "number"}}}, "range must be two values"),
        ({"columns": {"age": {"kind": "number", "range": [9, 1]}}}, "from a smaller value to a larger"),
        ({"columns": {"age": {"kind": "number", "range": [0, math.inf]}}}, "expected a number"),
        ({"columns": {"sex": {"kind": "category", "values": ["f"]}}}, "at least two categories"),
        ({"columns": {"sex": {"kind": "category", "values": ["f", "f"]}}}, "names something twice"),
        ({"columns": {"ill": {"kind": "number", "range": [0, 1]}}}, "column 'ill' is the target and something else"),
        ({"target": {"kind": "classes", "column": "ill", "values": {"0": "no"}}}, "at least two classes"),
        ({"target": {"kind": "guess", "column": "ill"}}, "kind must be one of classes, labels, regression"),
        ({"patient": "age"}, "column 'age' is the patient and something else"),
        ({"decimal": ";"}, "decimal must be"),
    ],
)
def test_a_schema_that_says_something_odd_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence):
        schema(**changes)


def test_targets_of_other_kinds(tmp_path: Path) -> None:
    path = table(tmp_path, "60,0,5.5,1", "50,1,7,0", header="age,died,days,drug")
    columns = {"age": SCHEMA["columns"]["age"]}

    def targets(**target: Any) -> list[list[float]]:
        return read_file(schema(columns=columns, target=target), path).targets.tolist()

    assert targets(kind="survival", event="died", time="days") == [[5.5, 0], [7, 1]]
    assert targets(kind="labels", columns=["died", "drug"]) == [[0, 1], [1, 0]]
    assert targets(kind="regression", column="days", range=[0, 6], outside="clip") == [[5.5], [6]]
    with pytest.raises(HoldfastError, match="row 2, column 'days': is no whole number"):
        targets(kind="count", column="days")


def test_the_fingerprint_is_of_what_is_said(tmp_path: Path) -> None:
    assert schema().fingerprint == schema_from(SCHEMA, "elsewhere.toml").fingerprint
    assert schema().fingerprint != schema(version="2").fingerprint
    assert schema().fingerprint != column("age", range=[20, 101]).fingerprint


def test_a_draft_is_a_schema_that_the_file_fits(tmp_path: Path) -> None:
    rows = [f"{30 + i},{180 + i},{'fm'[i % 2]},{i % 3 + 1},2000-01-{i % 9 + 1:02},{i % 2},Name {i}" for i in range(40)]
    rows[3] = rows[3].replace("183", "")
    path = table(tmp_path, *rows, header=HEADER + ",who")
    text = draft_schema(path, "ill")
    (tmp_path / "draft.toml").write_text(text)
    drafted = read_schema(tmp_path / "draft.toml")
    assert {one.name: one.kind for one in drafted.columns} == {
        "age": "number",
        "chol": "number",
        "sex": "category",
        "pain": "category",
        "seen": "date",
    }
    assert "Name 7" not in text
    assert text.count("agree on this") >= 7
    assert check_table(drafted, path).fits


def test_a_draft_asks_about_zeros_far_below(tmp_path: Path) -> None:
    path = table(tmp_path, *(f"{value},{value % 2}" for value in [0, *range(200, 240)]), header="chol,ill")
    assert 'missing_values = ["0"]  # agree on this: 0 stands in 1 records, the next value is 200' in draft_schema(path)


def test_check_sees_what_fits_and_looks_wrong(tmp_path: Path) -> None:
    columns = {
        "chol": {"kind": "number", "range": [100, 400], "unit": "mg/dl"},
        "told": {"kind": "category", "values": ["a", "b"]},
        "noise": {"kind": "number", "range": [0, 100]},
    }
    agreed = schema(columns=columns, patient="id")
    rows = [f"{4 + i % 3}.{i % 10},{'ab'[i % 2]},{(7 * i) % 100},{i % 2},{i // 2}" for i in range(60)]
    rows.append(rows[-1])
    report = check_table(agreed, table(tmp_path, *rows, header="chol,told,noise,ill,id"))
    assert not report.fits
    assert "chol: most values are outside of the agreed range, about" in report.warnings[0]
    assert "times too small; is the unit right?" in report.warnings[0]
    assert any("the same as another one in every column: 1" in said for said in report.warnings)
    assert any("patients with more than one record: 30" in said for said in report.warnings)
    (problem,) = report.problems
    assert "'6.9'" in problem  # at the site's own terminal the cells are shown
    fitting = [f"{150 + i},{'ab'[i % 2]},{(7 * i) % 100},{i % 2},{i}" for i in range(60)]
    report = check_table(agreed, table(tmp_path, *fitting, header="chol,told,noise,ill,id"))
    assert report.fits
    assert report.warnings == ["told: it alone says nearly all about the target (100%); is it known before?"]
    assert (report.read, report.kept, report.ignored) == (["chol", "told", "noise"], ["id"], [])


def test_check_knows_a_site_where_accuracy_says_little(tmp_path: Path) -> None:
    rows = [f"{30 + i % 50},300,{'fm'[i % 2]},1,,{0 if i == 7 else 1}" for i in range(40)]
    report = check_table(schema(), table(tmp_path, *rows))
    assert any("98% are 'yes'; accuracy says little here" in said for said in report.warnings)
    assert "seen: no record has a value." in report.warnings


def test_who_it_is_about_is_numbered_and_not_kept_as_text(tmp_path: Path) -> None:
    agreed = schema(columns={"age": SCHEMA["columns"]["age"]}, patient="id", site="ward")
    path = table(tmp_path, "60,1,p9,north", "70,0,p3,south", "61,0,p9,north", header="age,ill,id,ward")
    facts = encode(agreed, read_cells(path, (*agreed.needed, "ward")), ".").facts
    assert facts["patient"][0].tolist() == [0, 1, 0]
    assert facts["site"] == (pytest.approx([0, 1, 0]), ("north", "south"))
