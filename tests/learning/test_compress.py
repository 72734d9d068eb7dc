"""Top-k and 8 bits with error feedback: what is left out comes later, a resumed run has the same bits, Flower too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_helpers import assert_same_run, experiment, interrupted, same_bits
from flower_helpers import play
from flwr.app import Array, ArrayRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import HoldfastError
from holdfast.core.types import Tensors
from holdfast.flower.engine.codec import RAW, Letter, decode, encode, wire_size
from holdfast.learning.compress import Compression, Int8, TopK
from holdfast.play import resume, run
from holdfast.runs.build import make_plan


@given(seed=st.integers(0, 2**32), share=st.sampled_from([None, 0.01, 0.3, 1.0]))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_what_is_sent_and_what_is_kept_add_up_and_the_error_shrinks(seed: int, share: float | None) -> None:
    """Sent + kept = all; ||e||^2 <= (1 - k/d) ||x||^2 for the k largest of d (Stich et al.), |e| <= s/2 in 8 bits."""
    generator = torch.Generator().manual_seed(seed)
    rule: Compression = Int8() if share is None else TopK(share)
    error: Tensors = {}
    for _ in range(3):
        delta = {"w": torch.randn(7, 9, generator=generator)}
        x = delta["w"] + error.get("w", 0.0)
        sent, error = rule.squeeze(delta, error)
        torch.testing.assert_close(sent["w"] + error["w"], x)
        if share is None:
            assert float(error["w"].abs().max()) <= float(x.abs().max()) / 127 * 0.5001
        else:
            assert float(error["w"].square().sum()) <= (1 - share) * float(x.square().sum()) + 1e-6


def test_what_was_left_out_comes_later_by_hand() -> None:
    # The same update (4, 3) twice, one of two values each time: 4 goes first and 3 waits, then 3 + 3 = 6 goes.
    first, kept = TopK(0.5).squeeze({"w": torch.tensor([4.0, 3.0])}, {})
    second, kept = TopK(0.5).squeeze({"w": torch.tensor([4.0, 3.0])}, kept)
    assert (first["w"].tolist(), second["w"].tolist(), kept["w"].tolist()) == ([4.0, 0.0], [0.0, 6.0], [4.0, 0.0])


@pytest.mark.parametrize("rule", [TopK(0.05), Int8()], ids=repr)
def test_it_travels_in_few_bytes_and_loses_nothing(rule: Compression) -> None:
    delta, _ = rule.squeeze({"w": torch.randn(50, 40, generator=torch.Generator().manual_seed(1))}, {})
    letter = Letter(0, 1, "train", {"delta/w": delta["w"], "buffers/v": torch.zeros(500)})
    got = decode(encode(letter)).tensors
    assert torch.equal(got["delta/w"].view(torch.int32), delta["w"].view(torch.int32))
    saved = wire_size(encode(replace(letter, tensors={"extra/w": delta["w"]}))) - wire_size(
        encode(replace(letter, tensors={"delta/w": delta["w"]}))
    )
    assert saved >= 4 * 2000 - rule.bytes_up({"delta/w": delta["w"]}) - 20
    odd = torch.tensor([0.0, -0.0, 1.0, 3.3e-39] + [0.0] * 60)  # nothing is taken for zero that is not
    got = decode(encode(Letter(0, 1, "train", {"delta/w": odd}))).tensors
    assert torch.equal(got["delta/w"].view(torch.int32), odd.view(torch.int32))


def forged(form: str, shape: list[int], data: bytes, group: str = "delta") -> RecordDict:
    records = encode(Letter(0, 1, "train", {f"{group}/w": torch.ones(1)}))
    records["words"]["layout"] = json.dumps({group: [[f"{group}/w", "float32", shape, form]]})  # type: ignore[assignment]
    records["tensors"] = ArrayRecord({group: Array("uint8", (len(data),), RAW, data)})
    return records


@pytest.mark.parametrize(
    ("form", "shape", "data", "why"),
    [
        ("sparse:1", [3], torch.tensor([3, 0], dtype=torch.int32).numpy().tobytes(), "beyond the tensor's end"),
        ("sparse:1", [3], torch.tensor([-1, 0], dtype=torch.int32).numpy().tobytes(), "beyond the tensor's end"),
        ("sparse:2", [3], torch.tensor([1, 1, 0, 0], dtype=torch.int32).numpy().tobytes(), "not rising"),
        ("sparse:4", [3], b"", "is not a list of name"),
        ("sparse:x", [3], b"", "is not a list of name"),
        ("sparse:0", [1 << 40], b"", "does not fit"),
        ("int8", [9], b"1234", "does not fit"),
        ("int4", [9], b"1234", "is not a list of name"),
    ],
)
def test_a_forged_form_is_refused(form: str, shape: list[int], data: bytes, why: str) -> None:
    with pytest.raises(HoldfastError, match=why):
        decode(forged(form, shape, data))


def test_only_updates_may_be_compact() -> None:
    with pytest.raises(HoldfastError, match="is not a list of name"):
        decode(forged("sparse:0", [9], b"", "model"))


@pytest.mark.parametrize("compress", ["topk:0.1", "int8"])
def test_a_resumed_run_and_one_over_flower_have_the_same_bits(compress: str, tmp_path: Path) -> None:
    wanted = experiment(compress=compress, scenario="dropout:0.3", rounds=4)
    whole = run(wanted)
    interrupted(wanted, tmp_path / "run", after=2)
    assert_same_run(resume(tmp_path / "run"), whole)
    assert same_bits(play(tmp_path / "flower", wanted), whole)
    plain = run(replace(wanted, compress="none"))  # type: ignore[arg-type]
    assert not same_bits(plain, whole)
    assert whole.records[0].bytes_up < plain.records[0].bytes_up / 2.5


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"algorithm": "scaffold"}, "remembers of its whole update"),
        ({"late": "fedbuff"}, "clients keep something"),
        ({"compress": "topk:0"}, "share must be above 0"),
    ],
)
def test_what_does_not_go_with_it_is_a_sentence(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(HoldfastError, match=why):
        make_plan(experiment(**{"compress": "int8", **keys}))
