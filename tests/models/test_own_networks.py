"""Networks of users' own: what torch allows works, or is refused before round 1."""

from __future__ import annotations

import pytest
import torch
from engine_helpers import experiment
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.play import run
from holdfast.runs.build import make_plan


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(x)
        return output


class Warm(Net):
    """With a weight that is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.warmth = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.warmth


class Buffered(Warm):
    """With buffers of numbers, of whole numbers, and of yes or no."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(6))
        self.register_buffer("order", torch.arange(4))
        self.register_buffer("ready", torch.tensor(True))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.scale)[:, self.order]


class Lazy(Net):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.LazyLinear(4)


class Complex(Net):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.ones(4, dtype=torch.complex64))


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :4]


@pytest.mark.parametrize(
    ("network", "choices"),
    [
        ("Buffered", {}),
        ("Buffered", {"trust": "jury"}),
        ("Buffered", {"trust": "median"}),
        ("Buffered", {"algorithm": "mime"}),
        ("Warm", {"protect": "dp-sgd"}),
    ],
)
def test_one_number_as_a_weight_and_buffers_of_any_type(network: str, choices: dict[str, str]) -> None:
    history = run(experiment(model=f"test_own_networks:{network}", partition="iid", rounds=2, **choices))
    for record in history.records:
        assert not record.absent
        assert not any("ignored" in note for note in record.notes)


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        ("Lazy", "leaves the size of 'head.weight' open"),
        ("Complex", "other than real numbers in 'turn'"),
        ("Nothing", "has no weights that learn"),
    ],
)
def test_weights_that_nobody_can_average_are_refused(network: str, sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence):
        make_plan(experiment(model=f"test_own_networks:{network}"))
