"""Augmentation: by hand, the same bits again, and off wherever it must be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.learning.augment import choose_augment, crop, flip
from holdfast.play import run
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import from_table

SMALL = {"samples": 100, "clients": 2, "partition": "iid", "rounds": 1, "workers": 0, "model": "linear"}


def chance() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def test_half_of_the_images_are_mirrored() -> None:
    images = torch.arange(6.0).view(1, 1, 2, 3).repeat(1000, 1, 1, 1)
    found = flip(images, chance())
    mirrored = (found == images.flip(3)).all(3).all(2).all(1)
    assert bool((mirrored | (found == images).all(3).all(2).all(1)).all())
    assert 400 < int(mirrored.sum()) < 600
    assert bool((torch.rand(1000, generator=chance()) < 0.5).eq(mirrored).all())


def test_crops_are_moved_images() -> None:
    images = torch.arange(2 * 3 * 5 * 4.0).view(2, 3, 5, 4)
    found = crop(2, images, chance())
    down, across = torch.randint(0, 5, (2, 2), generator=chance())
    for n in range(2):
        for y in range(5):
            for x in range(4):
                row = min(max(y + int(down[n]) - 2, 0), 4)
                column = min(max(x + int(across[n]) - 2, 0), 3)
                assert torch.equal(found[n, :, y, x], images[n, :, row, column])


def invert(images: Tensor, generator: torch.Generator) -> Tensor:
    return 1 - images


def shrink(images: Tensor, generator: torch.Generator) -> Tensor:
    return images[:, :, ::2]


def test_a_run_learns_from_changed_images_and_repeats() -> None:
    plain, flipped, again = (
        run(from_table({**SMALL, "augment": said})).state for said in ("none", "flip,crop:4", "flip,crop:4")
    )
    assert plain is not None
    assert flipped is not None
    assert again is not None
    for name, weight in flipped.model.items():
        assert torch.equal(weight, again.model[name])
    assert any(not torch.equal(weight, plain.model[name]) for name, weight in flipped.model.items())


def test_a_function_of_ones_own() -> None:
    augment = choose_augment("test_augment:invert")
    assert augment is not None
    assert torch.equal(augment(torch.ones(1, 1, 2, 2), chance()), torch.zeros(1, 1, 2, 2))
    wrong = choose_augment("test_augment:shrink")
    assert wrong is not None
    with pytest.raises(HoldfastError, match="of the shape it was given"):
        wrong(torch.ones(1, 1, 2, 2), chance())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"augment": "flop"}, "expected 'flip', 'crop:4'"),
        ({"augment": "crop:0"}, "expected 'flip', 'crop:4'"),
        ({"augment": "flip,invert"}, "expected 'flip', 'crop:4'"),
        ({"augment": "test_augment:nothing"}, "has no 'nothing'"),
        ({"augment": "flip", "absence": "feddig", "model": "features"}, "only a model that reads images"),
    ],
)
def test_what_makes_no_sense_is_refused(keys: dict[str, str], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        make_plan(from_table({**SMALL, **keys}))


def test_digests_are_of_images_as_they_are() -> None:
    """Of a model that reads images and features, the digest is the same with and without augmentation."""
    keys = {**SMALL, "absence": "feddig", "model": "full:width=4,hidden=8"}
    plain, flipped = (run(from_table({**keys, "augment": said})).state for said in ("none", "flip"))
    assert plain is not None
    assert flipped is not None
    for client, digest in plain.digests.items():
        assert all(torch.equal(tensor, flipped.digests[client][name]) for name, tensor in digest.items())
    assert any(not torch.equal(plain.model[name], flipped.model[name]) for name in plain.model)
