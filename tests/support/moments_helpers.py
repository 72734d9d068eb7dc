"""What the tests of moment digests share: records around a few centres, and a seeded digest of them."""

from __future__ import annotations

import numpy as np

from holdfast.digests import moments as summary
from holdfast.privacy import noise


def make(z: np.ndarray, y: np.ndarray, classes: int, **changes: object) -> summary.MomentDigest:
    options: dict[str, object] = {"epsilon": 3.0, "delta": 1e-5, "source": noise.seeded(0)}
    return summary.make(z, y, classes, **{**options, **changes})  # type: ignore[arg-type]


def blobs(n: int, classes: int, k: int, seed: int, spread: float = 0.6) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(classes, k))
    y = random.integers(0, classes, n)
    z = centres[y] + spread * random.normal(size=(n, k))
    return z / np.linalg.norm(z, axis=1, keepdims=True), y
