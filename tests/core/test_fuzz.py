"""Each parser, fed with damaged copies of what it reads: a result or a HoldfastError comes out, nothing else.

Damage is drawn from a fixed seed. Where a file carries its own hash, values are changed and the hash made to fit, as a
stranger would; otherwise nothing behind the hash would ever be reached.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_helpers import experiment
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from report_helpers import judged

from holdfast.cli.digest_facts import show
from holdfast.core.errors import LONGEST, HoldfastError
from holdfast.core.files import read_lines
from holdfast.core.tables import toml
from holdfast.core.types import Message, State, Tensors
from holdfast.data.sources.arrays import read_npz
from holdfast.data.sources.idx import read_idx
from holdfast.digests.compact import Compact, sha256_of
from holdfast.digests.digest import digest_bytes, make_digest, open_digest, seal_digest
from holdfast.digests.moment_wire import open_moments, seal_moments
from holdfast.digests.moments import make
from holdfast.engines.checked import checked
from holdfast.flower.deploy.policy import read_site_policy
from holdfast.flower.engine.codec import RAW, Letter, decode, encode
from holdfast.privacy.claim import only_mixing
from holdfast.privacy.ledger import read_ledger, read_policy
from holdfast.privacy.noise import seeded
from holdfast.runs.experiment import load
from holdfast.runs.records import checkpoint_of, record_from_json, record_to_json, state_from

TRIES = 300
DEEP: list[Any] = []
for _ in range(200):
    DEEP = [DEEP]
ODD: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 10**400, 0.5, -0.5, 1e308, "", "x", "\x1b[2J", "\ud800", "[/bold]", "infinite",
    [], [1], {}, {"0": 1}, [[]], DEEP,
]  # fmt: skip


def said(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """The sentence of a refusal, or nothing where the call went through; any other error fails the test."""
    try:
        call(*arguments, **options)
    except HoldfastError as error:
        return str(error)
    return ""


def plain(sentence: str) -> bool:
    return sentence.isprintable() and len(sentence) <= LONGEST + 5


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The bytes with a few of them changed, dropped, repeated or cut off."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(found) + 1)
        kind = chance.randrange(4)
        if kind == 0 and place < len(found):
            found[place] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif kind == 1:
            del found[place : place + chance.randint(1, 8)]
        elif kind == 2:
            found[place:place] = found[place : place + chance.randint(1, 8)] or b"\0"
        elif chance.random() < 0.2:
            del found[place:]
    return bytes(found)


def changed(value: Any, chance: random.Random) -> Any:
    """JSON with one value, somewhere in it, exchanged for another, dropped or added."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        kind = chance.randrange(8)
        if kind == 0:
            return {k: v for k, v in value.items() if k != key}
        if kind == 1:
            return {**value, chance.choice(["x", "", "1000000000", "\x1b"]): chance.choice(ODD)}
        return {**value, key: changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.7:
        place = chance.randrange(len(value))
        return [*value[:place], changed(value[place], chance), *value[place + 1 :]]
    return chance.choice(ODD)


def chances(name: str, tries: int = TRIES) -> Iterator[random.Random]:
    return (random.Random(f"{name} {number}") for number in range(tries))


LETTER = Letter(1, 2, "train", {"delta/w": torch.ones(2, 3), "buffers/n": torch.tensor(3)}, {"loss": 0.5, "notes": []})


def read_letter(records: RecordDict) -> object:
    return checked(decode(records, 1 << 20).reply(), Message(1, 2, "train"))


def test_letters() -> None:
    """What comes through Flower: any words, layouts and blobs."""
    good, heard = encode(LETTER), []
    for chance in chances("letters"):
        words: dict[str, Any] = dict(good["words"])  # type: ignore[arg-type]
        key = chance.choice(list(words))
        if key in ("layout", "scalars"):
            words[key] = json.dumps(changed(json.loads(words[key]), chance))
        else:
            words[key] = chance.choice([0, -1, 2**63 - 1, 0.5, float("nan"), "", "x" * 5000, True, [1], b"\0"])
        data = {name: array.data for name, array in good["tensors"].items()}  # type: ignore[union-attr]
        if chance.random() < 0.3:
            data = {name: damaged(blob, chance) for name, blob in data.items()}
        arrays = ArrayRecord({name: Array("uint8", (len(blob),), RAW, blob) for name, blob in data.items()})
        records = RecordDict({"tensors": arrays, "words": ConfigRecord(words)})
        heard.append(said(read_letter, records))
    assert any(heard)
    assert all(map(plain, heard))


def mixed() -> Any:
    features, labels = torch.rand(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    return make_digest(features, labels, 3, generator=torch.Generator(), spd=2)


def moments() -> Tensors:
    z = np.random.default_rng(0).normal(size=(400, 6))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    made = make(z, np.arange(400) % 2, 2, epsilon=50.0, delta=1e-5, source=seeded(0))
    return seal_moments(made, "task", "encoder")


def with_manifest(sealed: Tensors, chance: random.Random) -> Tensors:
    """A sealed digest with another manifest, or other bytes, and the hash that fits."""
    manifest = json.loads(sealed["manifest"].numpy().tobytes())
    tensors = {name: tensor for name, tensor in sealed.items() if name != "manifest"}
    if chance.random() < 0.3:
        name = chance.choice(list(tensors))
        shape = chance.choice([(), (0,), (3, 0), (1,), (6, 4)])
        kind = chance.choice([torch.uint8, torch.float32, torch.int64, torch.bool, torch.complex64])
        tensors[name] = torch.zeros(shape, dtype=kind)
    else:
        manifest = changed(manifest, chance)
    if isinstance(manifest, dict) and chance.random() < 0.9:
        manifest["sha256"] = sha256_of(tensors, manifest)
    text = json.dumps(manifest).encode()
    if chance.random() < 0.1:
        text = damaged(text, chance)
    return {**tensors, "manifest": torch.frombuffer(bytearray(text or b"\0"), dtype=torch.uint8)}


@pytest.mark.parametrize("compact", [Compact(), Compact("int8", compress=True)], ids=["whole", "compressed"])
def test_mixed_digests(compact: Compact) -> None:
    sealed = seal_digest(mixed(), compact)
    heard = [said(open_digest, with_manifest(sealed, chance), classes=3, rows=100) for chance in chances("digests")]
    assert any(heard)
    assert all(map(plain, heard))


def test_moment_digests() -> None:
    sealed = moments()
    assert open_moments(sealed)
    heard = [said(open_moments, with_manifest(sealed, chance)) for chance in chances("moments", 150)]
    assert any(heard)
    assert all(map(plain, heard))


def test_digest_files(tmp_path: Path) -> None:
    """As `holdfast digest show` reads them."""
    path, whole, heard = tmp_path / "d.safetensors", digest_bytes(mixed()), []
    for chance in chances("digest files", 100):
        path.write_bytes(damaged(whole, chance))
        heard.append(said(show, path, True))
    from safetensors.torch import save_file

    for sealed in (seal_digest(mixed()), moments()):
        for chance in chances("sealed files", 100):
            tensors = dict(with_manifest(sealed, chance))
            if chance.random() < 0.5:
                claim = json.dumps(changed(only_mixing(4, 2).as_json(), chance)).encode()
                tensors["claim"] = torch.frombuffer(bytearray(claim), dtype=torch.uint8)
            save_file(tensors, path)
            heard.append(said(show, path, False))
    assert any(heard)
    assert all(map(plain, heard))


def test_npz(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    x, y = np.zeros((4, 2), dtype=np.float32), np.array([0, 1, 0, 1])
    np.savez_compressed(buffer, x_train=x, y_train=y, x_test=x, y_test=y, class_names=np.array(["a", "b"]))
    path, heard = tmp_path / "a.npz", []
    for chance in chances("npz"):
        path.write_bytes(damaged(buffer.getvalue(), chance))
        heard.append(said(read_npz, path))
    assert any(heard)
    assert all(map(plain, heard))


def test_idx(tmp_path: Path) -> None:
    path, whole = tmp_path / "a", b"\0\0\x08\x02" + struct.pack(">2I", 3, 4) + bytes(12)
    heard = []
    for chance in chances("idx"):
        data = damaged(whole, chance)
        path.write_bytes(damaged(gzip.compress(data), chance) if chance.random() < 0.5 else data)
        heard.append(said(read_idx, path))
    assert any(heard)
    assert all(map(plain, heard))


def test_records(tmp_path: Path) -> None:
    line = json.loads(json.dumps(record_to_json(judged(2, 0.5))))
    assert record_from_json(line, 4)
    heard = []
    for chance in chances("records"):
        (tmp_path / "rounds.jsonl").write_bytes(damaged(json.dumps(changed(line, chance)).encode(), chance))
        for found in [changed(line, chance), *read_lines(tmp_path / "rounds.jsonl")]:
            if isinstance(found, dict):
                heard.append(said(record_from_json, found, 4))
    assert any(heard)
    assert all(map(plain, heard))


def test_checkpoints() -> None:
    state = State(2, {"w": torch.ones(2)}, {}, {}, {}, {}, {0: 1}, (1,), {0: 10})
    whole = b"".join(checkpoint_of(state, {0: "digests/a"}))
    assert state_from(whole, 4)[0].claims == {0: 10}
    length = int.from_bytes(whole[:8], "little")
    head, heard = json.loads(whole[8 : 8 + length]), []
    for chance in chances("checkpoints"):
        data = damaged(whole, chance)
        if chance.random() < 0.7:
            text = json.dumps({**head, "__metadata__": changed(head["__metadata__"], chance)}).encode()
            data = len(text).to_bytes(8, "little") + text + whole[8 + length :]
        heard.append(said(state_from, data, 4))
    assert any(heard)
    assert all(map(plain, heard))


def test_ledgers(tmp_path: Path) -> None:
    path, heard = tmp_path / "ledger.json", []
    path.with_name("ledger.json.count").write_text("1\n")
    entry = {"what": "digest", "when": "now", "claim": only_mixing(8, 4).as_json()}
    for chance in chances("ledgers"):
        body = {"schema": 1, "entries": changed([entry], chance)}
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        data = json.dumps({**body, "sha256": digest}).encode()
        path.write_bytes(damaged(data, chance) if chance.random() < 0.3 else data)
        heard.append(said(lambda: read_ledger(path).epsilon(1e-5)))
    assert any(heard)
    assert all(map(plain, heard))


POLICY = {"max_epsilon": 3.0, "delta": 1e-5, "modes": ["moments"], "min_spd": 4, "protect_updates": True}
SITE = {"experiments": ["3f5a"], "max_rounds": 50, "digest": True, "privacy": POLICY}
TABLES: list[tuple[Callable[[Path], object], dict[str, Any]]] = [
    (read_policy, POLICY),
    (read_site_policy, SITE),
    (load, {key: value for key, value in experiment().as_json().items() if value is not None}),
]


@pytest.mark.parametrize(("read", "table"), TABLES, ids=["policy", "site policy", "experiment"])
def test_tables(tmp_path: Path, read: Callable[[Path], object], table: dict[str, Any]) -> None:
    path = tmp_path / "a.toml"
    path.write_text(toml(table))
    assert read(path)
    heard = []
    for chance in chances("tables"):
        path.write_bytes(damaged(toml(table).encode(), chance))
        heard.append(said(read, path))
        found = changed(table, chance)
        path.with_suffix(".json").write_text(json.dumps(found))
        heard.append(said(read, path.with_suffix(".json")))
    assert any(heard)
    assert all(map(plain, heard))
