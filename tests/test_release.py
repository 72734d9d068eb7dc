"""What a client releases in each mode, and what the moderator takes for a release."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from release_helpers import ABOUT, client, experiment, method, records

from holdfast.absence import FedDig
from holdfast.absence.release import claim_of, make_release, open_for, receive_one, samples_of
from holdfast.choices import Choice, choose
from holdfast.core import Reply, State, Tensors, size
from holdfast.errors import HoldfastError
from holdfast.models import weights_of
from holdfast.plan import make_plan
from holdfast.play import run
from holdfast.privacy.noise import SEEDED, SYSTEM, seeded, system
from holdfast.privacy.wire import check_moments, from_three_bytes, open_moments, seal_moments, three_bytes
from holdfast.tasks import Samples

STRICT = ("dp-label-public", "dp-full", "moments")
EXPECTED = {"task": "corners", "encoder": "finger", "classes": 4, "features": 9, "epsilon": 3.0, "delta": 1e-5}


def sealed(absence: FedDig, samples: Samples | None = None) -> Tensors:
    own = samples or records()
    return make_release(absence, ABOUT, own.inputs[-1], own.labels, torch.Generator(), system())[0]


def reply(samples: int = 400) -> Reply:
    return Reply(0, {}, {"samples": samples})


def refusal(absence: FedDig, tensors: Tensors, samples: int = 400) -> str:
    with pytest.raises(HoldfastError) as caught:
        receive_one(absence, method(absence), reply(samples), tensors)
    return str(caught.value)


def edited(tensors: Tensors, resign: bool = True, **changes: object) -> Tensors:
    """The release with other words in its manifest, its SHA-256 made to fit."""
    from holdfast.compact import sha256_of

    manifest = json.loads(bytes(tensors["manifest"].numpy()))
    for name, value in changes.items():
        target = manifest if name in manifest else manifest["claim"]
        target[name] = value
    rest = {name: tensor for name, tensor in tensors.items() if name != "manifest"}
    if resign:
        manifest["sha256"] = sha256_of(rest, manifest)
    text = json.dumps(manifest).encode()
    return {**rest, "manifest": torch.frombuffer(bytearray(text), dtype=torch.uint8)}


# What leaves ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", STRICT)
def test_a_strict_release_keeps_its_promise_in_words_and_noise(mode: str) -> None:
    absence = FedDig(mode=mode, epsilon=2.0)  # type: ignore[arg-type]
    own = records()
    one, claim = make_release(absence, ABOUT, own.inputs[0], own.labels, torch.Generator(), system())
    other, again = make_release(absence, ABOUT, own.inputs[0], own.labels, torch.Generator(), system())
    assert (claim.mode, claim.entropy, claim.delta) == (mode, SYSTEM, 1e-5)
    assert 1.9 < claim.epsilon_total <= 2.0 + 1e-9
    assert claim == again == claim_of(absence, (9,), 4)  # what is promised does not depend on the records
    assert any(not torch.equal(one[name], other[name]) for name in one if name not in ("manifest", "claim"))


def test_epsilon_is_three_where_none_is_named() -> None:
    assert claim_of(FedDig(mode="moments"), (64,), 10).epsilon_nominal == 3.0
    full = claim_of(FedDig(mode="dp-full", label_share=0.25), (64,), 10)
    assert full.epsilon_nominal == 3.0
    assert full.epsilon_labels == pytest.approx(0.75, abs=1e-6)


def test_at_delta_zero_noise_is_laplace_within_the_l1_norm() -> None:
    claim = claim_of(FedDig(mode="dp-label-public", delta=0.0, epsilon=5.0), (64,), 10)
    assert (claim.noise, claim.delta) == ("discrete laplace", 0.0)
    assert claim.clip == pytest.approx(8.0)  # |z|_1 <= sqrt(64) |z|_2
    assert claim.epsilon_total <= 5.0


def test_the_papers_epsilon_is_called_nominal_and_no_noise_is_no_privacy() -> None:
    assert claim_of(FedDig(epsilon=0.005), (4, 8, 8), 10).epsilon_features == 6400.0
    bare = claim_of(FedDig(), (64,), 10)
    assert bare.epsilon_total == math.inf
    assert bare.guarantee == "no guarantee: there is no noise, so epsilon is infinite"


def test_a_moment_digest_of_ten_classes_and_64_features_is_at_most_eleven_kilobytes() -> None:
    from holdfast.client import About

    about = About("fashion-mini", 10, "a" * 64, (64,))
    for count in (20, 20_000):
        features = torch.nn.functional.normalize(torch.randn(count, 64, generator=torch.Generator()), dim=1)
        labels = torch.arange(count) % 10
        made, _ = make_release(FedDig(mode="moments"), about, features, labels, torch.Generator(), system())
        assert size(made) <= 11_000


def test_a_seeded_release_says_that_it_promises_nothing() -> None:
    own = records()
    absence = FedDig(mode="moments")
    _, claim = make_release(absence, ABOUT, own.inputs[0], own.labels, torch.Generator(), seeded(0))
    assert claim.guarantee == SEEDED


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "moments", "delta": "0"}, "above 0"),
        ({"mode": "moments", "clip": "2"}, "leave clip out"),
        ({"mode": "dp-full", "weights": "random"}, "equal weights"),
        ({"mode": "dp-full", "label_share": "1"}, "label_share"),
        ({"mode": "dp-full", "clip": "0"}, "clip must be positive"),
        ({"mode": "dp-ful"}, "did you mean 'dp-full'"),
        ({"mode": "moments", "epsilon": "0"}, "epsilon must be positive"),
    ],
)
def test_options_that_break_the_promise_are_refused_at_construction(options: dict[str, str], words: str) -> None:
    with pytest.raises(HoldfastError, match=words):
        choose({"feddig": FedDig}, Choice("feddig", dict(options)), "absence")


@pytest.mark.parametrize("mode", STRICT)
def test_features_without_a_public_bound_are_refused_before_round_one(mode: str) -> None:
    asked = experiment(encoder="release_helpers:Unbounded", absence={"name": "feddig", "mode": mode})
    with pytest.raises(HoldfastError, match="needs features within a public norm bound, and the encoder's 1x3x3"):
        make_plan(asked).start()


# Records that are odd -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", STRICT)
def test_nan_features_leave_nothing_but_a_sentence(mode: str, tmp_path: Path) -> None:
    own = records()
    own.inputs[0][7, 2] = math.nan
    absence = FedDig(mode=mode)  # type: ignore[arg-type]
    made = absence.make_digest(client(absence, own, tmp_path / "clients" / "0000"), 0)
    assert made.keys() == {"none"}
    assert "record 7, feature 2 is nan" in bytes(made["none"].numpy()).decode()
    assert not list(tmp_path.rglob("privacy-ledger.json"))  # nothing left, so nothing is entered


@pytest.mark.parametrize("mode", STRICT)
def test_empty_classes_and_a_class_with_one_record_are_released_like_any_other(mode: str) -> None:
    features = records(61).inputs[0]
    labels = torch.zeros(61, dtype=torch.long)
    labels[0] = 3
    absence = FedDig(mode=mode, epsilon=5.0)  # type: ignore[arg-type]
    made = sealed(absence, Samples((features,), labels))
    receive_one(absence, method(absence), reply(61), made)
    [drawn] = samples_of(absence, method(absence), {0: made}, 0, [0])
    assert len(drawn) > 0
    assert torch.isfinite(drawn.features).all()
    if mode == "moments":
        assert drawn.labels.argmax(1).unique().tolist() == [0]  # one record is too few for its noise


def test_features_beyond_the_clip_are_shortened_to_it() -> None:
    own = records()
    long = Samples((own.inputs[0] * 1000,), own.labels)
    [drawn] = samples_of(FedDig(mode="moments"), method(FedDig()), {0: sealed(FedDig(mode="moments"), long)}, 0, [0])
    assert float(drawn.features.norm(dim=1).max()) <= 1 + 1e-5


@pytest.mark.parametrize("mode", STRICT)
def test_a_client_without_records_of_its_own_releases_nothing(mode: str) -> None:
    absence = FedDig(mode=mode)  # type: ignore[arg-type]
    made = absence.make_digest(client(absence, records(4).take(torch.arange(1))), 0)
    if mode == "moments":
        assert "no class has as many records" in refusal(absence, made, 1)
    else:
        receive_one(absence, method(absence), reply(1), made)  # padded with empty places, drowned in noise


# At the moderator -----------------------------------------------------------------------------------------------


def test_what_is_drawn_looks_like_what_was_released_and_is_the_same_each_time() -> None:
    absence, own = FedDig(mode="moments", epsilon=10.0), records(4000)
    digests = {0: sealed(absence, own), 3: sealed(absence, records(2000, seed=1))}
    [one] = samples_of(absence, method(absence), digests, 5, [0])
    [again] = samples_of(absence, method(absence), digests, 5, [0])
    assert torch.equal(one.features, again.features)
    assert abs(one.samples - 4000) < 60
    truth = torch.stack([own.inputs[0][own.labels == c].mean(0) for c in range(4)])
    drawn = torch.stack([one.features[one.labels[:, c] == 1].mean(0) for c in range(4)])
    assert float((truth - drawn).abs().max()) < 0.05


def test_strict_mixtures_come_back_as_features_and_soft_labels() -> None:
    absence = FedDig(mode="dp-full", epsilon=2000.0, spd=4, strategy="within", bits="32")
    own = records()
    digest = open_for(method(absence), sealed(absence, own))
    assert len(digest) in (100, 101, 102, 103)
    truth = own.inputs[0].double().sum(0)
    weights = torch.full((len(digest),), 4.0, dtype=torch.float64)  # all but the last of each class are full
    assert float((digest.features.double() * weights[:, None]).sum(0).sub(truth).abs().max()) < 10
    assert "discrete gaussian, (1022, 1e-05)-differential privacy" in digest.noise  # 22 for labels: 2^32 tickets


BAD = {
    "of another task": ({"task": "other"}, "made for task 'other'"),
    "of another encoder": ({"encoder": "x"}, "made for encoder 'x'"),
    "of another epsilon": ({"epsilon_nominal": 1.0}, "made for epsilon 1.0, but this run has 3.0"),
    "of more classes": ({"classes": 5}, "made for classes 5"),
    "of no features": ({"features": 0}, "made for features 0"),
    "with endless steps": ({"steps": {"counts": 1e999, "sums": 1.0, "second": 1.0}}, "no proper steps"),
    "with negative steps": ({"steps": {"counts": -1.0, "sums": 1.0, "second": 1.0}}, "no proper steps"),
    "without steps": ({"steps": 3}, "no proper steps"),
    "with absurd counts": ({"steps": {"counts": 1e9, "sums": 1.0, "second": 1.0}}, "noise does not explain"),
    "with absurd sums": ({"steps": {"counts": 2.0**-14, "sums": 1e6, "second": 2.0**-14}}, "sums longer than"),
    "without a claim": ({"claim": {}}, "no proper claim"),
}


@pytest.mark.parametrize("which", BAD)
def test_a_bad_moment_digest_is_refused_with_a_sentence(which: str) -> None:
    changes, words = BAD[which]
    absence = FedDig(mode="moments")
    assert words in refusal(absence, edited(sealed(absence), **changes))  # type: ignore[arg-type]


def test_damage_strangers_and_mixed_digests_are_refused() -> None:
    absence = FedDig(mode="moments")
    made = sealed(absence)
    assert "SHA-256" in refusal(absence, {**made, "sums": made["sums"].flip(0)})
    assert "SHA-256" in refusal(absence, {**made, "more": torch.zeros(1)})
    assert "no manifest" in refusal(absence, {"manifest": torch.zeros(3)})
    assert "no manifest" in refusal(absence, sealed(FedDig()))
    assert "schema" in refusal(FedDig(), made)
    assert "there is none (policy" in refusal(absence, {"none": torch.tensor(list(b"policy"), dtype=torch.uint8)})


def test_a_digest_that_claims_more_records_than_the_client_trains_on_is_refused() -> None:
    absence = FedDig(mode="moments")
    made = sealed(absence)
    receive_one(absence, method(absence), reply(400), made)
    assert "where the client trains on 40" in refusal(absence, made, 40)


def test_values_that_are_not_finite_are_refused() -> None:
    digest = open_moments(sealed(FedDig(mode="moments")), EXPECTED)
    for name in ("counts", "sums", "second"):
        array = getattr(digest, name).copy()
        array.flat[0] = 1e6 if name != "counts" else -1e6
        from dataclasses import replace

        with pytest.raises(HoldfastError, match="noise does not explain"):
            check_moments(replace(digest, **{name: array}), "digest")


@given(some.lists(some.integers(-(2**23), 2**23 - 1), min_size=1, max_size=20))
def test_three_bytes_hold_24_bits(values: list[int]) -> None:
    there = torch.from_numpy(three_bytes(np.array(values, dtype=np.int32)))
    assert from_three_bytes(there, (len(values),), "digest").tolist() == values


def test_sealing_rounds_far_below_the_noise() -> None:
    absence = FedDig(mode="moments")
    first = open_moments(sealed(absence), EXPECTED)
    second = open_moments(seal_moments(first, "corners", "finger"), EXPECTED)
    assert np.abs(first.sums - second.sums).max() < 1e-3 * first.sigma
    assert np.abs(first.counts - second.counts).max() < 1e-3 * first.sigma


@pytest.mark.parametrize("mode", STRICT)
def test_a_run_of_each_mode_learns(mode: str) -> None:
    epsilon = 3.0 if mode == "moments" else 40.0  # mixing a few records leaves much more to hide
    history = run(experiment(absence={"name": "feddig", "mode": mode, "epsilon": epsilon}))
    assert history.final_accuracy > 0.9
    assert any(record.stand_ins for record in history.records)
    assert not [note for record in history.records for note in record.notes]


def test_the_model_gives_its_share_of_the_labels() -> None:
    made = {0: sealed(FedDig(mode="moments"))}
    found = {}
    for teach in (0.0, 0.25, None):
        absence = FedDig(mode="moments", teach=teach)
        bench = method(absence)
        model = weights_of(bench.bench.model)
        flat = {name: torch.zeros_like(weight) for name, weight in model.items()}  # gives 1/4 to each of four classes
        state = State(2, flat, {}, {}, {}, {}, digests=made)
        [found[teach]] = absence.standing(bench, state, [0])
    hard = found[0.0].labels
    assert set(hard.unique().tolist()) == {0.0, 1.0}
    assert torch.allclose(found[0.25].labels, 0.75 * hard + 0.25 / 4)
    assert torch.allclose(found[None].labels, 0.2 * hard + 0.8 / 4)  # the usual share for moments
    with pytest.raises(ValueError, match="teach must be in"):
        FedDig(teach=1.0)
