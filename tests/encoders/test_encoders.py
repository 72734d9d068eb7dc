"""Encoders keep their contract: shapes, bounds, the same bits, and fingerprints that tell them apart."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from holdfast.core.errors import HoldfastError
from holdfast.encoders import (
    ENCODERS,
    Encoder,
    encoder_for,
    guidance_producer,
    make_encoder,
    never_negative,
    scattering,
)
from holdfast.encoders.mobilenet import MobileNetFeatures
from holdfast.encoders.scattering import gabor_kernels, gabor_moduli, principal_axes
from holdfast.encoders.shapes import BLOCK, draw_shapes

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
MOBILE = "mobilenetv2:random"


@pytest.mark.parametrize(("name", "never"), [("autoencoder", 1), ("random", 1), (MOBILE, 1), ("scattering", 0)])
def test_it_is_known_of_which_encoders_features_are_never_negative(name: str, never: int) -> None:
    assert never_negative(name) == never
    features = make_encoder(name, COLOUR).encode(draw_shapes(60, COLOUR, seed=5))
    assert (float(features.min()) >= 0.0) == never


def test_drawn_shapes_are_pictures_and_repeat() -> None:
    pictures = draw_shapes(BLOCK + 20, GREY, seed=3)
    assert pictures.dtype == torch.uint8
    assert tuple(pictures.shape) == (BLOCK + 20, *GREY)
    assert torch.equal(pictures, draw_shapes(BLOCK + 20, GREY, seed=3))
    assert torch.equal(pictures[: BLOCK + 3], draw_shapes(BLOCK + 3, GREY, seed=3))
    assert not torch.equal(pictures[:20], pictures[BLOCK:])  # blocks differ
    assert not torch.equal(pictures, draw_shapes(BLOCK + 20, GREY, seed=4))
    flat = pictures.float().flatten(1)
    assert len(flat.unique(dim=0)) > 0.97 * len(flat)
    assert 30 < float(flat.mean()) < 130
    assert float((flat.std(1) > 5).float().mean()) > 0.9  # nearly all have something drawn in them
    assert draw_shapes(0, COLOUR).shape == (0, *COLOUR)


def test_drawn_shapes_are_in_colour_and_of_any_size() -> None:
    pictures = draw_shapes(50, (3, 20, 45)).float()
    assert float((pictures[:, 0] - pictures[:, 1]).abs().mean()) > 5
    with pytest.raises(HoldfastError, match=r"\(channels, height, width\)"):
        draw_shapes(3, (28, 28))
    with pytest.raises(HoldfastError, match="cannot draw -1"):
        draw_shapes(-1, GREY)


def test_drawing_touches_no_global_generator() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    draw_shapes(3, GREY)
    for spec in ("scattering", "autoencoder", "random", MOBILE):
        make_encoder(spec, COLOUR)
    guidance_producer((64,), GREY, torch.Generator())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("spec", "shape", "features"),
    [
        ("scattering", GREY, (128,)),
        ("scattering:directions=16", COLOUR, (16,)),
        ("autoencoder", GREY, (4, 8, 8)),
        ("autoencoder", COLOUR, (4, 8, 8)),
        ("autoencoder", (1, 40, 64), (4, 8, 8)),
        ("random", (5, 28, 28), (4, 8, 8)),
        (MOBILE, COLOUR, (1280, 1, 1)),
        (MOBILE, (3, 64, 40), (1280, 2, 2)),
    ],
)
def test_contract(spec: str, shape: tuple[int, ...], features: tuple[int, ...]) -> None:
    encoder = make_encoder(spec, shape)
    images = draw_shapes(7, shape, seed=2)
    encoded = encoder.encode(images)
    assert encoder.feature_shape == features
    assert (encoder.sample_shape, tuple(encoded.shape), encoded.dtype) == (shape, (7, *features), torch.float32)
    assert not encoded.requires_grad
    assert encoded.std(0).sum() > 0  # images are told apart
    assert torch.equal(encoded, make_encoder(spec, shape).encode(images))
    assert torch.equal(encoded, encoder.encode(images.float() / 255))
    assert tuple(encoder.encode(images[:0]).shape) == (0, *features)
    assert len(encoder.fingerprint) == 64
    assert torch.equal(copy.deepcopy(encoder).encode(images), encoded)  # as a worker process gets it


def test_batches_do_not_change_the_features() -> None:
    images = draw_shapes(530, GREY, seed=2)
    for spec in ("scattering", "autoencoder"):
        encoder = make_encoder(spec, GREY)
        together = encoder.encode(images)
        torch.testing.assert_close(together[500:503], encoder.encode(images[500:503]), atol=1e-5, rtol=1e-4)
        assert torch.equal(together, encoder.encode(images))


def test_fingerprints_tell_encoders_apart_and_agree_with_themselves() -> None:
    specs = ["scattering", "scattering:32", "scattering:power=0.5", "autoencoder", "random", "random:1"]
    prints = {make_encoder(spec, shape).fingerprint for spec in specs for shape in (GREY, COLOUR)}
    assert len(prints) == 12
    assert make_encoder("scattering", GREY).fingerprint == make_encoder("scattering:128", GREY).fingerprint


def test_the_shipped_encoders_are_the_ones_that_were_measured() -> None:
    """Another fingerprint means that digests made before no longer fit: raise VERSION and say so in the change log."""
    found = {spec: [make_encoder(spec, shape).fingerprint[:12] for shape in (GREY, COLOUR)] for spec in FINGERPRINTS}
    assert found == FINGERPRINTS


FINGERPRINTS = {
    "scattering:64": ["06755ff30a03", "769c55ad4000"],
    "scattering": ["122349cc26a0", "ab501a6b1cd2"],
    "autoencoder": ["c503006fc286", "55660fb4ae74"],
    "random": ["853008ad394e", "663e8238e990"],
}


@given(
    st.sampled_from([(1, 28, 28), (3, 32, 32)]),
    st.integers(0, 10**6),
    st.sampled_from(["noise", "flat", "stripes", "spots"]),
)
@settings(max_examples=25)
def test_scattering_never_exceeds_length_one(shape: tuple[int, ...], seed: int, kind: str) -> None:
    source = torch.Generator().manual_seed(seed)
    images = {
        "noise": torch.rand(4, *shape, generator=source),
        "flat": torch.rand(4, 1, 1, 1, generator=source).expand(4, *shape),
        "stripes": (torch.arange(shape[2]) % (2 + seed % 5) == 0).float().expand(4, *shape),
        "spots": (torch.rand(4, *shape, generator=source) > 0.999).float(),
    }[kind]
    encoder = make_encoder("scattering", shape)
    lengths = encoder.encode(images).double().norm(dim=1)
    assert encoder.norm_bound == 1.0
    assert (lengths <= 1.0).all()
    assert (lengths > 0.999).all()


def test_scattering_of_other_shapes_is_computed_once_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scattering, "PICTURES", 200)  # for this shape alone, which no other test has
    encoder = make_encoder("scattering:8", (2, 12, 17))
    computed = principal_axes.cache_info().misses
    again = make_encoder("scattering:8", (2, 12, 17))
    assert principal_axes.cache_info().misses == computed > 0
    images = draw_shapes(5, (2, 12, 17), seed=1)
    assert torch.equal(encoder.encode(images), again.encode(images))
    assert encoder.fingerprint == again.fingerprint
    assert (encoder.encode(images).double().norm(dim=1) <= 1).all()


def test_scattering_of_large_images_is_that_of_their_averages() -> None:
    small = draw_shapes(4, (1, 64, 64), seed=8).float() / 255
    large = small.repeat_interleave(2, 2).repeat_interleave(2, 3)
    kernels = gabor_kernels()
    torch.testing.assert_close(gabor_moduli(small, kernels), gabor_moduli(large, kernels))


def test_gabor_filters_by_hand() -> None:
    """A flat image gives nothing; stripes that change along x answer most to the filter whose wave runs along x."""
    kernels = gabor_kernels()
    assert float(kernels.sum((1, 2, 3)).abs().max()) < 1e-6
    stripes = torch.cos(torch.arange(28) * 3 * math.pi / 4).expand(1, 1, 28, 28) / 2 + 0.5
    moduli = gabor_moduli(stripes, kernels).view(25, 7, 7)[1:9, 3, 3]  # after the plain means: scale 0, 8 orientations
    assert int(moduli.argmax()) == 0
    upright = gabor_moduli(stripes.transpose(2, 3), kernels).view(25, 7, 7)[1:9, 3, 3]
    assert int(upright.argmax()) == 4  # a quarter turn
    # Cell (3, 3) is the mean over pixels 12 and 14 in both directions, every second one: the sum written out.
    image = torch.rand(28, 28, generator=torch.Generator().manual_seed(0))
    roots = []
    for row in (12, 14):
        for column in (12, 14):
            patch = image[row - 4 : row + 5, column - 4 : column + 5]
            even, odd = (float((kernels[number, 0] * patch).sum()) for number in (10, 11))  # orientation 5
            roots.append((even**2 + odd**2 + 1e-6) ** 0.25)
    found = gabor_moduli(image.view(1, 1, 28, 28), kernels).view(25, 7, 7)
    assert float(found[1 + 5, 3, 3]) == pytest.approx(sum(roots) / 4, rel=1e-4)
    assert float(found[0, 3, 3]) == pytest.approx(float(image[12:16, 12:16].mean()) / 2, rel=1e-5)


def test_scattering_sees_shape_and_not_brightness() -> None:
    """Half as bright is nearly the same direction; another picture is not."""
    images = draw_shapes(40, GREY, seed=6).float() / 255
    encoder = make_encoder("scattering", GREY)
    bright, dim = encoder.encode(images), encoder.encode(images / 2)
    assert float((bright * dim).sum(1).median()) > 0.9
    assert float((bright * bright.roll(1, 0)).sum(1).median()) < 0.7


def test_autoencoder_redraws_shapes_it_has_not_seen() -> None:
    """The decoder is the adversary's pseudo-inverse; it must beat a picture's own mean by far."""
    for shape, most in ((GREY, 0.15), (COLOUR, 0.25)):
        images = draw_shapes(200, shape, seed=77)
        choice = ENCODERS["autoencoder"]()
        features = choice.fit_shape(shape).encode(images)
        assert float(features.min()) == 0.0  # after a ReLU
        truth = images.float() / 255
        drawn = choice.decoder(shape)(features)
        assert tuple(drawn.shape) == tuple(truth.shape)
        error = (drawn - truth).square().mean()
        spread = (truth - truth.mean((2, 3), keepdim=True)).square().mean()
        assert float(error / spread) < most
    with pytest.raises(HoldfastError, match="its decoder draws"):
        ENCODERS["autoencoder"]().decoder((1, 64, 64))


@pytest.mark.parametrize(
    ("features", "image"),
    [
        ((4, 8, 8), GREY),
        ((4, 8, 8), COLOUR),
        ((64,), GREY),
        ((64,), COLOUR),
        ((1280, 1, 1), COLOUR),
        ((9,), (1, 3, 50)),
    ],
)
def test_guidance_has_the_images_shape_and_learns(features: tuple[int, ...], image: tuple[int, ...]) -> None:
    source = torch.Generator().manual_seed(0)
    producer = guidance_producer(features, image, source)
    same = guidance_producer(features, image, torch.Generator().manual_seed(0))
    inputs = torch.randn(3, *features, generator=source)
    drawn = producer(inputs)
    shown = drawn.detach()
    assert torch.equal(drawn, same(inputs))
    if len(features) == 3:
        torch.testing.assert_close(drawn, producer(inputs.to(memory_format=torch.channels_last)))
    assert tuple(drawn.shape) == (3, *image)
    assert 0.0 <= float(shown.min()) < float(shown.max()) <= 1.0
    assert sum(isinstance(layer, nn.ConvTranspose2d) for layer in producer.modules()) == 3
    drawn.sum().backward()
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in producer.parameters())


def test_guidance_for_other_inputs_is_refused() -> None:
    for features, image in (((4, 8), GREY), ((64,), (28, 28)), ((0,), GREY)):
        with pytest.raises(HoldfastError, match="train on the features alone"):
            guidance_producer(features, image, torch.Generator())


def test_mobilenet_has_the_published_size_and_takes_a_weights_file(tmp_path: Path) -> None:
    network = MobileNetFeatures()
    # The published network has 3,504,872 parameters, of which the classifier takes 1280 * 1000 + 1000.
    assert sum(weight.numel() for weight in network.parameters()) == 3_504_872 - 1_281_000
    names = network.state_dict()
    for name in ("features.0.0.weight", "features.1.conv.1.weight", "features.2.conv.1.0.weight", "features.18.1.bias"):
        assert name in names
    path = tmp_path / "mobile.safetensors"
    save_file({**{k: v.contiguous() for k, v in names.items()}, "classifier.1.weight": torch.zeros(2, 2)}, path)
    encoder = make_encoder({"name": "mobilenetv2", "weights": str(path)}, COLOUR)
    images = draw_shapes(3, COLOUR)
    with torch.no_grad():
        assert torch.equal(encoder.encode(images), network.eval()(images.float() / 255))
    assert encoder.fingerprint != make_encoder(MOBILE, COLOUR).fingerprint
    broken = {k: v for k, v in names.items() if k != "features.3.conv.0.0.weight"}
    for content, sentence in (
        (broken, "has no 'features.3.conv.0.0.weight'"),
        ({**names, "features.0.0.weight": torch.zeros(1)}, "expected \\(32, 3, 3, 3\\)"),
        ({**names, "features.0.0.weight": torch.full((32, 3, 3, 3), float("nan"))}, "not finite"),
    ):
        save_file(content, path)
        with pytest.raises(HoldfastError, match=sentence):
            make_encoder({"name": "mobilenetv2", "weights": str(path)}, COLOUR)
    path.write_bytes(b"not safetensors")
    with pytest.raises(HoldfastError, match="cannot be read as safetensors"):
        make_encoder({"name": "mobilenetv2", "weights": str(path)}, COLOUR)


@pytest.mark.parametrize(
    ("spec", "shape", "sentence"),
    [
        ("mobilenetv2", COLOUR, "no weights come with the package"),
        ("mobilenetv2:nowhere.safetensors", COLOUR, "is not a file"),
        (MOBILE, (1, 32, 32), "must have 3 channels"),
        ("autoencoder", (2, 28, 28), "must have 1 or 3 channels"),
        ("scattering", (64,), "encodes images of shape"),
        ("scattering", (1, 4, 28), "at least 8 x 8"),
        ("scattering:0", GREY, "at least 1"),
        ("scattering:9999", GREY, "1225 directions at most"),
        ("scattering:power=2", GREY, r"must lie in \[0, 1\]"),
        ("scatering", GREY, "did you mean 'scattering'"),
        ("torch:pi", GREY, "has no fit_shape"),
    ],
)
def test_what_cannot_work_is_refused(spec: str, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence):
        make_encoder(spec, shape)


def test_plain_vectors_are_told_what_to_do() -> None:
    with pytest.raises(HoldfastError, match=r"plain vectors of 8 numbers; describe them as a table"):
        encoder_for("auto", torch.zeros(3, 8))


def test_wrong_images_are_refused() -> None:
    encoder = make_encoder("scattering", GREY)
    for images, sentence in (
        (torch.zeros(2, *COLOUR), "made for samples of shape"),
        (torch.zeros(2, *GREY, dtype=torch.int64), "uint8 or float"),
        (torch.full((2, *GREY), 255.0), r"must lie in \[0, 1\]"),
        (torch.full((2, *GREY), float("nan")), r"must lie in \[0, 1\]"),
    ):
        with pytest.raises(HoldfastError, match=sentence):
            encoder.encode(images)


@dataclass(frozen=True)
class Brightness:
    """An encoder of a user's own: one value, the mean."""

    times: float = 1.0

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        return Encoder("brightness", shape, (1,), "0" * 64, _Mean(self.times))


class _Mean(nn.Module):
    def __init__(self, times: float) -> None:
        super().__init__()
        self.times = times

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1).mean(1, keepdim=True) * self.times


def test_an_encoder_of_ones_own_by_import_path() -> None:
    encoder = make_encoder({"name": f"{__name__}:Brightness", "times": 2.0}, GREY)
    assert encoder.encode(torch.full((3, *GREY), 0.25)).tolist() == [[0.5]] * 3
