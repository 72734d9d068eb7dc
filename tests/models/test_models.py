"""MobileNetV2 as a trained model and as FedDig's F_R: the published sizes, steps that learn, a run with digests."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.data.task import Samples, Task
from holdfast.encoders import guidance_producer, make_encoder
from holdfast.learning.loop import train
from holdfast.learning.objective import TaskLoss
from holdfast.learning.settings import Learning
from holdfast.models.mobilenet import mobilenet_layers, round_channels
from holdfast.models.networks import MODELS, initialise
from holdfast.play import one_thread, run
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import from_table

COLOUR = (3, 32, 32)


def model(spec: str, shape: tuple[int, ...] = COLOUR, classes: int = 100, features: tuple[int, ...] = ()) -> nn.Module:
    chosen = choose(MODELS, Choice.parse(spec, "model"), "model")
    return initialise(lambda: chosen.build(shape, classes, features), 0)


def count(network: nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_mobilenetv2_has_the_published_number_of_weights(norm: str) -> None:
    """3,504,872 are published for 1,000 classes, of which the classifier has 1,281,000; ours has 1,281 a class."""
    assert count(model(f"mobilenetv2:norm={norm}")) == 3_504_872 - 1_281_000 + 100 * 1_281 == 2_351_972


def test_narrow_ones_round_to_multiples_of_eight_and_keep_the_last_layer() -> None:
    assert [round_channels(printed * 0.25) for printed in (32, 16, 24, 64, 96, 160, 320)] == [8, 8, 8, 16, 24, 40, 80]
    assert model("mobilenetv2:width=0.25")[-1].in_features == 1280
    assert model("mobilenetv2:width=1.5")[-1].in_features == 1920


@pytest.mark.parametrize(
    ("small", "shape", "side"), [(True, COLOUR, 4), (True, (1, 28, 28), 4), (False, (3, 64, 64), 2)]
)
def test_small_pictures_are_halved_three_times_and_large_ones_five(
    small: bool, shape: tuple[int, ...], side: int
) -> None:
    layers = mobilenet_layers(shape[0], nn.BatchNorm2d, width=0.1, small=small).eval()
    assert tuple(layers(torch.rand(1, *shape)).shape) == (1, 1280, side, side)
    first = model("mobilenetv2:width=0.1", shape)[0]
    assert first[0][0].stride == ((1, 1) if small else (2, 2))


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_a_few_steps_learn_a_batch(norm: str) -> None:
    network = model(f"mobilenetv2:norm={norm},width=0.1", (3, 16, 16), classes=4)
    few = colours().train.take(torch.arange(16))
    samples = Samples((few.inputs[0][:, :, ::2, ::2],), few.labels)
    learning = Learning(epochs=1, batch_size=16, lr=0.01, momentum=0.0)
    with one_thread():
        losses = [train(network, samples, learning, torch.Generator(), TaskLoss(cross_entropy))[1] for _ in range(9)]
    assert losses[-1] < 0.85 * losses[0]


def test_as_f_r_its_1280_values_meet_those_of_f_d() -> None:
    network = model("full:image=mobilenetv2,width=0.1,hidden=16", features=(1280, 1, 1))
    assert network.c.in_features == 1280 + 16
    assert tuple(network(torch.rand(2, *COLOUR), torch.rand(2, 1280, 1, 1)).shape) == (2, 100)


def test_guidance_from_its_features_has_three_layers() -> None:
    producer = guidance_producer(make_encoder("mobilenetv2:random", COLOUR).feature_shape, COLOUR, torch.Generator())
    assert sum(isinstance(layer, nn.ConvTranspose2d) for layer in producer.modules()) == 3
    assert tuple(producer(torch.rand(2, 1280, 1, 1)).shape) == (2, *COLOUR)


@pytest.mark.parametrize(
    ("spec", "shape", "sentence"),
    [
        ("mobilenetv2", (64,), "at least 16x16"),
        ("mobilenetv2:width=0", COLOUR, "width must lie between 0 and 8"),
        ("full:image=mobilenet", COLOUR, "did you mean 'mobilenetv2'"),
        ("full:width=0.5", COLOUR, "whole number of channels"),
    ],
)
def test_what_does_not_fit_is_a_sentence(spec: str, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence):
        model(spec, shape, features=(8,))


def colours() -> Task:
    """Colour pictures of noise with a tint each, which is the class."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(32) % 4
    images = torch.randint(0, 100, (32, *COLOUR), generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[label % 3] += 60 + 90 * (label // 3)
    data = Samples((images.to(torch.uint8),), labels)
    return Task("colours", data, data.take(torch.arange(8)), tuple("abcd"))


def test_with_feddig_its_stand_ins_train_on_guidance() -> None:
    keys = {
        "task": "test_models:colours",
        "partition": "iid",
        "clients": 2,
        "rounds": 3,
        "scenario": {"name": "intervals", "away": [[1, 2, 4]]},
        "model": "full:image=mobilenetv2,width=0.1,hidden=8",
        "encoder": "mobilenetv2:random",
        "absence": "feddig:spd=3,strategy=across",
        "workers": 0,
    }
    assert make_plan(from_table(keys)).method.bench.about.feature_shape == (1280, 1, 1)
    history = run(from_table(keys))
    assert [record.stand_ins for record in history.records] == [[], [1], [1]]
    assert [note for record in history.records for note in record.notes] == []


@pytest.mark.parametrize("shape", [(2, 30), (4096,), (1, 7, 9)])
def test_the_whole_model_of_feddig_says_what_pictures_it_takes(shape: tuple[int, ...]) -> None:
    with pytest.raises(HoldfastError, match="model 'full' takes pictures of at least 8x8"):
        model("full", shape, features=(128,))
