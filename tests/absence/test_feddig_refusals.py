"""Digests and options that FedDig refuses: one sentence, and nothing is lost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from feddig_helpers import ABOUT, DIGESTS, FROM_CLIENT_0, Script, digest_of, method_with, reply, sealed, start

from holdfast.absence import FedDig
from holdfast.core.errors import HoldfastError
from holdfast.core.types import Absent, Message, Reply, Tensors
from holdfast.digests import release
from holdfast.digests.digest import open_digest
from holdfast.method import Method
from holdfast.round import play_round


def change(digest: Tensors, **tensors: torch.Tensor) -> Tensors:
    return {**digest, **tensors}


BAD = {
    "of another task": (sealed(digest_of([[0.0, 1.0]], [[1.0, 0.0]], task="other")), "made for task 'other'"),
    "of another encoder": (sealed(digest_of([[0.0, 1.0]], [[1.0, 0.0]], encoder="x")), "made for encoder 'x'"),
    "of other classes": (sealed(digest_of([[0.0, 1.0]], [[1.0, 0.0, 0.0]])), "made for classes 3"),
    "with features too long": (sealed(digest_of([[0.0, 1.0, 2.0]], [[1.0, 0.0]])), "made for feature shape [3]"),
    "with features of two axes": (sealed(digest_of([[[0.0, 1.0]]], [[1.0, 0.0]])), "made for feature shape [1, 2]"),  # type: ignore[list-item]
    "damaged": (change(DIGESTS[1], features=torch.ones(1, 2)), "SHA-256"),
    "not a number": (change(DIGESTS[1], features=torch.full((1, 2), math.nan)), "damaged"),
    "empty": ({"manifest": torch.zeros(0, dtype=torch.uint8)}, "no readable manifest"),
    "absent with a reason": ({"none": torch.tensor(list(b"few"), dtype=torch.uint8)}, "it has fewer records for this"),
    "absent with a long reason": ({"none": torch.full((10_000,), 255, dtype=torch.uint8)}, "there is none"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_digest_is_refused_with_a_sentence_and_the_update_counts(kind: str) -> None:
    bad, reason = BAD[kind]

    def answer(message: Message) -> Reply | Absent:
        return reply(message.client, FROM_CLIENT_0, bad if message.client == 1 else DIGESTS[0])

    method = method_with(FedDig(server_epochs=0))
    after, record = play_round(replace(start(method), digests={1: DIGESTS[1]}), Script(2, answer), method)
    torch.testing.assert_close(after.model["w"], torch.tensor(FROM_CLIENT_0), atol=1e-7, rtol=0)
    assert after.digests[1] is DIGESTS[1], "the digest it had stays in force"
    assert after.digests[0] is not None
    [note] = record.notes
    assert note.startswith("client 1's digest is refused: ")
    assert reason in note
    assert len(note) < 700


def test_a_digest_that_is_refused_is_asked_for_again() -> None:
    def answer(message: Message) -> Reply | Absent:
        return reply(
            message.client, [[0.0, 0.0], [0.0, 0.0]], BAD["of another task"][0] if message.client == 1 else None
        )

    method: Method = method_with(FedDig())
    state, _ = play_round(start(method), Script(2, answer), method)
    script = Script(2, answer)
    play_round(state, script, method)
    assert script.heard[1].scalars["digest"] is True


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"spd": 0}, "spd and size must be at least 1"),
        ({"server_epochs": -1}, "not be negative"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        FedDig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ("0.5/0.5", "2 numbers were given for 4 samples"),
        ("0.5/0.5/0.5/0.5", "sum to one"),
        ("heavy", "say 'balanced', 'random' or numbers"),
    ],
)
def test_weights_of_mixing_that_do_not_fit_are_refused(weights: str, sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence):
        FedDig(weights=weights)


def test_given_weights_are_those_of_the_digests_and_of_the_claim() -> None:
    options = FedDig(spd=2, weights="0.75/0.25", bits="32", epsilon=0.005, size=20_000)
    features, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    made, claim = release.make_release(replace(options, epsilon=None), ABOUT, features, labels, torch.Generator(), None)  # type: ignore[arg-type]
    digest = open_digest(made)
    assert sorted(digest.features[0].tolist()) == [0.25, 0.75]
    assert (digest.weights, claim.epsilon_features) == ("0.75/0.25", math.inf)
    claim = release.claim_of(options, (256,), 2, signed=False)
    assert claim.epsilon_features == pytest.approx(0.75 * 256 * 20_000 * 0.005)
