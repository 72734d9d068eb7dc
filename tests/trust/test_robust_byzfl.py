"""The rules against ByzFL, a second opinion where it is installed (`pip install --no-deps byzfl`).

Where it differs from the papers, and how it is compared nevertheless:
- Krum and Multi-Krum: it sums over n - f - 1 neighbours in place of n - f - 2, which is what f - 1 gives here.
- Multi-Krum always averages n - f rows.
- The geometric median takes a fixed number of steps from zero: it is given enough of them to converge.
- Buckets are filled in an order that it draws by numpy's generator: it is drawn here as well.
- NaN goes through its median and Krum unnoticed; here it is refused (test_robust.py).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from holdfast.trust.robust.aggregates import (
    adaptive_clipping,
    bucketing,
    centred_clipping,
    clip_norms,
    geometric_median,
    krum,
    median,
    multi_krum,
    nearest_neighbour_mixing,
    trimmed_mean,
)


@pytest.fixture(scope="module")
def byzfl() -> Iterator[types.SimpleNamespace]:
    """Its rules without its front door, which imports torchvision for benchmarks that are not needed here."""
    spec = importlib.util.find_spec("byzfl") if "byzfl" not in sys.modules else None
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("byzfl is not installed")
    package = types.ModuleType("byzfl")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["byzfl"] = package
    try:
        names = [importlib.import_module(f"byzfl.aggregators.{part}") for part in ("aggregators", "preaggregators")]
        yield types.SimpleNamespace(**{k: v for module in names for k, v in vars(module).items()})
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "byzfl"]:
            del sys.modules[name]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("f", [1, 2, 3])
def test_agrees(byzfl: types.SimpleNamespace, seed: int, f: int) -> None:
    x = torch.randn(10, 6, generator=torch.Generator().manual_seed(seed))
    x[:3] += 1.5
    plain = x.double().numpy()
    expected = {
        "median": (median(x).vector, byzfl.Median()(plain)),
        "trimmed": (trimmed_mean(x, f).vector, byzfl.TrMean(f)(plain)),
        "krum": (krum(x, f - 1).vector, byzfl.Krum(f)(plain)),
        "multi-krum": (multi_krum(x, f - 1, len(x) - f).vector, byzfl.MultiKrum(f)(plain)),
        "geometric": (geometric_median(x).vector, byzfl.GeometricMedian(1e-6, 2000)(plain)),
        "centred": (centred_clipping(x, 1.25, 4).vector, byzfl.CenteredClipping(None, 4, 1.25)(plain)),
        "nnm": (nearest_neighbour_mixing(x, f).updates, byzfl.NNM(f)(plain)),
        "arc": (adaptive_clipping(x, f).updates, byzfl.ARC(f)(plain.copy())),
        "clipped": (clip_norms(x, 2.0).updates, byzfl.Clipping(2.0)(plain.copy())),
    }
    for name, (ours, theirs) in expected.items():
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=2e-5, atol=2e-5, err_msg=name)
    np.random.seed(seed)
    order = torch.from_numpy(np.random.permutation(len(x)))
    np.random.seed(seed)
    np.testing.assert_allclose(bucketing(x, f, order).updates.numpy(), byzfl.Bucketing(f)(plain), rtol=2e-5, atol=2e-5)
