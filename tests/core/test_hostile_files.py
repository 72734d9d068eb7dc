"""A bad file is one short sentence; nothing outside its folder is touched, and memory stays bounded."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_helpers import experiment
from report_helpers import judged, make_run
from typer.testing import CliRunner

from holdfast import cli
from holdfast.core.errors import LONGEST, HoldfastError
from holdfast.core.files import MANIFEST, Store, append_line, save_tensors
from holdfast.data.sources.arrays import read_npz
from holdfast.data.sources.idx import read_idx
from holdfast.flower.deploy.policy import read_site_policy
from holdfast.play import resume, run
from holdfast.privacy.claim import only_mixing
from holdfast.privacy.ledger import read_ledger, read_policy
from holdfast.report.run_data import read_story
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import from_table, load
from holdfast.runs.export import load_model
from holdfast.runs.store import Run

LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from holdfast.core.errors import HoldfastError
from holdfast.data.sources.arrays import read_npz
from holdfast.data.sources.idx import read_idx
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 26), used + (1 << 26)))
for read, file in zip((read_npz, read_npz, read_idx), sys.argv[1:], strict=True):
    try:
        read(Path(file))
    except HoldfastError as error:
        print("refused:", error)
"""


def sentence_of(call: Any, *arguments: Any) -> str:
    with pytest.raises(HoldfastError) as caught:
        call(*arguments)
    said = str(caught.value)
    assert len(said) <= LONGEST + 5
    assert said.isprintable()
    return said


def npy(shape: str, data: bytes = b"") -> bytes:
    """An array's file with this shape in its head, whatever follows."""
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data


def npz(path: Path, first: bytes, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """A file whose first array is this."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(4, dtype=np.int64))
    with zipfile.ZipFile(path, "w", compression) as file:
        for key in ("x_train", "y_train", "x_test", "y_test"):
            file.writestr(f"{key}.npy", first if key == "x_train" else buffer.getvalue())
    return path


def test_arrays_that_their_file_does_not_explain_take_no_memory(tmp_path: Path) -> None:
    claims = npz(tmp_path / "claims.npz", npy(f"({10**12},)", bytes(100)))
    swells = npz(tmp_path / "swells.npz", npy(f"({1 << 27},)", bytes(1 << 27)))  # zeros
    endless = tmp_path / "endless.gz"
    machine = zlib.compressobj(9, wbits=31)
    with open(endless, "wb") as file:
        file.write(machine.compress(b"\0\0\x08\x03" + struct.pack(">3I", 2, 2, 2)))
        for _ in range(128):
            file.write(machine.compress(bytes(1 << 20)))
        file.write(machine.flush())
    command = [sys.executable, "-c", LITTLE_MEMORY, str(claims), str(swells), str(endless)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.count("refused:") == 3, done.stderr
    assert done.stdout.count("far larger than its file explains") == 2
    assert "but more follow" in done.stdout


def test_an_idx_head_cannot_ask_for_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "idx.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 2**31, 2**31, 2**31)))
    assert "far more than the file explains" in sentence_of(read_idx, path)


def test_encrypted_members_and_unknown_compression_are_named(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", npy("(4,)", bytes(4)), zipfile.ZIP_STORED)
    whole = path.read_bytes()
    local, central = whole.index(b"PK\x03\x04"), whole.index(b"PK\x01\x02")
    data = bytearray(whole)
    data[local + 6] |= 1
    data[central + 8] |= 1
    path.write_bytes(data)
    assert "encrypted" in sentence_of(read_npz, path)
    data = bytearray(whole)
    data[local + 8] = data[central + 10] = 97
    path.write_bytes(data)
    assert "damaged" in sentence_of(read_npz, path)


@pytest.mark.parametrize("read", [load, read_policy, read_site_policy])
@pytest.mark.parametrize(
    "content",
    [b"a = " + b"[" * 100_000, b"a = {b = " * 50_000, b"\xff\xfe", b"a = 1\n" * 10**6, b"=" * 5000],
    ids=["lists", "tables", "bytes", "large", "equals"],
)
def test_no_toml_ends_a_process(tmp_path: Path, read: Any, content: bytes) -> None:
    (tmp_path / "a.toml").write_bytes(content)
    assert sentence_of(read, tmp_path / "a.toml")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "mlp:100000000000"},
        {"model": {"name": "cnn", "width": 2**62}},
        {"model": {"name": "mlp", "hidden": -1}},
        {"model": {"name": "features", "hidden": 10**30}},
        {"clients": 10**9},
        {"rounds": 10**400},
        {"lr": 10**400},
        {"task": "x" * 5000},
        {"partition": [[[]]]},
    ],
    ids=str,
)
def test_an_absurd_experiment_is_refused_before_anything_is_made(changes: dict[str, Any]) -> None:
    assert sentence_of(lambda: make_plan(from_table({"workers": 0, **changes})))


def signed(folder: Path, name: str, data: bytes) -> None:
    """Put a file into a folder as if the run had written it."""
    (folder / name).write_bytes(data)
    append_line(folder / MANIFEST, {"file": name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)})


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A run that was left after its first two rounds."""
    folder = tmp_path / "run"
    run(experiment(rounds=2, workers=0), folder)
    (folder / "model.safetensors").unlink()
    wanted = json.loads((folder / "experiment.json").read_text())
    signed(folder, "experiment.json", json.dumps({**wanted, "rounds": 3}).encode())
    return folder


def checkpoint(folder: Path, **facts: str) -> None:
    """The newest checkpoint says something else, and the manifest agrees."""
    name = f"checkpoints/{2:06d}.safetensors"
    state = Run.open(folder)._read_state(name)
    usual = {"round": "2", "accepted": "{}", "absent": "[]", "claims": "{}", "digests": "{}"}
    tensors = {f"model/{key}": tensor for key, tensor in state.model.items()}
    signed(folder, name, save_tensors(tensors, {**usual, **facts}))


@pytest.mark.parametrize("absolute", [True, False])
def test_a_checkpoint_cannot_name_a_file_outside_its_folder(half: Path, absolute: bool) -> None:
    outside = half.parent / "precious.txt"
    outside.write_text("mine")
    checkpoint(half, digests=json.dumps({"0": str(outside) if absolute else "../precious.txt"}))
    assert "outside this folder" in sentence_of(resume, half)
    assert [path.name for path in half.parent.iterdir() if path != half] == ["precious.txt"]
    assert outside.read_text() == "mine"


def test_a_folder_that_is_a_link_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "other")
    for call in (Store(tmp_path / "run").set_aside, Store(tmp_path / "run").read):
        assert "outside this folder" in sentence_of(call, "checkpoints/file")
    assert (tmp_path / "other" / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "facts",
    [
        {"round": "x"},
        {"round": "-1"},
        {"accepted": "[" * 5000},
        {"accepted": '{"0": "a"}'},
        {"absent": "5"},
        {"absent": "[1e9]"},
        {"claims": '{"1000000000": 1}'},
        {"digests": "[1]"},
        {"digests": '{"0": 5}'},
        {"digests": "\ufffe"},
    ],
    ids=str,
)
def test_an_odd_checkpoint_is_set_aside_and_the_one_before_it_used(half: Path, facts: dict[str, str]) -> None:
    checkpoint(half, **facts)
    history = resume(half)
    assert len(history.records) == 3
    assert any("set aside" in note for note in history.records[1].notes)


def test_a_checkpoint_of_another_model_is_refused(half: Path) -> None:
    name = f"checkpoints/{2:06d}.safetensors"
    facts = {"round": "2", "accepted": "{}", "absent": "[]", "claims": "{}", "digests": "{}"}
    signed(half, name, save_tensors({"model/[/bold]": torch.zeros(3)}, facts))
    assert "does not fit the experiment" in sentence_of(resume, half)


@pytest.mark.parametrize("data", [b"[1]", b"\xff", b"[" * 100_000, b'{"schema": 1, "clients": {"a": []}}'])
def test_an_odd_experiment_in_a_run_is_refused(half: Path, data: bytes) -> None:
    signed(half, "experiment.json", data)
    assert sentence_of(Run.open, half)


@pytest.mark.parametrize(
    "change",
    [
        {"absent": 5},
        {"absent": {"0": 5}},
        {"notes": 7},
        {"notes": [7]},
        {"stand_ins": 1},
        {"stand_ins": [10**9]},
        {"weights": {str(10**9): 1.0}},
        {"weights": {"0": "much"}},
        {"accuracy": "good"},
        {"accuracy": 10**400},
        {"class_accuracy": 0.5},
        {"seconds": [1]},
        {"bytes_up": -1},
        {"round": 0.5},
        {"round": 0},
        {"stranger": 1},
    ],
    ids=str,
)
def test_an_odd_line_of_rounds_does_not_count(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = make_run(tmp_path / "run", [judged(1, 0.5), judged(2, 0.5)], finished=False)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    lines[1] |= change
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [record.round for record in read_story(folder).records] == [1]


def test_words_in_rounds_are_shown_as_plain_text(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [judged(1, 0.5)], finished=False)
    line = json.loads((folder / "rounds.jsonl").read_text()) | {"notes": ["\x1b[2J" + "x" * 5000]}
    (folder / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    [note] = Run.open(folder).records()[0].notes
    assert note.isprintable()
    assert len(note) <= LONGEST + 5


def test_names_with_markup_are_printed_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(reply: Any, *_: Any) -> str:
        return "delta/[/bold] is not part of the model"

    monkeypatch.setattr("holdfast.core.validate.find_fault", refusing)
    changes = ["rounds=1", "clients=2", "samples=200", "model=linear", "workers=0"]
    arguments = ["compare", "--method", "fedavg", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(cli.app, [*arguments, *(word for change in changes for word in ("--set", change))])
    assert not isinstance(done.exception, BaseException) or isinstance(done.exception, HoldfastError | SystemExit)
    assert "[/bold] is not part of the model" in " ".join(done.output.split())


def test_an_error_is_printed_without_markup(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from holdfast.cli import main; main()",
        "report",
        str(tmp_path / "\\[/bold][red]"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "\\[/bold][red]" in done.stderr
    assert "Traceback" not in done.stderr


def ledger(path: Path, entries: Any) -> Path:
    """A ledger that says this, signed."""
    body = {"schema": 1, "entries": entries}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**body, "sha256": digest}))
    path.with_name(path.name + ".count").write_text("1\n")
    return path


CLAIM = only_mixing(8, 4).as_json()
ENTRY = {"what": "digest", "when": "now", "claim": CLAIM}


@pytest.mark.parametrize(
    "entries",
    [
        5,
        {"a": 1},
        [5],
        [{}],
        [{**ENTRY, "what": 5}],
        [{**ENTRY, "claim": 5}],
        [{**ENTRY, "claim": {**CLAIM, "delta": "x"}}],
        [{**ENTRY, "claim": {**CLAIM, "delta": -1.0}}],
        [{**ENTRY, "claim": {**CLAIM, "delta": 10**400}}],
        [{**ENTRY, "claim": {**CLAIM, "notes": 5}}],
        [{**ENTRY, "claim": {**CLAIM, "mode": ["\ud800"]}}],
    ],
    ids=str,
)
def test_a_signed_ledger_of_another_form_releases_nothing(tmp_path: Path, entries: Any) -> None:
    assert "it is damaged; nothing is released" in sentence_of(read_ledger, ledger(tmp_path / "l.json", entries))


def test_a_ledger_nested_too_deeply_releases_nothing(tmp_path: Path) -> None:
    path = ledger(tmp_path / "l.json", [ENTRY])
    assert len(read_ledger(path).entries) == 1
    path.write_bytes(b"[" * 100_000)
    assert "it is damaged" in sentence_of(read_ledger, path)


@pytest.mark.parametrize(
    "facts", [{"shape": "[1e9]"}, {"shape": "5"}, {"shape": "[" * 5000}, {"recipe": "[]"}, {"recipe": '{"model": 5}'}]
)
def test_an_odd_model_is_refused(tmp_path: Path, facts: dict[str, str]) -> None:
    usual = {"shape": "[1, 28, 28]", "recipe": '{"model": "linear"}', "classes": "a\nb"}
    (tmp_path / "m.safetensors").write_bytes(save_tensors({"w": torch.zeros(2)}, {**usual, **facts}))
    assert sentence_of(load_model, tmp_path / "m.safetensors")
