"""Letters between moderator and sites: nothing is lost, and whatever is not one is refused with a sentence."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import HoldfastError
from holdfast.engines.arena import DTYPES
from holdfast.flower.engine import codec
from holdfast.flower.engine.codec import Blobs, Letter, decode, encode, wire_size

LETTER = Letter(1, 2, "train", {"model/w": torch.tensor([[1.0, -2.0]]), "server/c": torch.tensor(3)}, {"lr": 0.1})
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), SHAPES, st.sampled_from(["model", "delta", "x"])), max_size=5)
)
def test_every_tensor_arrives_to_the_bit(kinds: list[tuple[str, list[int], str]]) -> None:
    tensors = {}
    for i, (dtype, shape, group) in enumerate(kinds):
        count = torch.Size(shape).numel() * DTYPES[dtype].itemsize
        raw = torch.randint(0, 2 if dtype == "bool" else 256, (count,), dtype=torch.uint8)
        tensors[f"{group}/{i}"] = raw.view(DTYPES[dtype]).reshape(shape)
    back = decode(encode(Letter(0, 0, "echo", tensors))).tensors
    assert {name: (t.dtype, t.shape) for name, t in back.items()} == {n: (t.dtype, t.shape) for n, t in tensors.items()}
    for name, tensor in tensors.items():
        assert (
            back[name].contiguous().numpy().tobytes() == tensor.numpy().tobytes()
            if tensor.dtype not in (torch.bfloat16,)
            else torch.equal(back[name].view(torch.int16), tensor.view(torch.int16))
        )


def test_words_arrive_as_they_were() -> None:
    letter = Letter(3, 7, "train", {}, {"a": [1, {"b": None}], "nan": 0.5}, 1.25, True, "abc", "")
    assert decode(encode(letter)) == letter


def test_a_transposed_tensor_arrives_in_its_own_order() -> None:
    tensor = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(decode(encode(Letter(0, 0, "x", {"model/w": tensor}))).tensors["model/w"], tensor)


def test_half_is_for_weights_only_and_never_for_what_does_not_fit() -> None:
    tensors = {
        "delta/small": torch.tensor([1 / 3]),
        "delta/large": torch.tensor([1e6]),
        "digest/x": torch.tensor([1 / 3]),
    }
    back = decode(encode(Letter(0, 0, "train", tensors), halve=True)).tensors
    assert back["delta/small"].dtype == torch.float32
    assert back["delta/small"].item() == np.float32(np.float16(1 / 3))
    assert torch.equal(back["delta/large"], tensors["delta/large"])
    assert torch.equal(back["digest/x"], tensors["digest/x"])


def test_not_a_number_stays_so_as_half() -> None:
    tensors = {"delta/w": torch.tensor([float("nan"), float("inf"), 1.0])}
    back = decode(encode(Letter(0, 0, "train", tensors), halve=True)).tensors["delta/w"]
    assert back.isnan().tolist() == [True, False, False]
    assert back.isinf().tolist() == [False, True, False]


def records(**words: Any) -> RecordDict:
    """A good letter's records with some words changed."""
    good = encode(LETTER)
    return RecordDict({"tensors": good["tensors"], "words": ConfigRecord({**good["words"], **words})})  # type: ignore[dict-item]


def with_layout(layout: object) -> RecordDict:
    return records(layout=json.dumps(layout))


GOOD = json.loads(str(encode(LETTER)["words"]["layout"]))


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (RecordDict({}), "expected tensors and words"),
        (RecordDict({"tensors": ConfigRecord({}), "words": ConfigRecord({})}), "are not arrays and words"),
        (records(more=1), "'more' is not known"),
        (records(client="0"), "'client' is str, expected int"),
        (records(schema=2), "of schema 2, expected 1"),
        (records(scalars="{"), "scalars is not JSON"),
        (records(scalars="[1]"), "scalars is not a JSON object"),
        (records(scalars="[" * 100_000), "scalars is not JSON"),
        (records(scalars=" " * (1 << 23)), "above the bound"),
        (with_layout({}), "names the groups"),
        (with_layout({**GOOD, "model": [["model/w", "float32", [1, 3], "float32"]]}), "does not fit into the bytes"),
        (with_layout({**GOOD, "model": [["model/w", "float32", [1, 1], "float32"]]}), "its layout says 4"),
        (with_layout({**GOOD, "model": [["model/w", "object", [1, 2], "object"]]}), "is not a list of name"),
        (with_layout({**GOOD, "model": [["model/w", "float32", [-1, 2], "float32"]]}), "is not a list of name"),
        (with_layout({**GOOD, "model": [["other/w", "float32", [1, 2], "float32"]]}), "is not a list of name"),
        (with_layout({**GOOD, "model": [["model/w", "int64", [1], "float16"]]}), "is not a list of name"),
        (with_layout({**GOOD, "model": [["model/w", "float32", [1 << 62], "float32"]]}), "does not fit into the bytes"),
    ],
)
def test_what_is_not_a_letter_is_refused_with_a_sentence(bad: RecordDict, sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence):
        decode(bad)


def test_a_pickled_array_is_refused_unread() -> None:
    good = encode(LETTER)
    arrays = dict(good["tensors"])
    arrays["model"] = Array("float32", (1, 2), "numpy.ndarray", b"\x80\x04.")
    with pytest.raises(HoldfastError, match="expected raw bytes"):
        decode(RecordDict({"tensors": ArrayRecord(arrays), "words": good["words"]}))


def test_a_giant_is_refused_in_both_directions() -> None:
    big = Letter(0, 0, "train", {"model/w": torch.zeros(1000)})
    with pytest.raises(HoldfastError, match="4000 bytes, above the bound of 3999"):
        encode(big, bound=3999)
    with pytest.raises(HoldfastError, match="4000 bytes, above the bound of 3999"):
        decode(encode(big), bound=3999)
    assert 4000 < wire_size(encode(big)) < 4300


def test_a_sparse_tensor_cannot_travel() -> None:
    with pytest.raises(HoldfastError, match="cannot travel"):
        encode(Letter(0, 0, "x", {"model/w": torch.ones(2).to_sparse()}))


def test_a_model_for_many_is_encoded_once() -> None:
    model, other = {"model/w": torch.arange(6.0)}, {"model/w": torch.ones(6)}
    known: Blobs = {}
    sent = [encode(Letter(c, 0, "train", tensors), known=known) for c, tensors in enumerate((model, model, other))]
    arrays = [records.array_records["tensors"]["model"] for records in sent]
    assert arrays[0].data is arrays[1].data
    assert arrays[2].data != arrays[0].data
    assert [decode(records).client for records in sent] == [0, 1, 2]
    assert torch.equal(decode(sent[1]).tensors["model/w"], model["model/w"])
    assert torch.equal(decode(sent[2]).tensors["model/w"], other["model/w"])


def test_a_large_group_travels_in_pieces_and_one_that_lacks_a_piece_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "PIECE", 10)
    tensors = {"delta/w": torch.arange(7.0) + 0.1, "delta/none": torch.empty(0), "model/b": torch.ones(2)}
    records = encode(Letter(0, 0, "train", tensors))
    arrays = records.array_records["tensors"]
    assert list(arrays) == ["delta", "delta/1", "delta/2", "model"]
    read = decode(records).tensors
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in read.items())
    for lost in ("delta", "delta/1"):
        less = {name: array for name, array in arrays.items() if name != lost}
        with pytest.raises(HoldfastError, match="its layout names the groups"):
            decode(RecordDict({"tensors": ArrayRecord(less), "words": records["words"]}))
