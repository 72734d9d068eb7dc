"""Where a digest comes from: its origin, its expiry and its signature, and what is done to them."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.files import load_tensors, read_metadata, save_tensors
from holdfast.digests.digest import digest_bytes, make_digest
from holdfast.digests.origin import Origin, addressed, expiry, known_keys, load_key, make_key, read_origin

ORIGIN = Origin("north", "2026-11-17", "", "mine", "scattering", (1, 28, 28), class_names=("a", "b"))


def content() -> bytes:
    features, labels = torch.rand(8, 4), torch.arange(8) % 2
    return digest_bytes(make_digest(features, labels, 2, generator=torch.Generator(), task="mine"))


def test_a_signed_file_says_where_it_comes_from(tmp_path: Path) -> None:
    secret, public = make_key(tmp_path / "keys", "north")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    signed = addressed(content(), ORIGIN, secret)
    found = read_origin(signed, "it")
    key = load_key(secret).public_key().public_bytes_raw().hex()
    assert found == replace(ORIGIN, key=key)
    assert known_keys(public.parent) == {"north": key}
    unsigned = addressed(content(), ORIGIN)
    assert read_origin(unsigned, "it") == ORIGIN
    assert read_origin(content(), "it") is None
    with pytest.raises(HoldfastError, match="not overwritten"):
        make_key(tmp_path / "keys", "north")


def changed(data: bytes, **metadata: str) -> bytes:
    return save_tensors(load_tensors(data), {**read_metadata(data), **metadata})


def test_whatever_is_changed_after_signing_is_found(tmp_path: Path) -> None:
    secret, _ = make_key(tmp_path, "north")
    other, _ = make_key(tmp_path, "south")
    signed = addressed(content(), ORIGIN, secret)
    metadata = read_metadata(signed)
    said = json.loads(metadata["origin"])
    tensors = load_tensors(signed)
    tensors["features"] = tensors["features"] + 1
    forged = [
        save_tensors(tensors, metadata),
        changed(signed, origin=json.dumps({**said, "site": "south"}, sort_keys=True)),
        changed(signed, origin=json.dumps({**said, "expires": "2099-01-01"}, sort_keys=True)),
        changed(signed, origin=json.dumps({**said, "key": load_key(other).public_key().public_bytes_raw().hex()})),
        changed(signed, digest=metadata["digest"].replace('"spd": 4', '"spd": 1')),
        changed(signed, signature="00" * 64),
        changed(signed, signature="no hexadecimal"),
    ]
    for data in forged:
        with pytest.raises(HoldfastError, match="does not fit its content"):
            read_origin(data, "it")
    bare = {name: text for name, text in metadata.items() if name != "signature"}
    with pytest.raises(HoldfastError, match="no signature"):
        read_origin(save_tensors(load_tensors(signed), bare), "it")


@pytest.mark.parametrize(
    "wrong",
    [
        {"site": ""},
        {"site": "x" * 65},
        {"site": "red\x1b[31m"},
        {"made": "yesterday"},
        {"made": ""},
        {"expires": "soon"},
        {"shape": [0]},
        {"shape": 28},
        {"class_names": "ab"},
        {"class_names": [1]},
        {"task": None},
        {"schema": "holdfast-origin/9"},
        {"more": 1},
    ],
)
def test_an_odd_origin_is_one_sentence(wrong: dict[str, object]) -> None:
    data = addressed(content(), ORIGIN)
    said = {**json.loads(read_metadata(data)["origin"]), **wrong}
    with pytest.raises(HoldfastError, match="does not say properly"):
        read_origin(changed(data, origin=json.dumps(said)), "it")
    with pytest.raises(HoldfastError, match="does not say properly"):
        read_origin(changed(data, origin="[" * 100_000), "it")


def test_expiry_is_the_last_good_day() -> None:
    today = date.today()
    assert (expiry(None), expiry(1)) == ("", (today + timedelta(days=1)).isoformat())
    last = replace(ORIGIN, expires=today.isoformat())
    assert not last.expired(today)
    assert last.expired(today + timedelta(days=1))
    assert not ORIGIN.expired(today)
    for days in (0, -1, 10**6):
        with pytest.raises(HoldfastError, match="--expires"):
            expiry(days)


def test_what_is_no_key_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "bad.key").write_text("a secret of the house")
    with pytest.raises(HoldfastError, match="no Ed25519 key") as told:
        load_key(tmp_path / "bad.key")
    assert "secret of the house" not in str(told.value)
    with pytest.raises(HoldfastError, match="cannot be read"):
        load_key(tmp_path / "none.key")
    with pytest.raises(HoldfastError, match="no folder"):
        known_keys(tmp_path / "none")
    with pytest.raises(HoldfastError, match="holds no public key"):
        known_keys(tmp_path)
    (tmp_path / "bad.pub").write_text("ssh-ed25519 AAAA")
    with pytest.raises(HoldfastError, match="no public Ed25519 key"):
        known_keys(tmp_path)
    with pytest.raises(HoldfastError, match="name of a file"):
        make_key(tmp_path, "../north")
