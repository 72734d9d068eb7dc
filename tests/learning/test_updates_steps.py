"""DP-SGD's steps: chance, clip and noise against numbers derived by hand, gradients against a slow loop."""

from __future__ import annotations

import builtins
import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.data.task import Samples
from holdfast.learning.loop import train
from holdfast.learning.objective import TaskLoss
from holdfast.learning.settings import Learning
from holdfast.models.networks import Cnn, Full
from holdfast.privacy.dp_steps import (
    GRID,
    ROUNDING,
    Noisy,
    check_fit,
    normals,
    own_gradient,
    poisson_batch,
    record_gradients,
)
from holdfast.privacy.noise import Source, seeded, system

CROSS_ENTROPY = nn.functional.cross_entropy


def mean_output(output: Tensor, labels: Tensor) -> Tensor:
    """A loss whose gradient, for a linear model without bias, is the record itself."""
    return output.mean()


def line(width: int) -> nn.Linear:
    return nn.Linear(width, 1, bias=False)


def of(*rows: list[float]) -> Samples:
    return Samples((torch.tensor(rows),), torch.zeros(len(rows), dtype=torch.long))


# Chance ---------------------------------------------------------------------------------------------------------


def test_normals_are_normal() -> None:
    """Each statement fails by chance with probability below 1e-6 (5 standard errors)."""
    count = 400_000
    found = normals(count, system())
    assert abs(found.mean()) < 5 / math.sqrt(count)
    assert abs(found.var() - 1) < 5 * math.sqrt(2 / count)
    for bound in (0.5, 1.0, 2.0, 3.0):
        share = math.erfc(bound / math.sqrt(2))
        assert abs((np.abs(found) > bound).mean() - share) < 5 * math.sqrt(share / count)
    assert abs(np.corrcoef(found[: count // 2], found[count // 2 :])[0, 1]) < 5 / math.sqrt(count / 2)


def test_normals_use_64_bits() -> None:
    """The smallest word is 2^-64 and its radius sqrt(128 ln 2) = 9.42: a 32-bit seed or number could not reach it."""
    nothing = Source(bytes, "zeros")
    assert normals(2, nothing).tolist() == [math.sqrt(128 * math.log(2)), 0.0]
    assert np.isfinite(normals(1001, Source(lambda count: b"\xff" * count, "ones"))).all()
    drawn: list[int] = []

    def count_bytes(count: int) -> bytes:
        drawn.append(count)
        return system().read(count)

    normals(1000, Source(count_bytes, "counted"))
    assert sum(drawn) == 8000


def test_a_batch_takes_each_record_with_its_chance() -> None:
    words = np.array([0, 2**62 - 1, 2**62, 2**64 - 1], dtype="<u8")
    assert poisson_batch(4, 0.25, Source(lambda count: words.tobytes(), "given")).tolist() == [0, 1]
    assert poisson_batch(3, 1.0, seeded(0)).tolist() == [0, 1, 2]
    sizes = np.array([len(poisson_batch(1000, 0.1, system())) for _ in range(2000)])
    assert abs(sizes.mean() - 100) < 5 * math.sqrt(90 / 2000)
    assert abs(sizes.var() / 90 - 1) < 5 * math.sqrt(2 / 2000)  # binomial, not a fixed size


# Clip and noise by hand -----------------------------------------------------------------------------------------


def test_gradients_are_shortened_each_by_itself() -> None:
    """(3, 4) is 5 long and becomes (.6, .8); (.3, .4) stays. Sum (.9, 1.2); by an expected batch of 4: (.225, .3)."""
    model = line(2)
    noisy = Noisy(clip=1.0, multiplier=0.0, rate=1.0, expected=4, source=seeded(0))
    noisy.fill_gradients(model, of([3.0, 4.0], [0.3, 0.4]), torch.arange(2), TaskLoss(mean_output))
    assert model.weight.grad is not None
    torch.testing.assert_close(model.weight.grad, torch.tensor([[0.225, 0.3]]), rtol=0, atol=2 * ROUNDING)


def test_no_record_counts_more_than_the_clip_whatever_it_holds() -> None:
    model = line(3)
    noisy = Noisy(clip=0.5, multiplier=0.0, rate=1.0, expected=1, source=seeded(0))
    for record in ([1e30, 1.0, 0.0], [math.inf, 0.0, 0.0], [math.nan, 1.0, 1.0], [0.5, 0.0, 0.0], [-7.0, 7.0, 7.0]):
        noisy.fill_gradients(model, of(record), torch.arange(1), TaskLoss(mean_output))
        assert model.weight.grad is not None
        assert float(model.weight.grad.double().norm()) <= 0.5  # not even by a rounding
    noisy.fill_gradients(model, of([math.nan, 1.0, 1.0], [0.0, 0.1, 0.0]), torch.arange(2), TaskLoss(mean_output))
    torch.testing.assert_close(model.weight.grad, torch.tensor([[0.0, 0.1, 0.0]]))


def test_noise_has_the_stated_scale_and_lies_on_the_grid() -> None:
    """Multiplier 2 x clip 0.5 / expected 10 = 0.1 for every weight, also where the batch is empty."""
    width = 40_000
    model = line(width)
    noisy = Noisy(clip=0.5, multiplier=2.0, rate=0.5, expected=10, source=system())
    noisy.fill_gradients(model, of([0.0] * width), torch.arange(0), TaskLoss(mean_output))
    assert model.weight.grad is not None
    found = model.weight.grad.double()
    assert abs(float(found.std()) - 0.1) < 0.1 * 5 / math.sqrt(2 * width)
    total = noisy.noised(torch.zeros(1000, dtype=torch.float64)) / GRID
    assert torch.equal(total, total.round())


def test_without_noise_and_clip_it_is_sgd_on_the_same_batches() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    theirs = copy.deepcopy(model)
    samples = Samples((torch.randn(50, 6).double(),), torch.randint(0, 3, (50,)))
    learning = Learning(epochs=3, batch_size=16, lr=0.1, momentum=0.9, weight_decay=0.01)
    noisy = Noisy(clip=math.inf, multiplier=0.0, rate=16 / 50, expected=16, source=seeded(7))
    steps, _ = train(model, samples, learning, torch.Generator(), TaskLoss(CROSS_ENTROPY), gradients=noisy)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    same = Noisy(math.inf, 0.0, 16 / 50, 16, seeded(7))
    for _ in range(3):
        for index in same.batches(50):
            optimizer.zero_grad()
            output = theirs(samples.inputs[0][index])
            (nn.functional.cross_entropy(output, samples.labels[index], reduction="sum") / 16).backward()
            optimizer.step()
    assert steps == 12  # 4 of 50 / 16, rounded up, in each epoch
    for ours, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-9, atol=1e-12)


# Per-record gradients -------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """A layer that Opacus does not know, one weight used twice, and one never."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.scale


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.unused, self.odd = nn.Linear(4, 4), nn.Linear(2, 2), Odd()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.odd(self.shared(torch.tanh(self.shared(x))))
        return found


MODELS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "cnn": (lambda: Cnn(width=4, hidden=8).build((1, 8, 8), 4, ()), ((1, 8, 8),)),
    "full": (lambda: Full(width=4, hidden=8).build((1, 8, 8), 4, (6,)), ((1, 8, 8), (6,))),
    "norms": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4)), ((6,),)),
    "twice": (Twice, ((4,),)),
}


def few(shapes: tuple[tuple[int, ...], ...], count: int = 5) -> Samples:
    generator = torch.Generator().manual_seed(1)
    inputs = tuple(torch.rand(count, *shape, generator=generator) for shape in shapes)
    return Samples(inputs, torch.arange(count) % 4)


@pytest.mark.parametrize("name", MODELS)
def test_each_records_gradient_is_that_of_the_record_alone(name: str) -> None:
    torch.manual_seed(0)
    build, shapes = MODELS[name]
    model, samples = build(), few(shapes)
    check_fit(model, samples, TaskLoss(CROSS_ENTROPY))
    found = record_gradients(model, *samples.batch(torch.arange(5)), TaskLoss(CROSS_ENTROPY))
    for i in range(5):
        mine = torch.cat([gradients[i].flatten() for gradients in found])
        slow = own_gradient(model, samples, torch.tensor([i]), TaskLoss(CROSS_ENTROPY))
        torch.testing.assert_close(mine, slow, rtol=1e-4, atol=1e-5)
    assert not any(hasattr(weight, "grad_sample") for weight in model.parameters())  # the hooks are gone


def test_large_batches_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    samples, results = few(((6,),), 20), []
    for most in (1 << 25, 7 * 100):
        monkeypatch.setattr("holdfast.privacy.dp_steps.MOST_NUMBERS", most)
        torch.manual_seed(0)
        model = nn.Linear(6, 4)
        Noisy(0.1, 0.0, 1.0, 20, seeded(0)).fill_gradients(model, samples, torch.arange(20), TaskLoss(CROSS_ENTROPY))
        results.append(model.weight.grad)
    torch.testing.assert_close(*results)


# What is refused before round 1 ---------------------------------------------------------------------------------


class Centred(nn.Module):
    """Subtracts the mean of the batch: no layer that is known by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(x - x.mean(0, keepdim=True))
        return found


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += x.detach().sum()
        found: Tensor = self.last(x)
        return found


def weighted(output: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, labels, weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))


def summed(output: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, labels, reduction="sum")


@pytest.mark.parametrize(
    ("model", "loss", "sentence"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), CROSS_ENTROPY, "layer '1' is a BatchNorm1d"),
        (Centred, CROSS_ENTROPY, "mixes the records of a batch"),
        (Counting, CROSS_ENTROPY, "keeps statistics of its records in buffers"),
        (lambda: nn.Linear(6, 4), weighted, "The loss must be a plain mean over the batch"),
        (lambda: nn.Linear(6, 4), summed, "The loss must be a plain mean over the batch"),
        (lambda: nn.Linear(6, 4), lambda o, y: CROSS_ENTROPY(o, y) + o.mean(0).square().sum(), "its loss mixes"),
    ],
)
def test_what_mixes_records_is_refused(model: Any, loss: Any, sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence):
        check_fit(model(), few(((6,),)), TaskLoss(loss))


def test_dropout_is_no_mixing_and_hides_none() -> None:
    """Only its second model mixes records; chance in the first would make their gradients differ as much."""
    samples, refused = few(((6,),)), []
    for last in (nn.Linear(6, 4), Centred()):
        try:
            check_fit(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), last), samples, TaskLoss(CROSS_ENTROPY))
        except HoldfastError as error:
            refused.append((type(last), "mixes the records of a batch" in str(error)))
    assert refused == [(Centred, True)]


def test_without_opacus_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("opacus"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(HoldfastError, match=r"holdfast\[dp\]"):
        check_fit(nn.Linear(6, 4), few(((6,),)), TaskLoss(CROSS_ENTROPY))
