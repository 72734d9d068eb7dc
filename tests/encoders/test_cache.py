"""Features on disk: nothing is encoded twice, bits do not depend on company, and damage costs only time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from holdfast.encoders.cache import read_one
from holdfast.encoders.contract import Encoder
from holdfast.encoders.pretrained import Pretrained


class Counting(nn.Module):
    """Sums of rows; it remembers how many batches it saw, and of which size."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, rows: Tensor) -> Tensor:
        self.seen.append(len(rows))
        return torch.stack([rows.sum(1), rows[:, 0]], dim=1)


@pytest.fixture
def network() -> Counting:
    return Counting()


@pytest.fixture
def encoder(network: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Encoder:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    return Encoder("counting", (3,), (2,), "f" * 64, network, norm_bound=1.0, batch=4, costly=True)


ROWS = torch.arange(30.0).view(10, 3)
EXPECTED = torch.stack([ROWS.sum(1), ROWS[:, 0]], dim=1)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("*.safetensors"))


def test_nothing_is_encoded_twice(encoder: Encoder, network: Counting, tmp_path: Path) -> None:
    assert torch.equal(encoder.encode(ROWS[:6]), EXPECTED[:6])
    assert network.seen == [4, 4]  # the second batch was filled up
    assert torch.equal(encoder.encode(ROWS[[5, 0, 5]]), EXPECTED[[5, 0, 5]])
    assert network.seen == [4, 4]
    assert torch.equal(encoder.encode(ROWS), EXPECTED)
    assert network.seen == [4, 4, 4]  # the four new ones
    assert len(files(tmp_path)) == 2
    assert files(tmp_path)[0].parent.stat().st_mode & 0o077 == 0  # the user's alone


def test_equal_rows_in_one_call_are_encoded_once(encoder: Encoder, network: Counting) -> None:
    assert torch.equal(encoder.encode(ROWS[[2] * 9]), EXPECTED[[2] * 9])
    assert network.seen == [4]


def test_encoding_ahead_in_threads_fills_the_disk(encoder: Encoder, network: Counting, tmp_path: Path) -> None:
    encoder.encode_ahead(ROWS, torch.tensor([1, 3, 5, 7, 9]), threads=2)
    assert sorted(network.seen) == [4, 4]
    assert torch.equal(encoder.encode(ROWS[1::2]), EXPECTED[1::2])
    assert sorted(network.seen) == [4, 4]


def test_switched_off_everything_is_computed(
    encoder: Encoder, network: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", "off")
    for _ in range(2):
        assert torch.equal(encoder.encode(ROWS), EXPECTED)
    encoder.encode_ahead(ROWS, torch.arange(10), threads=2)
    assert network.seen == [4] * 6
    assert not files(tmp_path)


def test_a_damaged_file_is_encoded_again(
    encoder: Encoder, network: Counting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder.encode(ROWS)
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    read_one.cache_clear()
    assert torch.equal(encoder.encode(ROWS), EXPECTED)
    assert "is damaged" in caplog.text
    read_one.cache_clear()
    before = len(network.seen)
    assert torch.equal(encoder.encode(ROWS), EXPECTED)
    assert len(network.seen) == before  # it was written anew


def test_a_folder_that_cannot_be_used_costs_only_time(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "file"))
    assert torch.equal(encoder.encode(ROWS), EXPECTED)
    assert "cannot be used as a cache" in caplog.text


def test_progress_is_said(encoder: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("holdfast.encoders.cache.EVERY", -1.0)
    encoder.encode(ROWS)
    assert "encoder 'counting': 4 of 10 samples encoded" in caplog.text


def test_bits_do_not_depend_on_company(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", "off")
    encoder = Pretrained().fit_shape((3, 32, 32))
    images = torch.randint(0, 256, (19, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    together = encoder.encode(images)
    assert torch.equal(encoder.encode(images[[17, 3]]), together[[17, 3]])
    assert torch.equal(encoder.encode(images.flip(0)).flip(0), together)
