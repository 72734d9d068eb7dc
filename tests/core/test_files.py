"""Files: what is written is read back, what is torn does not count, and many writers do not disturb each other."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import safetensors.torch
import torch
from engine_helpers import GENEROUS, child
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import HoldfastError
from holdfast.core.files import (
    MANIFEST,
    Damaged,
    Store,
    append_line,
    drop_unfinished,
    pieces_of,
    read_lines,
    save_tensors,
    write_file,
)
from holdfast.core.types import Tensors

NAMES = st.sampled_from(["a", "b.json", "deep/er/c.bin", "deep/d"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
LINES = st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=5)


@settings(max_examples=40)
@given(st.lists(st.tuples(NAMES, st.binary(max_size=300)), max_size=6))
def test_what_a_store_was_given_last_is_what_it_gives_back(writes: list[tuple[str, bytes]]) -> None:
    with TemporaryDirectory() as folder:
        store = Store(Path(folder))
        for name, data in writes:
            store.write(name, data)
        for name, data in dict(writes).items():
            assert Store(Path(folder)).read(name) == data
        assert not list(Path(folder).rglob("*.tmp"))


@settings(max_examples=40)
@given(st.binary(min_size=1, max_size=200), st.data())
def test_no_damage_goes_unnoticed(data: bytes, draw: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.write("x", data)
        other = draw.draw(st.binary(max_size=210).filter(lambda found: found != data))
        (Path(folder) / "x").write_bytes(other)
        with pytest.raises(Damaged, match=r"x is damaged: its SHA-256 is not in manifest\.jsonl"):
            store.read("x")
        assert store.set_aside("x") == Path(folder) / "x.damaged"
        assert not (Path(folder) / "x").exists()


@settings(max_examples=60)
@given(LINES, LINES, st.data())
def test_a_torn_line_costs_itself_and_nothing_else(before: list[Any], after: list[Any], draw: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "lines.jsonl"
        for line in before:
            append_line(path, line)
        assert read_lines(path) == before
        if before:
            data = path.read_bytes()
            last = data[:-1].rfind(b"\n") + 1
            path.write_bytes(data[: draw.draw(st.integers(last, len(data) - 2))])
            before = before[:-1]
        assert read_lines(path) == before
        for line in after:
            append_line(path, line)
        assert read_lines(path) == before + after


def test_a_line_says_only_what_json_can_say(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_line(tmp_path / "x.jsonl", {"loss": float("nan")})
    assert not (tmp_path / "x.jsonl").exists()


def test_a_file_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_file(path, b"old")
    seen = []
    replace = os.replace

    def watched(a: str, b: str) -> None:
        seen.append(path.read_bytes())
        replace(a, b)

    monkeypatch.setattr(os, "replace", watched)
    write_file(path, b"new")
    assert seen == [b"old"]  # until the whole of the new one lies beside it
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO])
def test_what_cannot_be_written_is_one_sentence_and_the_old_file_stays(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    write_file(path, b"old")

    def refuse(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    full = number in (errno.ENOSPC, errno.EDQUOT)
    with pytest.raises(
        HoldfastError, match="^The disk is full: " if full else f"^Cannot write .*{os.strerror(number)}"
    ):
        write_file(path, b"new")
    with pytest.raises(HoldfastError, match=r"What was saved before is intact\.$"):
        append_line(tmp_path / "lines.jsonl", {})
    assert path.read_bytes() == b"old"
    assert {each.name for each in tmp_path.iterdir()} == {"x", "lines.jsonl"}


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HoldfastError, match=r"^Cannot write .*file: File exists\."):
        Store(tmp_path / "file")
    with pytest.raises(HoldfastError, match=r"^Cannot write .*below: Not a directory\."):
        Store(tmp_path / "file" / "below")


def test_only_unfinished_files_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("deep/.x.12.tmp", ".y.json.3.tmp", "z.tmp", ".lock", "deep/kept"):
        (tmp_path / name).touch()
    drop_unfinished(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"z.tmp", ".lock", "deep", "deep/kept"}


def write_many(folder: Path, writer: int, gate: Path) -> None:
    while not gate.exists():
        pass
    store = Store(folder)
    for i in range(40):
        store.write(f"{writer}-{i}", f"{writer} {i} ".encode() * (1 + i * writer))


def test_writers_at_the_same_time_do_not_corrupt_a_manifest(tmp_path: Path) -> None:
    writers = [child(write_many, tmp_path / "store", writer, tmp_path / "gate") for writer in range(3)]
    (tmp_path / "gate").touch()
    for process in writers:
        process.join(GENEROUS)
        assert process.exitcode == 0
    store = Store(tmp_path / "store")
    assert len((tmp_path / "store" / MANIFEST).read_bytes().splitlines()) == 120
    assert len(read_lines(tmp_path / "store" / MANIFEST)) == 120
    for writer in range(3):
        for i in range(40):
            assert store.read(f"{writer}-{i}") == f"{writer} {i} ".encode() * (1 + i * writer)


def test_a_file_in_pieces_has_the_librarys_bytes_and_shares_the_tensors_memory() -> None:
    dtypes = [torch.float32, torch.bool, torch.int64, torch.bfloat16, torch.uint8, torch.float64, torch.int32]
    tensors = {f"t{i}": torch.arange(1 + i % 3).to(dtype) for i, dtype in enumerate(dtypes)}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "b/ü": torch.ones(2, 2)}
    assert save_tensors(tensors, {"a": "1"}) == as_library(tensors, {"a": "1"})
    *_, last = pieces_of({"w": (w := torch.zeros(4))}, {})
    w += 1
    assert bytes(last) == w.numpy().tobytes()


def as_library(tensors: Tensors, about: dict[str, str]) -> bytes:
    """The library's file; names are written in ASCII here, as JSON allows."""
    data = safetensors.torch.save(tensors, about)
    length = int.from_bytes(data[:8], "little")
    head = json.dumps(json.loads(data[8 : 8 + length]), separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + data[8 + length :]
