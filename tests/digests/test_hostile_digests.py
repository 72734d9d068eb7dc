"""A digest that would unpack to far more than it is, is refused before anything is allocated."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from holdfast.core.errors import HoldfastError
from holdfast.core.types import Tensors
from holdfast.digests.compact import sha256_of
from holdfast.digests.digest import make_digest, open_digest, seal_digest

LITTLE_MEMORY = """
import resource, sys
import holdfast.digests.digest, holdfast.audit.target, holdfast.cli.digest_facts
from pathlib import Path
from holdfast.core.errors import HoldfastError
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), used + (1 << 29)))
try:
    holdfast.cli.digest_facts.show(Path(sys.argv[1]), True)
except HoldfastError as error:
    print("refused:", error)
"""


def sealed_with(tensors: Tensors, manifest: dict[str, Any]) -> Tensors:
    manifest = {**manifest, "sha256": sha256_of(tensors, manifest)}
    return {**tensors, "manifest": torch.frombuffer(bytearray(json.dumps(manifest).encode()), dtype=torch.uint8)}


def manifest_of(sealed: Tensors) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(sealed["manifest"].numpy().tobytes())
    return made


def bomb(rows: int, width: int) -> Tensors:
    """A well-formed digest of zeros: a thousand times smaller than what it unpacks to."""
    features, labels = torch.zeros(4, width), torch.zeros(4, dtype=torch.long)
    made = manifest_of(seal_digest(make_digest(features, labels, 2, spd=1, generator=torch.Generator())))
    made |= {"digests": rows, "samples": rows, "used": rows}
    made["compact"] = {"features": "int8", "scale": "tensor", "compress": True}
    tensors = {
        "features": packed(rows * width, 0),
        "label_class": packed(rows, 0),
        "label_weight": torch.frombuffer(bytearray(zlib.compress(b"\0\0\x80?" * rows, 9)), dtype=torch.uint8),
        "low": torch.zeros(1),
        "step": torch.zeros(1),
    }
    return sealed_with(tensors, made)


def packed(count: int, byte: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(zlib.compress(bytes([byte]) * count, 9)), dtype=torch.uint8)


def test_a_small_digest_that_unpacks_to_gigabytes_is_refused_in_little_memory(tmp_path: Path) -> None:
    save_file(bomb(160_000, 1024), tmp_path / "bomb.safetensors")
    assert (tmp_path / "bomb.safetensors").stat().st_size < 200_000
    command = [sys.executable, "-c", LITTLE_MEMORY, str(tmp_path / "bomb.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert "refused:" in done.stdout, done.stderr
    assert "which no honest digest's do" in done.stdout


def test_more_rows_than_the_samples_make_are_refused_before_they_are_unpacked() -> None:
    with pytest.raises(HoldfastError, match="it has 500 rows where the samples make 100 at most"):
        open_digest(bomb(500, 8), rows=100)
    assert len(open_digest(bomb(500, 8), rows=500)) == 500


@pytest.mark.parametrize(
    "change",
    [
        {"feature_shape": [1] * 5000},
        {"feature_shape": [2**60, 2**60]},
        {"feature_shape": 5},
        {"spd": 10**400, "samples": 10**400},
        {"digests": 2**47},
        {"classes": 2**47},
        {"noise": 5},
        {"compact": [1]},
    ],
    ids=str,
)
def test_a_manifest_cannot_ask_for_the_absurd(change: dict[str, Any]) -> None:
    honest = bomb(4, 8)
    tensors = {name: tensor for name, tensor in honest.items() if name != "manifest"}
    with pytest.raises(HoldfastError):
        open_digest(sealed_with(tensors, {**manifest_of(honest), **change}))
