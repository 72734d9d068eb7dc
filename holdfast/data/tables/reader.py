"""Cells of a CSV or Parquet file as text, bounded before anything is unpacked; only the columns that are named."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import HoldfastError, nearest, plain

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST = 1 << 31  # bytes of a file, and of its columns when they are unpacked
MOST_COLUMNS = 20_000
SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")
DELIMITERS = ",;\t|"
Cells = dict[str, Any]  # column -> pyarrow array of texts, null where Parquet has no value


def read_cells(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> Cells:
    """The named columns of a file, as texts; `optional` ones may be absent."""
    check_size(path)
    names, read = (parquet_file if path.suffix.lower() == ".parquet" else csv_file)(path)
    for name in needed:
        if name not in names:
            raise HoldfastError(f"{path} has no column {name!r}; {nearest(name, names)}")
    wanted = [name for name in dict.fromkeys((*needed, *optional)) if name in names]
    for name in wanted:
        if names.count(name) > 1:
            raise HoldfastError(f"{path}: two of its columns are called {name!r}.")
    cells: Cells = read(wanted)
    if not len(next(iter(cells.values()))):
        raise HoldfastError(f"{path} holds no record, only a header.")
    return cells


def column_names(path: Path) -> list[str]:
    """All columns of a file."""
    check_size(path)
    return (parquet_file if path.suffix.lower() == ".parquet" else csv_file)(path)[0]


def check_size(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise HoldfastError(f"{path}: a table is a file that ends in {', '.join(SUFFIXES)}.")
    try:
        size = path.stat().st_size
    except OSError as error:
        raise HoldfastError(f"Cannot read {path}: {error.strerror}.") from None
    if not path.is_file():
        raise HoldfastError(f"{path} is no file.")
    if size == 0:
        raise HoldfastError(f"{path} is empty; the first line must name the columns.")
    if size > LARGEST:
        raise HoldfastError(f"{path} has {size / 1e9:.1f} GB, more than {LARGEST / 1e9:.1f}; split it or take Parquet.")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def csv_file(path: Path) -> tuple[list[str], Any]:
    """The header's names, and a function that reads columns."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header = file.readline(1 << 20)
    except UnicodeDecodeError:
        raise HoldfastError(f"{path} is not text in UTF-8; save it as UTF-8.") from None
    except OSError as error:
        raise HoldfastError(f"Cannot read {path}: {error.strerror}.") from None
    delimiter = max(DELIMITERS, key=header.count)
    names = [name.strip() for name in next(csv.reader(io.StringIO(header), delimiter=delimiter), [])]
    if len(names) > MOST_COLUMNS:
        raise HoldfastError(f"{path} has {len(names)} columns, more than {MOST_COLUMNS}.")
    return names, lambda wanted: read_csv(path, names, delimiter, wanted)


def read_csv(path: Path, names: list[str], delimiter: str, wanted: list[str]) -> Cells:
    import pyarrow as pa
    from pyarrow import csv as arrow

    odd: list[Any] = []

    def note(row: Any) -> str:
        odd.append(row)
        return "skip"

    numbered = [f"{position}" for position in range(len(names))]  # names may be there twice, unless wanted
    take = [numbered[names.index(name)] for name in wanted]
    try:
        table = arrow.read_csv(
            path,
            arrow.ReadOptions(use_threads=False, column_names=numbered, skip_rows=1),
            arrow.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=note),
            arrow.ConvertOptions(include_columns=take, column_types=dict.fromkeys(take, pa.string())),
        )
    except (pa.ArrowInvalid, pa.ArrowException) as error:
        if "Empty CSV" in str(error):
            raise HoldfastError(f"{path} holds no record, only a header.") from None
        utf8 = " (it is not text in UTF-8)" if "UTF8" in str(error) else ""
        raise HoldfastError(f"{path} cannot be read as CSV{utf8}; export it again as UTF-8.") from None
    if odd:
        first = odd[0]
        raise HoldfastError(
            f"{path}, row {first.number}: has {first.actual_columns} cells, the header names {first.expected_columns} "
            f"columns (delimiter {delimiter!r})" + (f"; and {len(odd) - 1} more rows." if odd[1:] else ".")
        )
    return {name: texts(table.column(key)) for name, key in zip(wanted, take, strict=True)}


def parquet_file(path: Path) -> tuple[list[str], Any]:
    """The file's columns, and a function that reads some of them; its own word on sizes is checked as it unpacks."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
        names = list(file.schema_arrow.names)
        rows, groups = file.metadata.num_rows, file.metadata.num_row_groups
    except (pa.ArrowException, OSError) as error:
        raise HoldfastError(f"{path} is no Parquet file that can be read ({plain(str(error), 100)}).") from None
    if len(names) > MOST_COLUMNS or rows * 8 > LARGEST:
        raise HoldfastError(f"{path} has {len(names)} columns and {rows} rows, more than can be read.")

    def read(wanted: list[str]) -> Cells:
        parts: list[pa.Table] = []
        size = 0
        try:
            for group in range(groups):
                told = file.metadata.row_group(group).total_byte_size
                if size + told > LARGEST:
                    raise HoldfastError(f"{path} unpacks to more than {LARGEST / 1e9:.1f} GB; split it.")
                parts.append(file.read_row_group(group, columns=wanted))
                size += parts[-1].nbytes
            table = pa.concat_tables(parts) if parts else file.schema_arrow.empty_table().select(wanted)
            for name in wanted:
                refuse_nested(table.column(name).type, f"{path}, column {plain(name, 60)!r}")
            return {name: texts(table.column(name)) for name in wanted}
        except (pa.ArrowException, OSError) as error:
            raise HoldfastError(f"{path} is damaged ({plain(str(error), 100)}).") from None

    return names, read


def refuse_nested(kind: Any, where: str) -> None:
    """Refuse a Parquet column of lists, tables or bytes."""
    import pyarrow as pa

    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise HoldfastError(f"{where}: holds {plain(str(kind), 60)}; a table's cells are numbers, texts or dates.")


def texts(column: Any) -> Any:
    """A column as texts: without blanks around them, whole numbers without zeros behind the point."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.date32(), safe=False)
    if not isinstance(column, pa.ChunkedArray):
        column = pa.chunked_array([column])
    flat = column.cast(pa.string()).combine_chunks()
    flat = flat if isinstance(flat, pa.Array) else pa.array([], pa.string())
    return pc.replace_substring_regex(pc.utf8_trim_whitespace(flat), r"^([+-]?\d+)\.0+$", r"\1")
