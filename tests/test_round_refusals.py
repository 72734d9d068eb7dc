"""A refused update leaves no trace: the state is bit for bit that of a round in which the client was away."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from round_bench import ALGORITHM_NAMES, Away, Spoil, Spoiled, play, same_state, with_scalar, with_tensor

from holdfast.core.types import Absent, Reply, State, Tensors
from holdfast.core.validate import find_fault
from holdfast.record import Record

WEIGHT, COUNTER = "delta/0.weight", "buffers/1.num_batches_tracked"


def without(name: str) -> Spoil:
    return lambda reply: replace(reply, tensors={n: t for n, t in reply.tensors.items() if n != name})


def with_new(name: str, tensor: torch.Tensor) -> Spoil:
    return lambda reply: replace(reply, tensors={**reply.tensors, name: tensor})


def one_bad_value(value: float) -> Spoil:
    def put(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        changed.view(-1)[-1] = value
        return changed

    return with_tensor(WEIGHT, put)


SPOILS: dict[str, tuple[Spoil, str]] = {
    "nan": (one_bad_value(math.nan), "delta/0.weight is not finite"),
    "inf": (one_bad_value(math.inf), "delta/0.weight is not finite"),
    "minus inf": (one_bad_value(-math.inf), "delta/0.weight is not finite"),
    "nan buffer": (
        with_tensor("buffers/1.running_var", lambda t: t * math.nan),
        "buffers/1.running_var is not finite",
    ),
    "transposed": (with_tensor(WEIGHT, lambda t: t.T), "is float32 (2, 3), expected float32 (3, 2)"),
    "flat": (with_tensor(WEIGHT, lambda t: t.flatten()), "is float32 (6,), expected"),
    "one more axis": (with_tensor(WEIGHT, lambda t: t[None]), "is float32 (1, 3, 2), expected"),
    "broadcastable": (with_tensor("delta/0.bias", lambda t: t[:1]), "is float32 (1,), expected float32 (3,)"),
    "double": (with_tensor(WEIGHT, lambda t: t.double()), "is float64 (3, 2), expected float32"),
    "half": (with_tensor(WEIGHT, lambda t: t.half()), "is float16 (3, 2)"),
    "whole numbers": (with_tensor(WEIGHT, lambda t: t.long()), "is int64 (3, 2)"),
    "sparse": (with_tensor(WEIGHT, lambda t: t.to_sparse()), "delta/0.weight is sparse"),
    "float counter": (with_tensor(COUNTER, lambda t: t.float()), "is float32 (), expected int64 ()"),
    "missing": (without(WEIGHT), "delta/0.weight is missing"),
    "missing buffer": (without("buffers/1.running_mean"), "buffers/1.running_mean is missing"),
    "unknown": (with_new("delta/9.weight", torch.zeros(1)), "delta/9.weight is not part of the model"),
    "unknown buffer": (with_new("buffers/x", torch.zeros(1)), "buffers/x is not part of the model"),
    "unknown extra": (with_new("extra/x", torch.zeros(1)), "extra/x is not part of the model"),
    "unknown group": (with_new("strange/x", torch.zeros(1)), "'strange/x' is not part of the model"),
    "nothing": (lambda reply: replace(reply, tensors={}), "is missing"),
    "no scalars": (lambda reply: replace(reply, scalars={}), "samples is None"),
    "no samples": (with_scalar("samples", 0), "samples is 0, not a positive whole number"),
    "negative samples": (with_scalar("samples", -1), "samples is -1"),
    "nan samples": (with_scalar("samples", math.nan), "samples is nan"),
    "float samples": (with_scalar("samples", 5.0), "samples is 5.0"),
    "true samples": (with_scalar("samples", True), "samples is True"),
    "text samples": (with_scalar("samples", "5"), "samples is '5'"),
    "long samples": (with_scalar("samples", "5" * 9999), "555..., not a positive"),
    "below zero without end": (with_scalar("samples", -(10**5000)), "samples is a whole number of 16610 bits"),
    "endless samples": (with_scalar("samples", 10**400), "samples is above 281474976710656"),
    "no steps": (with_scalar("steps", 0), "steps is 0"),
    "true steps": (with_scalar("steps", True), "steps is True"),
    "endless steps": (with_scalar("steps", 10**400), "steps is above"),
    "text loss": (with_scalar("loss", "low"), "loss is 'low'"),
    "list loss": (with_scalar("loss", [0.1]), "loss is [0.1]"),
    "true loss": (with_scalar("loss", True), "loss is True"),
    "endless loss": (with_scalar("loss", 10**5000), "loss is a whole number of 16610 bits, not a number"),
    "too long": (with_tensor(WEIGHT, lambda t: t + 1e6), "is above the bound 100"),
}
absences: dict[
    str, list[tuple[State, Record]]
] = {}  # the same three rounds with client 1 away in the second, by algorithm


def rounds_without(name: str) -> list[tuple[State, Record]]:
    if name not in absences:
        absences[name] = play(name, 3, lambda federation: Away(federation, {(1, 1)}), max_norm=100.0)
    return absences[name]


# Of Mime a gradient has counted before the update is refused: test_mime.py.
OTHERS = [name for name in ALGORITHM_NAMES if name not in ("scaffold", "mime")]
FEW = ["nan", "nan buffer", "missing", "endless steps", "too long"]


# SCAFFOLD has memory on both sides, so it sees every spoil; the others see a few.
@pytest.mark.parametrize(
    ("name", "spoil"), [("scaffold", s) for s in SPOILS] + [(name, s) for name in OTHERS for s in FEW]
)
def test_a_refused_update_is_as_if_the_client_were_away(name: str, spoil: str) -> None:
    change, reason = SPOILS[spoil]
    told = play(name, 3, lambda federation: Spoiled(federation, {(1, 1): change}), max_norm=100.0)
    expected = rounds_without(name)
    for (state, record), (state_without, record_without) in zip(told, expected, strict=True):
        assert same_state(state, state_without)
        assert record.weights == record_without.weights
    state, record = told[1]
    assert list(record.refused) == [1]
    assert reason in record.refused[1]
    assert len(record.refused[1]) < 200
    assert record.absent == {}
    assert state.absent == (1,)
    assert state.accepted == {0: 1, 1: 0, 2: 1}
    assert told[2][1].refused == {}
    assert told[2][0].accepted == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize("name", ALGORITHM_NAMES)
def test_a_lost_reply_is_as_if_the_client_were_away(name: str) -> None:
    """The client trained and remembers, but its answer never came: its memory of that round does not count."""
    lost = {(1, 1): lambda reply: Absent(reply.client, "lost on the way")}
    told = play(name, 3, lambda federation: Spoiled(federation, lost), max_norm=100.0)
    for (state, _), (expected, _) in zip(told, rounds_without(name), strict=True):
        assert same_state(state, expected)
    assert told[1][1].absent == {1: "lost on the way"}


def tiny_reply(delta: torch.Tensor, samples: object = 1, steps: object = 1) -> Reply:
    return Reply(0, {"delta/w": delta}, {"samples": samples, "steps": steps})


EXPECTED: dict[str, Tensors] = {"delta": {"w": torch.zeros(3)}, "buffers": {}}
finite = st.floats(-1e6, 1e6, width=32)


@given(values=st.lists(finite, min_size=3, max_size=3), bound=st.floats(1e-3, 1e7))
@settings(max_examples=100)
def test_the_bound_is_on_the_euclidean_norm(values: list[float], bound: float) -> None:
    norm = math.hypot(*values)
    fault = find_fault(tiny_reply(torch.tensor(values)), EXPECTED, bound)
    if norm < bound * (1 - 1e-6):
        assert fault is None
    elif norm > bound * (1 + 1e-6):
        assert fault is not None
        assert "above the bound" in fault


def test_a_norm_at_the_bound_passes_and_one_that_overflows_single_precision_is_measured() -> None:
    assert find_fault(tiny_reply(torch.tensor([3.0, 4.0, 0.0])), EXPECTED, 5.0) is None
    huge = torch.full((3,), 3e38)  # its square is not a float32
    assert find_fault(tiny_reply(huge), EXPECTED, None) is None
    assert find_fault(tiny_reply(huge), EXPECTED, 1e30) == "its norm 5.2e+38 is above the bound 1e+30"


@given(
    value=st.one_of(st.none(), st.booleans(), st.integers(max_value=0), st.floats(), st.text(max_size=3)),
    key=st.sampled_from(["samples", "steps"]),
)
@settings(max_examples=60)
def test_counts_are_positive_whole_numbers_or_refused(value: object, key: str) -> None:
    counts = {"samples": 1, "steps": 1, key: value}
    fault = find_fault(tiny_reply(torch.zeros(3), **counts), EXPECTED, None)
    assert fault is not None
    assert fault.startswith(f"{key} is ")


@given(samples=st.integers(1, 10**9), steps=st.integers(1, 10**9))
@settings(max_examples=30)
def test_counts_of_this_world_are_accepted(samples: int, steps: int) -> None:
    assert find_fault(tiny_reply(torch.zeros(3), samples, steps), EXPECTED, None) is None
