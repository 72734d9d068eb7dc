"""Digests on the wire and on disk: nothing is lost that should not be, and nothing wrong is taken for a digest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from holdfast.core.errors import HoldfastError
from holdfast.core.types import size
from holdfast.digests.compact import KINDS, SCALES, Compact, sha256_of, squeeze, unsqueeze
from holdfast.digests.digest import (
    Digest,
    digest_from_tensors,
    digest_to_tensors,
    load_digest,
    make_digest,
    open_digest,
    save_digest,
    seal_digest,
)
from holdfast.digests.mixing import Laplace
from holdfast.encoders import make_encoder
from holdfast.encoders.shapes import draw_shapes

PAPER_BYTES = 4 * (8 * 8 * 4 + 62)  # 1,272 a digest


def digest(
    samples: int = 40, shape: tuple[int, ...] = (4, 2, 2), classes: int = 7, seed: int = 0, spd: int = 4
) -> Digest:
    source = torch.Generator().manual_seed(seed)
    features = torch.randn(samples, *shape, generator=source)
    labels = torch.randint(0, classes, (samples,), generator=source)
    return make_digest(
        features, labels, classes, spd=spd, weights="random", generator=source, task="shirts", encoder="abc"
    )


def same_facts(one: Digest, other: Digest) -> bool:
    names = ("task", "encoder", "spd", "strategy", "weights", "noise", "samples", "used", "mode")
    return all(getattr(one, name) == getattr(other, name) for name in names)


@given(
    st.sampled_from(KINDS),
    st.sampled_from(["tensor", "coordinate"]),
    st.booleans(),
    st.sampled_from([(64,), (4, 2, 2), (1,)]),
    st.sampled_from([2, 7, 300]),
    st.integers(1, 5),
    st.integers(0, 100),
)
@settings(max_examples=60)
def test_round_trip(
    kind: Any, scale: Any, compress: bool, shape: tuple[int, ...], classes: int, spd: int, seed: int
) -> None:
    before = digest(30, shape, classes, seed, spd)
    tensors, manifest = digest_to_tensors(before, Compact(kind, scale, compress))
    after = digest_from_tensors(tensors, manifest, task="shirts", encoder="abc", classes=classes, feature_shape=shape)
    assert same_facts(before, after)
    assert torch.equal(before.labels, after.labels)
    error = (before.features - after.features).abs()
    if kind == "float32":
        assert torch.equal(before.features, after.features)
    elif kind == "float16":
        assert (error <= before.features.abs() * 2**-11 + 2**-24).all()
    else:
        spread = before.features.flatten(1).amax(0) - before.features.flatten(1).amin(0)
        levels = {"int8": 255, "int6": 63, "int4": 15}[kind]
        step = (spread if scale == "coordinate" else before.features.max() - before.features.min()) / levels
        assert (error.flatten(1) <= step * 0.501 + 1e-6).all()


def test_int8_by_hand() -> None:
    """Values 0, 0.2, 1.02 on 0 .. 1.02: step 0.004, codes 0, 50, 255; they come back as they were."""
    features = torch.tensor([[0.0], [0.2], [1.02]])
    made = make_digest(features, torch.tensor([0, 1, 1]), 2, spd=1, generator=torch.Generator().manual_seed(0))
    tensors, manifest = digest_to_tensors(made, Compact("int8"))
    assert sorted(tensors["features"].flatten().tolist()) == [0, 50, 255]
    assert float(tensors["step"]) == pytest.approx(0.004)
    torch.testing.assert_close(digest_from_tensors(tensors, manifest).features, made.features)


def test_a_constant_coordinate_comes_back_exactly() -> None:
    before = digest()
    before = replace(before, features=torch.full_like(before.features, 0.3))
    for scale in SCALES:
        tensors, manifest = digest_to_tensors(before, Compact("int8", scale))
        assert torch.equal(digest_from_tensors(tensors, manifest).features, before.features)


def test_blurred_labels_travel_whole() -> None:
    """A privacy mechanism may leave some weight on every class: more than spd of them."""
    before = digest(spd=2)
    before = replace(before, labels=before.labels * 0.9 + 0.1 / 7)
    for compress in (False, True):
        sealed = seal_digest(before, Compact("float16", compress=compress))
        assert torch.equal(open_digest(sealed).labels, before.labels)


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.fixed_dictionaries({"features": st.just(["int8"]), "scale": st.just("tensor"), "compress": st.booleans()}),
)
tensor_kinds = st.sampled_from([torch.float32, torch.bfloat16, torch.uint8, torch.int64, torch.bool, torch.complex64])
tensor_shapes = st.lists(st.integers(0, 4), max_size=3)


@given(st.booleans(), st.data())
@settings(max_examples=150)
def test_whatever_a_hostile_client_sends_gives_a_sentence(compress: bool, data: st.DataObject) -> None:
    """Facts and tensors of any kind under the right names, with the right SHA-256: refused, or a proper digest."""
    tensors, manifest = digest_to_tensors(digest(12), Compact("int8", compress=compress))
    for name in data.draw(st.sets(st.sampled_from(sorted(manifest)), max_size=2)):
        manifest[name] = data.draw(junk)
    for name in data.draw(st.sets(st.sampled_from(sorted(tensors)), max_size=2)):
        shape, kind = data.draw(tensor_shapes), data.draw(tensor_kinds)
        tensors[name] = torch.ones(shape).to(kind)
    manifest["sha256"] = sha256_of(tensors, manifest)
    try:
        after = digest_from_tensors(tensors, manifest)
    except HoldfastError:
        return
    assert torch.isfinite(after.features).all()
    torch.testing.assert_close(after.labels.sum(1), torch.ones(len(after)), atol=1e-4, rtol=0)


def test_sealed_digests_and_files_round_trip(tmp_path: Path) -> None:
    before = digest()
    assert torch.equal(open_digest(seal_digest(before), task="shirts").features, before.features)
    written = save_digest(tmp_path / "c.digest", before, Compact("float32", compress=True))
    assert written == (tmp_path / "c.digest").stat().st_size
    after = load_digest(tmp_path / "c.digest", task="shirts", encoder="abc", classes=7, feature_shape=(4, 2, 2))
    assert torch.equal(before.features, after.features)
    assert same_facts(before, after)
    assert [path.name for path in tmp_path.iterdir()] == ["c.digest"]


@pytest.mark.parametrize(
    ("expected", "sentence"),
    [
        ({"task": "shoes"}, "made for task 'shirts', but this run has 'shoes'"),
        ({"encoder": "def"}, "made for encoder 'abc'"),
        ({"classes": 8}, "made for classes 7"),
        ({"feature_shape": (4, 8, 8)}, "made for feature shape"),
    ],
)
def test_a_digest_for_something_else_is_refused(tmp_path: Path, expected: dict[str, Any], sentence: str) -> None:
    save_digest(tmp_path / "c.digest", digest())
    with pytest.raises(HoldfastError, match=sentence):
        load_digest(tmp_path / "c.digest", **expected)


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c.digest"
    before = digest(8, (2,), 3)
    save_digest(path, before, Compact("int8", compress=True))
    content = bytearray(path.read_bytes())
    whole = load_digest(path)
    for place in range(0, len(content), 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x20]) + content[place + 1 :])
        try:
            after = load_digest(path, task="shirts", encoder="abc", classes=3, feature_shape=(2,))
        except HoldfastError:
            continue
        # Nothing that counts has changed: the flip hit the padding of the file's header.
        assert torch.equal(after.labels, whole.labels), place
        assert torch.equal(after.features, whole.features), place
        assert same_facts(after, whole), place
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(HoldfastError, match="damaged or no digest"):
        load_digest(path)
    with pytest.raises(HoldfastError, match="no such file"):
        load_digest(tmp_path / "none.digest")


def test_files_that_are_no_digests_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.digest"
    save_file({"w": torch.zeros(2)}, path)
    with pytest.raises(HoldfastError, match="schema"):
        load_digest(path)
    save_file({"w": torch.zeros(2)}, path, metadata={"digest": "[[[{"})
    with pytest.raises(HoldfastError, match="damaged"):
        load_digest(path)


@pytest.mark.parametrize("name", ["task", "spd", "samples", "used", "digests", "classes", "feature_shape", "compact"])
@pytest.mark.parametrize("value", [None, -1, [0], {"features": "int3"}, True])
def test_improper_manifests_are_refused(name: str, value: object) -> None:
    tensors, manifest = digest_to_tensors(digest())
    with pytest.raises(HoldfastError, match=name):
        digest_from_tensors(tensors, {**manifest, name: value})


def forged(before: Digest, **changes: torch.Tensor) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A digest whose tensors were changed by somebody who knows how to recompute the SHA-256."""
    tensors, manifest = digest_to_tensors(before)
    tensors |= changes
    return tensors, {**manifest, "sha256": sha256_of(tensors, manifest)}


def test_forged_contents_are_refused() -> None:
    before = digest()
    whole = digest_to_tensors(before)[0]
    cases = [
        ({"features": whole["features"] * float("nan")}, "not finite"),
        ({"features": whole["features"][:, :2]}, "expected"),
        ({"features": whole["features"].double()}, "expected"),
        ({"label_class": whole["label_class"] + 7}, "only 7 classes"),
        ({"label_weight": whole["label_weight"] * 2}, r"lie in \[0, 1\]|sum to one"),
        ({"label_weight": -whole["label_weight"]}, r"lie in \[0, 1\]"),
        ({"another": torch.zeros(1)}, "another"),
    ]
    for changes, sentence in cases:
        with pytest.raises(HoldfastError, match=sentence):
            digest_from_tensors(*forged(before, **changes), where="digest of client 3")  # type: ignore[arg-type]
    with pytest.raises(HoldfastError, match="client 3: it is damaged"):
        digest_from_tensors({**whole, "features": whole["features"] + 1}, forged(before)[1], where="digest of client 3")
    with pytest.raises(HoldfastError, match="no readable manifest"):
        open_digest(whole)


def test_a_small_packet_cannot_grow_without_bound() -> None:
    packed = squeeze(torch.zeros(1000, 1000))
    with pytest.raises(HoldfastError, match="does not unpack to the 400 bytes"):
        unsqueeze(packed, torch.float32, (10, 10))
    with pytest.raises(HoldfastError, match="does not unpack"):
        unsqueeze(packed, torch.float32, (10**9, 10**9))
    with pytest.raises(HoldfastError, match="damaged"):
        unsqueeze(packed[5:], torch.float32, (1000, 1000))


def test_features_too_large_for_float16_are_refused() -> None:
    before = digest()
    with pytest.raises(HoldfastError, match="too large for float16"):
        digest_to_tensors(replace(before, features=before.features * 1e6), Compact("float16"))


@pytest.mark.parametrize("noise", [None, Laplace(seed=0)])
def test_a_compact_digest_has_a_sixth_of_the_papers_bytes(noise: Laplace | None) -> None:
    """8 x 8 x 4 features of 62 classes, as in the paper: 1,272 bytes each there; the worst case, nothing but chance."""
    source = torch.Generator().manual_seed(0)
    features, labels = torch.rand(4000, 4, 8, 8, generator=source), torch.randint(0, 62, (4000,), generator=source)
    made = make_digest(features, labels, 62, noise=noise, generator=source)
    assert size(digest_to_tensors(made)[0]) < len(made) * PAPER_BYTES
    small, manifest = digest_to_tensors(made, Compact("int6", compress=True))
    assert size(small) + len(json.dumps(manifest)) <= len(made) * PAPER_BYTES / 6


def test_compact_scattering_digests_are_smaller_still() -> None:
    images = draw_shapes(1000, (1, 28, 28), seed=9)
    labels = torch.randint(0, 10, (1000,), generator=torch.Generator().manual_seed(0))
    features = make_encoder("scattering", (1, 28, 28)).encode(images)
    made = make_digest(features, labels, 10, generator=torch.Generator().manual_seed(0))
    sizes = [size(digest_to_tensors(made, Compact(kind, compress=True))[0]) / len(made) for kind in KINDS]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[KINDS.index("int8")] < 106
