"""What a client releases in each mode, and what the moderator takes for a release."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from release_helpers import ABOUT, client, experiment, method, records

from holdfast.absence import FedDig
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import SENTENCES
from holdfast.core.types import State, Tensors, size
from holdfast.data.task import Samples
from holdfast.digests.moment_wire import check_moments, open_moments, seal_moments, squeeze, unsqueeze
from holdfast.digests.moments import make
from holdfast.digests.received import open_for, receive_one, samples_of
from holdfast.digests.release import claim_of, make_release
from holdfast.models.networks import weights_of
from holdfast.play import run
from holdfast.privacy.noise import SEEDED, SYSTEM, seeded, system
from holdfast.runs.build import make_plan

STRICT = ("dp-label-public", "dp-full", "moments")
EXPECTED = {"task": "corners", "encoder": "finger", "classes": 4, "features": 9, "epsilon": 3.0, "delta": 1e-5}


def sealed(absence: FedDig, samples: Samples | None = None) -> Tensors:
    own = samples or records()
    return make_release(absence, ABOUT, own.inputs[-1], own.labels, torch.Generator(), system())[0]


def refusal(absence: FedDig, tensors: Tensors, samples: int = 400) -> str:
    with pytest.raises(HoldfastError) as caught:
        receive_one(absence, method(absence), 0, samples, tensors)
    return str(caught.value)


def edited(tensors: Tensors, resign: bool = True, **changes: object) -> Tensors:
    """The release with other words in its manifest, its SHA-256 made to fit."""
    from holdfast.digests.compact import sha256_of

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
    assert claim_of(FedDig(epsilon=0.005), (4, 8, 8), 10, signed=False).epsilon_features == 6400.0
    bare = claim_of(FedDig(), (64,), 10)
    assert bare.epsilon_total == math.inf
    assert bare.guarantee == "no guarantee: there is no noise, so epsilon is infinite"


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
@pytest.mark.parametrize("count", [40, 40_000])
def test_a_moment_digest_of_ten_classes_and_128_features_is_at_most_eleven_kilobytes(
    count: int, epsilon: float
) -> None:
    from holdfast.context import About

    about = About("fashion-mini", 10, "a" * 64, (128,))
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 10
    spread = torch.linspace(2.0, 0.1, 128) * torch.randn(count, 128, generator=generator)  # with strong directions
    features = torch.nn.functional.normalize(spread + torch.randn(10, 128, generator=generator)[labels], dim=1)
    absence = FedDig(mode="moments", epsilon=epsilon)
    made, _ = make_release(absence, about, features, labels, torch.Generator(), system())
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
    made = absence.make_digest(client(absence, own, tmp_path / "clients" / "0000"), own, 0)
    assert made.keys() == {"none"}
    assert bytes(made["none"].numpy()).decode() == "internal"  # which record it is concerns nobody else
    assert "record 7, feature 2 is nan" in (tmp_path / "failures.log").read_text()
    assert not list(tmp_path.rglob("privacy-ledger.json"))  # nothing left, so nothing is entered


@pytest.mark.parametrize("mode", STRICT)
def test_empty_classes_and_a_class_with_one_record_are_released_like_any_other(mode: str) -> None:
    features = records(61).inputs[0]
    labels = torch.zeros(61, dtype=torch.long)
    labels[0] = 3
    absence = FedDig(mode=mode, epsilon=5.0)  # type: ignore[arg-type]
    made = sealed(absence, Samples((features,), labels))
    receive_one(absence, method(absence), 0, 61, made)
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
    own = records(4).take(torch.arange(1))
    made = absence.make_digest(client(absence, own), own, 0)
    assert SENTENCES["few"] in refusal(absence, made, 1)


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


FAIR = {"counts": 0.25, "means": 2.0**-8, "radii": 2.0**-10, "owner": 1.0, "strong": 2.0**-7, "shared": 1.0}
BAD = {
    "of another task": ({"task": "other"}, "made for task 'other'"),
    "of another encoder": ({"encoder": "x"}, "made for encoder 'x'"),
    "of another epsilon": ({"epsilon_nominal": 1.0}, "made for epsilon 1.0, but this run has 3.0"),
    "of more classes": ({"classes": 5}, "made for classes 5"),
    "of no features": ({"features": 0}, "made for features 0"),
    "with endless steps": ({"steps": {**FAIR, "counts": 1e999}}, "no proper steps"),
    "with negative steps": ({"steps": {**FAIR, "counts": -1.0}}, "no proper steps"),
    "without steps": ({"steps": 3}, "no proper steps"),
    "with absurd counts": ({"steps": {**FAIR, "counts": 1e9}}, "noise does not explain"),
    "with absurd means": ({"steps": {**FAIR, "means": 1e6}}, "means longer than any record"),
    "with absurd radii": ({"steps": {**FAIR, "radii": 1.0}}, "radii beyond"),
    "with an absurd second moment": ({"steps": {**FAIR, "shared": 1e6}}, "shared second moment larger"),
    "with classes that it does not hold": ({"trusted": [0, 1, 2, 9]}, "which classes it trusts"),
    "with fewer classes than it holds": ({"steps": {**FAIR, "counts": 1e-3}}, "not those with enough records"),
    "with too many directions": ({"directions": 10_000}, "number of directions"),
    "of an earlier form": ({"schema": "holdfast-moments/1"}, "of an earlier form, which is no longer read"),
    "without a claim": ({"claim": {}}, "no proper claim"),
}


@pytest.mark.parametrize("which", BAD)
def test_a_bad_moment_digest_is_refused_with_a_sentence(which: str) -> None:
    changes, words = BAD[which]
    absence = FedDig(mode="moments")
    assert words in refusal(absence, edited(sealed(absence), **changes))  # type: ignore[arg-type]


def test_absurd_directions_are_refused() -> None:
    absence = FedDig(mode="moments", epsilon=12.0)  # with more noise so few records have none
    steps = {**FAIR, "means": 2.0**-14, "strong": 1e6}
    assert "strong directions larger" in refusal(absence, edited(sealed(absence), steps=steps))


def test_damage_strangers_and_mixed_digests_are_refused() -> None:
    absence = FedDig(mode="moments")
    made = sealed(absence)
    assert "SHA-256" in refusal(absence, {**made, "means": made["means"].flip(0)})
    assert "SHA-256" in refusal(absence, {**made, "more": torch.zeros(1)})
    assert "no manifest" in refusal(absence, {"manifest": torch.zeros(3)})
    assert "no manifest" in refusal(absence, sealed(FedDig()))
    assert "schema" in refusal(FedDig(), made)
    assert SENTENCES["policy"] in refusal(absence, {"none": torch.tensor(list(b"policy"), dtype=torch.uint8)})


def test_a_digest_that_claims_more_records_than_the_client_trains_on_is_refused() -> None:
    absence = FedDig(mode="moments")
    made = sealed(absence)
    receive_one(absence, method(absence), 0, 400, made)
    assert "where the client trains on 40" in refusal(absence, made, 40)


def test_values_that_no_records_have_are_refused() -> None:
    digest = open_moments(sealed(FedDig(mode="moments")), EXPECTED)
    for name in ("counts", "means", "shared"):
        array = getattr(digest, name).copy()
        array.flat[0] = 1e6 if name != "counts" else -1e6
        with pytest.raises(HoldfastError, match="noise does not explain"):
            check_moments(replace(digest, **{name: array}), "digest")


@pytest.mark.parametrize(("place", "value"), [((0, 0), -1e6), ((0, 1), 1e6), ((0, 1), -1e6)])
def test_a_second_moment_that_is_no_sum_of_squares_is_refused(place: tuple[int, int], value: float) -> None:
    digest = open_moments(sealed(FedDig(mode="moments")), EXPECTED)
    shared = digest.shared.copy()
    shared[place] = shared[place[::-1]] = value  # it would drown what all others send
    with pytest.raises(HoldfastError, match="no sum of squares"):
        check_moments(replace(digest, shared=shared), "digest")


@given(some.lists(some.integers(-(2**31) + 1, 2**31 - 1), max_size=20))
def test_squeezed_numbers_come_back(values: list[int]) -> None:
    there = squeeze(np.array(values, dtype=np.int64))
    assert unsqueeze(there, (len(values),), "digest").tolist() == values


def test_squeezed_numbers_that_do_not_fit_are_refused() -> None:
    there = squeeze(np.arange(10))
    for content, shape in ((there, (9,)), (there, (11,)), (there[:-4], (10,)), (there.float(), (10,))):
        with pytest.raises(HoldfastError, match="does not unpack to the shape"):
            unsqueeze(content, shape, "digest")
    with pytest.raises(HoldfastError, match="too large to be sent"):
        squeeze(np.array([2**31]))


def test_sealing_rounds_below_the_noise() -> None:
    own = records()
    first = make(own.inputs[0].numpy(), own.labels.numpy(), 4, epsilon=3.0, delta=1e-5, source=system())
    second = open_moments(seal_moments(first, "corners", "finger"), EXPECTED)
    assert np.abs(first.means - second.means).max() <= first.mean_noise[first.trusted].min() / 4
    assert np.abs(first.shared - second.shared).max() <= first.scales.of_shared / math.sqrt(2) / 4
    assert np.abs(first.strong - second.strong).max(initial=0.0) <= 2.0**-8
    assert (first.counts == second.counts).all()
    assert (first.owner == second.owner).all()


@pytest.mark.parametrize("mode", STRICT)
def test_a_run_of_each_mode_learns(mode: str) -> None:
    epsilon = 3.0 if mode == "moments" else 40.0  # mixing a few records leaves much more to hide
    history = run(experiment(absence={"name": "feddig", "mode": mode, "epsilon": epsilon}))
    assert history.final_accuracy > 0.9
    assert any(record.stand_ins for record in history.records)
    assert not [note for record in history.records for note in record.notes]


def test_the_model_gives_its_share_of_the_labels_of_drawn_samples() -> None:
    absence = FedDig(mode="moments")
    bench = method(absence)
    model = weights_of(bench.bench.model)
    flat = {name: torch.zeros_like(weight) for name, weight in model.items()}  # gives 1/4 to each of four classes
    state = State(2, flat, {}, {}, {}, {}, digests={0: sealed(absence)})
    [hard] = absence.stand_in_digests(bench, state, [0], teach=False)  # the warm start: the model knows nothing yet
    [soft] = absence.stand_in_digests(bench, state, [0])
    assert set(hard.labels.unique().tolist()) == {0.0, 1.0}
    assert torch.allclose(soft.labels, 0.6 * hard.labels + 0.4 / 4)
