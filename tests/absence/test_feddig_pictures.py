"""The pictures: their numbers by hand, and that each figure is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from feddig_helpers import experiment

from holdfast.core.errors import HoldfastError
from holdfast.digests.mixing import Laplace
from holdfast.play import run
from holdfast.report.pictures import Studio, groups, guide_group, noise_variances, save_pictures, studio_of
from holdfast.runs.history import History


@pytest.fixture(scope="module")
def history() -> History:
    return run(experiment(model="full:width=4,hidden=8", rounds=2, partition="iid", clients=1))


@pytest.fixture
def studio(history: History) -> Studio:
    return studio_of(history)


def test_all_the_weight_on_one_sample_is_no_mixing_at_all(studio: Studio) -> None:
    pair = groups(studio, 2, 1)[0]
    for weights, alone in (((1.0, 0.0), pair[:1]), ((0.0, 1.0), pair[1:])):
        assert torch.equal(guide_group(studio, pair, weights), guide_group(studio, alone, (1.0,)))
    middle = guide_group(studio, pair, (0.5, 0.5))
    assert middle.shape == (1, 12, 12)
    assert float(middle.min()) >= 0.0
    assert float(middle.max()) <= 1.0
    assert not torch.equal(middle, guide_group(studio, pair, (1.0, 0.0)))


def test_noise_of_an_endless_epsilon_is_none(studio: Studio) -> None:
    pair = groups(studio, 2, 1)[0]
    nearly = guide_group(studio, pair, (0.5, 0.5), Laplace(1e9))
    torch.testing.assert_close(nearly, guide_group(studio, pair, (0.5, 0.5)), atol=1e-4, rtol=0)
    noisy = guide_group(studio, pair, (0.5, 0.5), Laplace(1e-5))
    assert float((noisy - guide_group(studio, pair, (0.5, 0.5))).abs().max()) > 1e-3


def test_groups_within_a_class_hold_one_class(studio: Studio) -> None:
    within = groups(studio, 4, 4, "within")
    assert all(len(studio.samples.labels[group].unique()) == 1 for group in within)
    across = groups(studio, 4, 4)
    assert len(across.flatten().unique()) == 16, "each sample once"


def test_mixing_adds_the_variance_of_the_others(studio: Studio) -> None:
    """With v the variance of an element, mean of s samples minus one of them has variance v (1 - 1/s)."""
    features = studio.features.flatten(1).double().numpy()
    for spd in (2, 4):
        mixing, laplace = noise_variances(studio, spd)
        expected = features[: len(features) // spd * spd].var(0, ddof=1) * (1 - 1 / spd)
        assert np.allclose(mixing.mean(), expected.mean(), rtol=0.25)
        assert laplace == pytest.approx(2 * (features.max() / (20_000 * 0.005)) ** 2)
    assert noise_variances(studio, 1)[0].max() == 0.0


def test_every_figure_is_drawn(history: History, tmp_path: Path) -> None:
    saved = save_pictures(history, tmp_path / "new")
    assert [path.name for path in saved] == [
        "guidance-spd.png",
        "guidance-weights.png",
        "guidance-protection.png",
        "noise-variance.png",
    ]
    assert all(path.stat().st_size > 5000 for path in saved)


def test_a_run_without_guidance_has_no_pictures() -> None:
    with pytest.raises(HoldfastError, match="no guidance producer"):
        studio_of(run(experiment(rounds=1)))
