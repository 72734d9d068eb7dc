"""The encoders for series and texts, against loops and counts by hand."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
import torch

from holdfast.core.config import Choice
from holdfast.core.errors import HoldfastError
from holdfast.data.sources.texts import as_bytes
from holdfast.encoders import encoder_for, make_encoder, resolved
from holdfast.encoders.series import PLACES, SeriesNetwork
from holdfast.encoders.text import hashed


def test_series_values_are_log_energies_and_summaries() -> None:
    """Every value of a random series again, step by step."""
    chance = np.random.default_rng(7)
    series = chance.normal(2.0, 3.0, (3, 50))
    encoder = make_encoder("series:kernels=20", (3, 50))
    network = encoder.network
    assert isinstance(network, SeriesNetwork)
    assert network.dilations == [1, 2, 4]  # 8 x 8 steps would reach beyond the series
    mean, deviation = series.mean(1), series.std(1)
    expected = [*np.arcsinh(mean), *np.arcsinh(deviation), *np.arcsinh(series.min(1)), *np.arcsinh(series.max(1))]
    even = (series - mean[:, None]) / deviation[:, None]
    for dilation in network.dilations:
        for kernel in getattr(network, f"kernels_{dilation}").double().numpy():
            responses = []
            for step in range(50):
                places = np.clip(step + dilation * (np.arange(9) - 4), 0, 49)  # the ends are held
                responses.append((kernel * even[:, places]).sum())
            expected.append(math.log2(math.sqrt(np.mean(np.square(responses))) + 1e-3) / 4)
    unit = np.array(expected) / np.linalg.norm(expected)
    found = encoder.encode(torch.from_numpy(series).float()[None])[0].double().numpy()
    assert len(found) == 4 * 3 + 20
    assert np.allclose(found, unit, atol=1e-4)


def test_kernels_have_sum_zero_and_the_published_weights() -> None:
    network = make_encoder("series:kernels=168", (4, 100)).network
    kernels = torch.cat([kernel for name, kernel in network.named_buffers()])
    assert len(PLACES) == 84
    assert kernels.shape == (168, 4, 9)
    assert torch.allclose(kernels.sum(2), torch.zeros(168, 4), atol=1e-5)
    used = kernels.abs().sum((1, 2)) / (12 / (kernels != 0).any(2).sum(1).sqrt())
    assert torch.allclose(used, (kernels != 0).any(2).sum(1).float(), rtol=1e-4)
    assert bool((kernels.square().sum((1, 2)) - 18).abs().lt(1e-3).all())  # six times 1 and three times 4


def test_series_features_are_bounded_for_any_series() -> None:
    encoder = make_encoder("series", (2, 30))
    odd = torch.zeros(4, 2, 30)
    odd[1] = 5.0
    odd[2] = 1e30 * torch.randn(2, 30)
    odd[3, 0, 7] = 1e-30
    found = encoder.encode(odd)
    assert bool(found.isfinite().all())
    assert bool((found.norm(dim=1) <= 1).all())


def test_series_fingerprints_and_seeds() -> None:
    first, again, other = (make_encoder(f"series:seed={seed}", (2, 30)) for seed in (0, 0, 1))
    series = torch.randn(5, 2, 30)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert torch.equal(first.encode(series), again.encode(series))
    assert not torch.equal(first.encode(series), other.encode(series))


def test_a_text_by_hand() -> None:
    """'no no': the word twice, one pair, and ' no', 'no ', ' no ' twice each."""
    values = 64
    expected = np.zeros(values)
    for terms in ({"no": 2}, {"no no": 1}, {" no": 2, "no ": 2, " no ": 2}):
        part = np.zeros(values)
        for term, count in terms.items():
            code = zlib.crc32(term.encode())
            part[(code >> 1) % values] += (1 + math.log(count)) * (1 if code & 1 else -1)
        expected += part / np.linalg.norm(part)
    expected /= np.linalg.norm(expected)
    assert np.allclose(hashed("No, NO!", values), expected, atol=1e-5)


def test_texts_that_share_words_are_near(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", "off")
    texts = ["the left lung is clear", "lungs clear on the left", "Herzrhythmus unregelmäßig", "\x00"]
    found = encoder_for("auto", as_bytes(texts)).encode(as_bytes(texts))
    assert found.shape == (4, 1024)
    products = found @ found.T
    assert products[0, 1] > 0.3 > products[0, 2].abs()
    assert bool((found.norm(dim=1) <= 1).all())
    assert float(found[3].norm()) == 0.0


def test_auto_knows_series_and_texts() -> None:
    assert str(resolved(Choice("auto"), torch.zeros(2, 9, 128))) == "series"
    assert str(resolved(Choice("auto"), as_bytes(["a"]))) == "text"


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        ("series", (1, 28, 28), "series of shape"),
        ("series", (1, 5), "at least 9 steps"),
        ("series:kernels=0", (1, 50), "must be 1 to"),
        ("text", (3, 50), "texts as bytes"),
        ("text:values=3", (50,), "must be 16 to"),
    ],
)
def test_what_does_not_fit_is_refused(spec: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        make_encoder(spec, shape)


def test_vectors_are_no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", "off")
    with pytest.raises(HoldfastError, match="not floats"):
        make_encoder("text", (6,)).encode(torch.zeros(2, 6))
